"""Captured Q, K and V are those that the model's own attention works on."""

from __future__ import annotations

import pytest
import torch

from plsh_cli.attention.reference import dense_attention
from plsh_cli.errors import MessageError
from plsh_cli.models.capture import capture_qkv


def own_outputs(model, token_ids):
    """What every layer's attention hands to its output projection, (n, h * d)."""
    seen = {}
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, inputs, index=index: seen.update({index: inputs[0][0]})
        )
        for index, layer in enumerate(model.model.layers)
    ]
    with torch.inference_mode():
        model(token_ids)
    for hook in hooks:
        hook.remove()
    return seen


# The eager attention of transformers computes its softmax in float32, whatever the model's type.
@pytest.mark.parametrize(("implementation", "rounding"), [("sdpa", 1e-9), ("eager", 1e-5)])
def test_reproduces_the_models_own_attention_output(tiny_llama, token_ids, implementation, rounding):
    model = tiny_llama.double()
    model.set_attn_implementation(implementation)
    wanted = own_outputs(model, token_ids)
    captured = capture_qkv(model, token_ids, [0, 1, 2])
    for layer, (q, k, v, scale, slopes) in captured.items():
        assert slopes is None
        assert q.shape == (9, 61, 8)
        assert k.shape == v.shape == (3, 61, 8)
        assert scale == 8**-0.5
        out, _ = dense_attention(q, k, v, torch.ones(1, 1, 1), causal=True, scale=scale)
        torch.testing.assert_close(out.transpose(0, 1).flatten(1), wanted[layer], rtol=rounding, atol=rounding)


def test_rope_is_in_queries_and_keys(tiny_llama, token_ids):
    # The same token everywhere: without positions all rows of q and k would be equal, as those of v are.
    q, k, v, *_ = capture_qkv(tiny_llama, torch.full_like(token_ids, 5), [0])[0]
    assert float((v[:, 1:] - v[:, :1]).abs().max()) < 1e-6
    assert min(float((x[:, 1:] - x[:, :1]).abs().max()) for x in (q, k)) > 0.1


def test_only_the_layers_asked_for_and_in_that_order(tiny_llama, token_ids):
    assert list(capture_qkv(tiny_llama, token_ids, [2, 0])) == [2, 0]


def test_the_last_token_changes_nothing_before_it(tiny_llama, token_ids):
    other = token_ids.clone()
    other[0, -1] = (other[0, -1] + 1) % 97
    before, after = (capture_qkv(tiny_llama, ids, [0, 1, 2]) for ids in (token_ids, other))
    for layer in range(3):
        for one, two in zip(before[layer][:3], after[layer][:3], strict=True):
            torch.testing.assert_close(one[:, :-1], two[:, :-1], rtol=1e-5, atol=1e-5)
            assert not torch.equal(one[:, -1], two[:, -1])


def test_leaves_the_model_as_it_was(tiny_llama, token_ids):
    with torch.inference_mode():
        before = tiny_llama(token_ids).logits
    capture_qkv(tiny_llama, token_ids, [1])
    assert tiny_llama.config._attn_implementation == "sdpa"
    with torch.inference_mode():
        assert torch.equal(tiny_llama(token_ids).logits, before)


def test_leaves_the_model_as_it_was_after_a_failure(tiny_llama, token_ids):
    with pytest.raises(IndexError):
        capture_qkv(tiny_llama, token_ids + 1000, [1])
    assert tiny_llama.config._attn_implementation == "sdpa"


def test_two_captures_do_not_share_tensors(tiny_llama, token_ids):
    first = capture_qkv(tiny_llama, token_ids, [0])[0]
    kept = first.q.clone()
    capture_qkv(tiny_llama, token_ids.flip(1), [0])
    assert torch.equal(first.q, kept)


def test_a_layer_whose_attention_goes_another_way_is_refused(tiny_llama, token_ids, monkeypatch):
    attention = tiny_llama.model.layers[1].self_attn
    monkeypatch.setattr(attention, "forward", lambda hidden_states, **options: (torch.zeros_like(hidden_states), None))
    with pytest.raises(MessageError, match=r"layers \[1\]"):
        capture_qkv(tiny_llama, token_ids, [0, 1])


@pytest.mark.parametrize("layers", [[3], [-1], [0, 7]])
def test_layers_that_are_not_there(tiny_llama, token_ids, layers):
    with pytest.raises(ValueError, match=r"layers must lie in 0 \.\. 2"):
        capture_qkv(tiny_llama, token_ids, layers)


def test_more_than_one_text_is_refused(tiny_llama, token_ids):
    with pytest.raises(ValueError, match="input_ids"):
        capture_qkv(tiny_llama, token_ids.expand(2, -1), [0])
