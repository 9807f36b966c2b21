"""A small model, a corpus of random words and a run of `plsh train`, for the tests of `plsh eval`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from plsh_cli.config.compose import compose
from plsh_cli.data.tokenizer import byte_tokenizer
from plsh_cli.rundir import RunFolder

SIZES = {"hidden_size": 36, "intermediate_size": 29, "num_hidden_layers": 2, "max_position_embeddings": 128}


class Run:
    """Takes what an experiment tells its run."""

    def __init__(self):
        self.metrics, self.lines, self.arrays, self.steps, self.total = [], [], {}, [], 0

    def log(self, metrics):
        self.metrics.append(metrics)

    def say(self, text):
        self.lines.append(text)

    @contextlib.contextmanager
    def progress(self, total, description):
        self.total = total
        yield self

    def advance(self, n=1):
        self.steps.append(n)

    def save_arrays(self, name, **arrays):
        self.arrays[name] = arrays


def save_model(folder: Path) -> None:
    """A random model of nine query over three key heads that reads bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=257, initializer_range=0.2, **SIZES, **heads)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def write_corpus(folder: Path) -> None:
    """Twelve files of a few hundred bytes of random words, some letters of two bytes."""
    letters = list("aeiounrstlmdü")
    for index in range(12):
        generator = np.random.default_rng(index)
        words = ["".join(generator.choice(letters, size)) for size in generator.integers(1, 9, 70)]
        (folder / f"d{index:02}.txt").write_text(" ".join(words))


def save_run(out: Path, corpus: Path, *overrides: str) -> Path:
    """A run folder as plsh train leaves it: its configuration and a (random) model that knows its bias."""
    from omegaconf import OmegaConf

    from plsh_cli.experiments import train_model
    from plsh_cli.experiments.train_subject import subject_of

    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3}
    chosen = [f"model.architecture.{key}={value}" for key, value in {**sizes, "head_dim": 8}.items()]
    chosen += ["data=text", f"data.path={corpus}", "train.context=16", "train.heldout=0.3", "train.batch=2"]
    cfg = compose("train", [*chosen, *overrides])

    def fill(run: RunFolder) -> None:
        run.set_status("done")
        run.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(cfg.model_dump(mode="json"))))
        run.write_text("overrides.txt", "")

    run = RunFolder.create(str(out), "train", "toy", fill)
    tokenizer = byte_tokenizer()
    model = subject_of(cfg).model(tokenizer, 257, print)
    train_model.under_bias(model, cfg).model.save_pretrained(run.path / "model")
    tokenizer.save_pretrained(run.path / "model")
    return run.path
