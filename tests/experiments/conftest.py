"""Fixtures of the experiments that run a model: a random one in a folder, and a corpus in the place of the real one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attn_error_cases import WORDS, N, save_tokenizer, write_corpus

from plsh_cli import assets
from plsh_cli.config.compose import compose


@pytest.fixture
def one_thread():
    """Matrices this small are slower on several threads, and much slower on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder with a random model of nine query over three key heads and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 72, "intermediate_size": 53, "num_hidden_layers": 4, "max_position_embeddings": 128}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8}
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, initializer_range=0.2, **sizes, **heads)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Four documents, of 200, 150, 170 and 5 tokens, in the place of the corpus."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_corpus(folder, (200, 150, 170, 5))
    monkeypatch.setitem(assets.ASSETS, "sotu", replace(assets.ASSETS["sotu"], shape={"documents": 4}))
    monkeypatch.setattr(assets, "fetch", lambda name, say: folder)
    monkeypatch.setattr(assets, "cached", lambda name: folder)
    return folder


@pytest.fixture
def config(llama, corpus):
    """A configuration of attn-error on both, from overrides."""

    def build(*overrides):
        chosen = {"data.document": 0, "attn_error.tokens": N, "attn_error.num_samples": "[3,8]", "attn_error.seeds": 2}
        chosen |= {"model.path": llama, "device": "cpu"} | dict(line.split("=", 1) for line in overrides)
        return compose("attn_error", [f"{key}={value}" for key, value in chosen.items()])

    return build


@pytest.fixture
def unused_port():
    """A port of this machine that nothing listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
