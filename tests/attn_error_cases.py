"""A tiny random model, a tiny corpus, and a run's ears, shared by the tests of `plsh attn-error`."""

from __future__ import annotations

import contextlib
import json

import numpy as np

WORDS = 97
N = 127


class Run:
    """Takes what an experiment tells its run."""

    def __init__(self):
        self.metrics, self.lines, self.arrays, self.rows, self.steps = [], [], {}, {}, []

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

    def save_rows(self, name, rows):
        self.rows[name] = rows

    def save_arrays(self, name, **arrays):
        self.arrays[name] = arrays


def save_tokenizer(folder):
    """A tokenizer of the words w0 .. w96, beside a model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def write_corpus(folder, sizes):
    """documents.jsonl with a document of so many random words each."""
    generator = np.random.default_rng(0)
    texts = [" ".join(f"w{pick}" for pick in generator.integers(0, WORDS, size)) for size in sizes]
    facts = {"date": "1801-12-08", "year": 1801, "president": "Nobody", "form": "written"}
    lines = [json.dumps({"name": f"d{index}", "text": text, **facts}) for index, text in enumerate(texts)]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    return texts


def found(result, field="output_error_relative", bias="plsh"):
    """A field of the rows of layers and heads, by (layer, head, s)."""
    rows = [row for row in result.rows if row["bias"] == bias and row["layer"] is not None]
    return {(row["layer"], row["head"], row["num_samples"]): row[field] for row in rows}


def whole(result, bias="plsh"):
    """The rows over all layers and heads, by s."""
    return {row["num_samples"]: row for row in result.rows if row["group"] == "all" and row["bias"] == bias}
