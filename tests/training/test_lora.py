"""Adapters: where they go, how many parameters they have, and that they change nothing at first."""

from __future__ import annotations

import pytest
import torch
import toy

from plsh_cli.errors import MessageError
from plsh_cli.models import BiasSpec, use_bias
from plsh_cli.training.lora import LoraRecipe, adapter_parameters, check_targets, trainable, with_adapters

RECIPE = LoraRecipe(r=5, alpha=10.0, dropout=0.1, targets=("q_proj", "k_proj", "v_proj", "o_proj"), use_rslora=False)
IDS = torch.arange(29)[None]


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma3"])
def test_parameters_are_counted_without_making_them(name):
    model = toy.toy_model(name)
    counted = adapter_parameters(model.config, RECIPE)
    assert counted == 3 * 5 * 2 * (72 + 72 + 72 + 24)
    assert trainable(with_adapters(model, RECIPE, 0)) == counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_first_logits_are_the_models_own(dtype):
    model = toy.toy_model("llama").to(dtype)
    use_bias(model, BiasSpec("plsh", num_samples=5, seed=4, capacity=37))
    before = model(IDS).logits
    whole = with_adapters(model, RECIPE, 0).eval()
    assert torch.equal(whole(IDS).logits, before)
    assert torch.equal(model(IDS).logits, before)
    kinds = {weight.dtype for weight in whole.parameters() if weight.requires_grad}
    assert kinds == {torch.float32}, "an adapter is trained in float32 whatever its base is kept in"
    assert {weight.dtype for weight in whole.parameters() if not weight.requires_grad} == {dtype}


def test_weights_depend_on_the_seed_alone_and_leave_other_streams_alone():
    def weights(seed):
        whole = with_adapters(toy.toy_model("llama"), RECIPE, seed)
        return torch.cat([value.flatten() for name, value in whole.named_parameters() if "lora_A" in name])

    torch.manual_seed(1)
    first, after = weights(3), torch.rand(1)
    torch.manual_seed(0)  # toy_model's own
    toy.toy_model("llama")
    assert torch.equal(after, torch.rand(1)), "adapters draw nothing from torch's own generator"
    assert torch.equal(weights(3), first)
    assert not torch.equal(weights(4), first)


def test_gradients_are_those_of_the_merged_model():
    """The chain rule through W + (alpha / r) B A, against the gradient of the whole weight."""
    model = toy.toy_model("llama")
    use_bias(model, BiasSpec("alibi", parameters=tuple((float(3 + head),) for head in range(9))))
    whole = with_adapters(model, LoraRecipe(5, 10.0, 0.0, ("q_proj",), False), 0).double()
    torch.manual_seed(2)
    with torch.no_grad():
        for name, value in whole.named_parameters():
            if "lora_B" in name:
                value.copy_(0.1 * torch.randn_like(value))
    whole(input_ids=IDS, labels=IDS).loss.backward()
    layer = model.model.layers[1].self_attn.q_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    found = (a.grad.clone(), b.grad.clone())
    merged = whole.merge_and_unload()
    weight = merged.model.layers[1].self_attn.q_proj.weight.requires_grad_(True)
    merged(input_ids=IDS, labels=IDS).loss.backward()
    assert torch.allclose(found[0], 2.0 * b.detach().T @ weight.grad, rtol=1e-9, atol=1e-14)
    assert torch.allclose(found[1], 2.0 * weight.grad @ a.detach().T, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "there"), [("gpt2", "c_attn, c_proj, c_fc"), ("bloom", "query_key_value, dense, dense_h_to_4h")]
)
def test_a_model_without_such_modules_lists_those_it_has(name, there):
    with pytest.raises(MessageError, match=rf"has no linear module q_proj or .*; it has {there}") as caught:
        check_targets(toy.toy_model(name), RECIPE.targets)
    assert "lm_head" not in str(caught.value)
    assert trainable(with_adapters(toy.toy_model("gpt2"), LoraRecipe(2, 4.0, 0.0, ("c_attn",), False), 0)) > 0
