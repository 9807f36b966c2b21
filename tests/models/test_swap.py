"""A whole model under a bias is the model whose attention weights are multiplied by that bias's matrix."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import toy
from model_biases import BIASES, SIGMAS, draws, matrix, own_logits

from plsh_cli.attention import Alibi, NoBias
from plsh_cli.errors import MessageError
from plsh_cli.models import check_causal, use_bias

# The eager attention of transformers, the oracle, computes its softmax in float32.
ROUNDING = 2e-5


@pytest.fixture(params=sorted(BIASES))
def bias(request):
    return BIASES[request.param]()


@pytest.fixture
def model():
    return toy.toy_model("llama")


def logits(model, ids, **options):
    with torch.inference_mode():
        return model(ids, use_cache=False, **options).logits


def close(got, wanted, rounding=ROUNDING):
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding * float(wanted.abs().max()))


def test_equals_the_models_own_attention_under_the_dense_matrix(model, bias, token_ids):
    model = model.double()
    wanted = own_logits(model, token_ids, matrix(bias, 61))
    with use_bias(model, bias):
        close(logits(model, token_ids), wanted, 1e-6)
    assert float((logits(model, token_ids) - wanted).abs().max()) > 1e-3 or isinstance(bias, NoBias)


@pytest.mark.parametrize("name", toy.THROUGH_INTERFACE)
def test_without_a_bias_every_model_is_itself(name, token_ids):
    """Sliding windows that do not bite and chunks of 16 tokens included."""
    model = toy.toy_model(name)
    wanted = logits(model, token_ids)
    with use_bias(model, NoBias()) as handle:
        close(logits(model, token_ids), wanted)
        assert handle.backend == "fused"
        assert handle.calls >= toy.LAYERS


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3", "phi"])
def test_every_model_under_draws(name, token_ids):
    model, bias = toy.toy_model(name).double(), draws()
    wanted = own_logits(model, token_ids, matrix(bias, 61))
    with use_bias(model, bias):
        close(logits(model, token_ids), wanted, 1e-6)


@pytest.mark.parametrize("backend", ["reference", "blocks", "fused"])
def test_the_backend_asked_for_computes(model, token_ids, backend):
    with use_bias(model, draws(), backend=backend) as handle:
        assert (handle.backend, handle.calls) == (None, 0)
        logits(model, token_ids)
        assert (handle.backend, handle.calls) == (backend, toy.LAYERS)


def test_the_mean_of_outputs_is_another_bias(model, token_ids):
    with use_bias(model, draws()) as handle:
        merged = logits(model, token_ids)
        handle.set(draws(merge="mean"))
        assert float((logits(model, token_ids) - merged).abs().max()) > 1e-3
        assert handle.backend == "blocks+fused"


def test_one_bias_per_layer(model, token_ids):
    three = [draws(seed=seed) for seed in range(3)]
    with use_bias(model, three) as handle:
        mine = logits(model, token_ids)
        handle.set(three[::-1])
        assert float((logits(model, token_ids) - mine).abs().max()) > 1e-3
        handle.set([three[0]] * 3)
        same = logits(model, token_ids)
        handle.set(three[0])
        assert torch.equal(logits(model, token_ids), same)


def test_draws_for_more_positions_are_cut(model, token_ids):
    with use_bias(model, draws(128)) as handle:
        cut = logits(model, token_ids)
        handle.set([type(draws())(draws(128).parts.prefix(61))] * 3)
        assert torch.equal(logits(model, token_ids), cut)


def test_draws_for_fewer_positions_are_refused(model, token_ids):
    with use_bias(model, draws(60)), pytest.raises(ValueError, match=r"for 60 positions, this call has 61") as caught:
        logits(model, token_ids)
    assert caught.value.exit_code == 2


# Known fault transformers#45811: a custom attention loses the causal mask.
@pytest.mark.parametrize("name", toy.THROUGH_INTERFACE)
def test_later_tokens_never_move_earlier_logits(name, token_ids):
    model = toy.toy_model(name)
    other = token_ids.clone()
    other[0, -1] = (other[0, -1] + 1) % toy.VOCABULARY
    with use_bias(model, draws()):
        one, two = logits(model, token_ids), logits(model, other)
        check_causal(model)
    assert torch.equal(one[:, :-1], two[:, :-1])
    assert not torch.equal(one[:, -1], two[:, -1])


def test_the_check_finds_a_lost_mask(model):
    from transformers import AttentionInterface

    def without_mask(module, query, key, value, attention_mask, **options):
        share = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(share, dim=1) for x in (key, value))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2), None

    AttentionInterface.register("test_without_mask", without_mask)
    model.set_attn_implementation("test_without_mask")
    with pytest.raises(MessageError, match="is not causal"):
        check_causal(model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_check_says_that_logits_are_not_finite(model, value):
    with torch.no_grad():
        next(iter(model.parameters()))[1] = value
    with pytest.raises(MessageError, match="logits are not finite"):
        check_causal(model)


def test_the_check_keeps_the_mode(model):
    model.train()
    check_causal(model)
    assert model.training


def test_removing_restores_the_model_to_the_bit(model, token_ids):
    before, config = logits(model, token_ids), copy.deepcopy(model.config.to_dict())
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    handle = use_bias(model, draws(), rope="drop")
    assert not torch.equal(logits(model, token_ids), before)
    handle.remove()
    handle.remove()
    assert torch.equal(logits(model, token_ids), before)
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == "sdpa"
    assert dict(model.named_buffers()).keys() == buffers.keys()
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


def test_an_error_in_the_block_restores_it_too(model, token_ids):
    before = logits(model, token_ids)
    with pytest.raises(RuntimeError, match="mine"), use_bias(model, Alibi(SIGMAS)):
        raise RuntimeError("mine")
    assert torch.equal(logits(model, token_ids), before)


def test_a_handle_may_be_dropped_and_nothing_else_keeps_the_model_alive(token_ids):
    model = toy.toy_model("llama")
    own, gone = logits(model, token_ids), weakref.ref(model)
    use_bias(model, draws())
    gc.collect()
    assert not torch.equal(logits(model, token_ids), own)
    del model
    gc.collect()
    assert gone() is None


def test_autocast_computes_in_its_type(model, token_ids):
    with use_bias(model, draws()) as handle:
        exact = logits(model, token_ids)
        with torch.autocast("cpu", torch.bfloat16):
            rough = logits(model, token_ids)
        assert handle.backend == "fused"
    error = float((rough - exact).norm() / exact.norm())
    assert 1e-4 < error < 0.1


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_leaves_it_out(model, token_ids):
    mask = torch.ones_like(token_ids)
    mask[0, 40:] = 0
    with use_bias(model, draws()) as handle:
        wanted = logits(model, token_ids, attention_mask=mask)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        close(logits(compiled, token_ids, attention_mask=mask), wanted)
        assert handle.calls == 2 * toy.LAYERS
