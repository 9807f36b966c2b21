"""Small models with random weights: three layers, nine query heads over three key heads."""

from __future__ import annotations

import pytest


@pytest.fixture
def tiny_llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=72,
        intermediate_size=53,
        num_hidden_layers=3,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def token_ids():
    import torch

    return torch.randint(0, 97, (1, 61), generator=torch.Generator().manual_seed(1))
