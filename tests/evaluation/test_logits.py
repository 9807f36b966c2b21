"""Logits in pieces are the model's own, whatever it does after its last layer."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MptConfig,
)

from plsh_cli.evaluation.logits import logits_in_pieces

SIZES = {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
WIDE = SIZES | {"intermediate_size": 29, "num_key_value_heads": 1, "head_dim": 8}
CONFIGS = {
    "llama": lambda: LlamaConfig(**WIDE),
    "gemma2": lambda: Gemma2Config(**WIDE, final_logit_softcapping=0.5),
    "cohere": lambda: CohereConfig(**WIDE, logit_scale=0.3),
    "gpt2": lambda: GPT2Config(vocab_size=97, n_embd=24, n_layer=2, n_head=3),
    "bloom": lambda: BloomConfig(vocab_size=97, hidden_size=24, n_layer=2, n_head=3),
    "falcon": lambda: FalconConfig(**SIZES),
    "mpt": lambda: MptConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3),
}


@pytest.fixture(params=CONFIGS)
def built(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[request.param]()).double().eval()


@pytest.mark.parametrize("numbers", [1, 2 * 97 * 5, 10**9])
@pytest.mark.parametrize("keep", [1, 13, 31])
def test_pieces_are_the_end_of_the_whole(built, keep, numbers):
    ids = torch.randint(0, 97, (2, 31), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = built(input_ids=ids, use_cache=False).logits[:, -keep:]
        pieces = list(logits_in_pieces(built, ids, keep, numbers))
        again = built(input_ids=ids, use_cache=False).logits[:, -keep:]
    torch.testing.assert_close(torch.cat([piece for _, piece in pieces], dim=1), whole, rtol=1e-12, atol=1e-12)
    assert [place.start for place, _ in pieces] == [0, *(place.stop for place, _ in pieces[:-1])]
    assert torch.equal(whole, again)
    if numbers < 10**9:
        assert max(piece.numel() for _, piece in pieces) <= max(numbers, 2 * 97)


def test_a_failure_leaves_the_model_as_it_was(built):
    ids = torch.randint(0, 97, (1, 7))
    pieces = logits_in_pieces(built, ids, 7, 1)
    with torch.inference_mode():
        next(pieces)
        pieces.close()
        assert built(input_ids=ids[:, :3], use_cache=False).logits.shape[1] == 3
