"""From what is captured, the attention output of every kind of model can be computed again."""

from __future__ import annotations

import pytest
import torch
import toy

from plsh_cli.attention.reference import dense_attention
from plsh_cli.errors import MessageError
from plsh_cli.models import capture_qkv, use_bias
from plsh_cli.models.spec import BiasSpec
from plsh_cli.positional.kernels import alibi_slopes

OUTPUT_PROJECTIONS = ("o_proj", "dense", "out_proj")
# Softmax in float32, as the models' own.
ROUNDING = 1e-5
FALCONS = [name for name in (*toy.OWN_CODE, "falcon_rope") if "falcon" in name]
CASES = [(name, None) for name in (*toy.THROUGH_INTERFACE, "bloom", "mpt")]
CASES += [(name, implementation) for name in FALCONS for implementation in ("sdpa", "eager")]


def own_outputs(model, ids):
    """What every layer's attention hands to its output projection, (n, h * d)."""
    seen, hooks = {}, []
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            names = [name for name in OUTPUT_PROJECTIONS if hasattr(module, name)]
            note = lambda _, inputs, layer=module.layer_idx: seen.update({layer: inputs[0][0]})  # noqa: E731
            hooks += [getattr(module, name).register_forward_pre_hook(note) for name in names]
    with torch.inference_mode():
        model(ids)
    for hook in hooks:
        hook.remove()
    return seen


def outputs_again(layer, seen=None):
    """Attention (n, h * d) from what was captured, in float64."""
    n = layer.q.shape[1]
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    weights = torch.ones(1, n, n, dtype=torch.float64)
    if layer.slopes is not None:
        weights = (-layer.slopes[:, None, None] * distance).exp()
    if seen is not None:
        weights = weights * seen
    q, k, v = layer.q.double(), layer.k.double(), layer.v.double()
    out, _ = dense_attention(q, k, v, weights, causal=True, scale=layer.scale)
    return out.transpose(0, 1).flatten(1)


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_reproduces_the_models_own_attention_output(name, implementation, token_ids):
    model = toy.toy_model(name, implementation)
    wanted = own_outputs(model, token_ids)
    captured = capture_qkv(model, token_ids, [0, 1, 2])
    for index, layer in captured.items():
        # Llama 4 attends within chunks of 16 tokens, but for the layer without RoPE.
        chunk = torch.arange(61) // 16
        seen = (chunk[:, None] == chunk).double() if name == "llama4" and index != 1 else None
        torch.testing.assert_close(outputs_again(layer, seen).float(), wanted[index], rtol=0, atol=ROUNDING)
        assert (layer.slopes is None) == (name in toy.THROUGH_INTERFACE or name == "falcon_rope")


@pytest.mark.parametrize(
    ("name", "heads", "groups"),
    [
        *(("llama", 9, 3), ("phi", 9, 3), ("bloom", 9, 9), ("mpt", 9, 9)),
        *(("falcon", 8, 8), ("falcon_mqa", 8, 1), ("falcon_new", 8, 2), ("falcon_rope", 8, 2)),
    ],
)
def test_key_heads_are_those_of_the_model(name, heads, groups, token_ids):
    layer = capture_qkv(toy.toy_model(name), token_ids, [1])[1]
    assert layer.q.shape == (heads, 61, 8)
    assert layer.k.shape == layer.v.shape == (groups, 61, 8)


def test_slopes_are_those_that_the_model_uses(token_ids):
    def slopes(name, **options):
        return capture_qkv(toy.toy_model(name, **options), token_ids, [0])[0].slopes

    ours = torch.from_numpy(alibi_slopes(9))
    torch.testing.assert_close(slopes("bloom"), ours, rtol=1e-6, atol=0)
    # MPT's recipe puts the slopes of 16 heads in another order.
    assert slopes("mpt").tolist()[:4] == pytest.approx([2.0**-1, 2.0**-2, 2.0**-3, 2.0**-4])
    assert float(slopes("mpt")[-1]) == pytest.approx(2.0**-0.5)
    # Falcon: times d ** -0.5; and, where the attention is its own code, twice outside of its sdpa path, where the mask
    # holds the bias already.
    exact = torch.from_numpy(alibi_slopes(8)) * 8**-0.5
    torch.testing.assert_close(slopes("falcon", implementation="sdpa"), exact, rtol=1e-6, atol=0)
    times = 1 if toy.toy_model("falcon")._can_set_attn_implementation() else 2
    torch.testing.assert_close(slopes("falcon", implementation="eager"), times * exact, rtol=1e-6, atol=0)


def test_mpt_clips_its_projections(token_ids):
    model = toy.toy_model("mpt")
    for block in model.transformer.blocks:
        block.attn.clip_qkv = 0.5
    wanted = own_outputs(model, token_ids)
    layer = capture_qkv(model, token_ids, [1])[1]
    torch.testing.assert_close(outputs_again(layer).float(), wanted[1], rtol=0, atol=ROUNDING)
    assert float(layer.q.abs().max()) == 0.5


ROTATING = ("llama", "qwen3", "mistral", "gemma3", "phi", "smollm3", "falcon_rope")


@pytest.mark.parametrize("name", ROTATING)
def test_before_rope_there_are_no_positions(name, token_ids):
    """The same token everywhere: all rows of queries and keys are equal, and position 0 is not turned."""
    model, same = toy.toy_model(name), torch.full_like(token_ids, 5)
    before, after = (capture_qkv(model, same, [0, 1, 2], rotary=rotary) for rotary in ("before", "after"))
    for layer in range(3):
        for one, two in zip(before[layer][:2], after[layer][:2], strict=True):
            assert float((one[:, 1:] - one[:, :1]).abs().max()) < 1e-4
            torch.testing.assert_close(one[:, 0], two[:, 0])
            assert torch.equal(one, two) == (name == "smollm3" and layer == 1)
        assert torch.equal(before[layer].v, after[layer].v)


@pytest.mark.parametrize("name", ROTATING)
def test_turning_them_gives_those_after_rope(name, token_ids):
    model = toy.toy_model(name)
    before, after = (capture_qkv(model, token_ids, [0, 2], rotary=rotary) for rotary in ("before", "after"))
    frequency = 1e4 ** (-torch.arange(0, 8, 2) / 8) if name != "phi" else 1e4 ** (-torch.arange(0, 4, 2) / 4)
    if name == "smollm3":
        frequency = 2e6 ** (-torch.arange(0, 8, 2) / 8)
    for layer in (0, 2):
        for one, two in zip(before[layer][:2], after[layer][:2], strict=True):
            half = len(frequency)
            angle = torch.arange(61)[:, None] * frequency
            x, y, rest = one[..., :half], one[..., half : 2 * half], one[..., 2 * half :]
            turned = [x * angle.cos() - y * angle.sin(), y * angle.cos() + x * angle.sin(), rest]
            torch.testing.assert_close(torch.cat(turned, dim=-1), two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "gpt2"])
def test_models_without_rope_have_nothing_to_undo(name, token_ids):
    model = toy.toy_model(name)
    before, after = (capture_qkv(model, token_ids, [1], rotary=rotary)[1] for rotary in ("before", "after"))
    assert torch.equal(before.q, after.q)
    assert torch.equal(before.k, after.k)


def test_a_rope_that_is_not_known_is_refused(token_ids):
    """Llama 4 turns pairs of numbers as complex ones, with a function of another name."""
    with pytest.raises(MessageError, match="before RoPE"):
        capture_qkv(toy.toy_model("llama4"), token_ids, [0], rotary="before")


def test_a_rotation_that_attention_does_not_work_on_is_refused(token_ids, monkeypatch):
    from transformers.models.llama import modeling_llama

    function = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda *call, **more: Slightly(function(*call, **more)))
    with pytest.raises(MessageError, match="before RoPE"):
        capture_qkv(toy.toy_model("llama"), token_ids, [0], rotary="before")


class Slightly(tuple):
    """Queries and keys that change when they are taken out."""

    def __iter__(self):
        return iter([x + 1e-3 * next(self.times) for x in tuple.__iter__(self)])

    times = iter(range(1, 1000))


@pytest.mark.parametrize("name", ["llama", "bloom", "falcon_rope"])
def test_leaves_the_model_as_it_was(name, token_ids):
    model = toy.toy_model(name)
    with torch.inference_mode():
        before = model(token_ids).logits
    implementation = model.config._attn_implementation
    for rotary in ("before", "after"):
        capture_qkv(model, token_ids, [1], rotary=rotary)
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks for module in model.modules() if hasattr(module, "layer_idx"))
    with torch.inference_mode():
        assert torch.equal(model(token_ids).logits, before)


def test_under_a_bias_it_is_the_biased_pass_that_is_captured(token_ids):
    model = toy.toy_model("llama")
    plain = capture_qkv(model, token_ids, [0, 2])
    with use_bias(model, BiasSpec("alibi")) as handle:
        biased = capture_qkv(model, token_ids, [0, 2])
        assert handle.calls == 3
    assert torch.equal(biased[0].q, plain[0].q)
    assert not torch.equal(biased[2].q, plain[2].q)


def test_a_misspelt_rotary(token_ids):
    with pytest.raises(ValueError, match="rotary = 'pre'"):
        capture_qkv(toy.toy_model("llama"), token_ids, [0], rotary="pre")
