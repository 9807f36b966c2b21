"""A small model with random weights, and texts as token ids."""

from __future__ import annotations

import numpy as np
import pytest

VOCAB = 97


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices this small are slower on several threads, and much slower on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, initializer_range=0.3, **sizes, **heads)).double().eval()


@pytest.fixture
def texts():
    """Four texts of 211, 5, 83 and 131 tokens; every token stands for 1 to 4 bytes."""
    from plsh_cli.evaluation.texts import Text

    generator = np.random.default_rng(0)
    return [
        Text(f"t{index}", generator.integers(0, VOCAB, size), generator.integers(1, 5, size))
        for index, size in enumerate((211, 5, 83, 131))
    ]
