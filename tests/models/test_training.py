"""Gradients of a model under a bias, with and without gradient checkpointing."""

from __future__ import annotations

import pytest
import torch
import toy
from model_biases import BIASES, draws

from plsh_cli.models import use_bias


@pytest.fixture(params=sorted(BIASES))
def bias(request):
    return BIASES[request.param]()


@pytest.fixture
def model():
    return toy.toy_model("llama").train()


@pytest.fixture
def padded(token_ids):
    mask = torch.ones(2, 61, dtype=torch.int64)
    mask[1, 40:] = 0
    return {"input_ids": token_ids.repeat(2, 1), "attention_mask": mask, "labels": token_ids.repeat(2, 1)}


def checkpoint(model, reentrant=False):
    # Its name in newer transformers, and in older ones.
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})


def gradients(model, inputs, before_backward=lambda: None):
    model.zero_grad()
    loss = model(**inputs, use_cache=False).loss
    before_backward()
    loss.backward()
    return {name: value.grad.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("backend", ["auto", "blocks"])
def test_gradients_are_those_of_the_reference(model, bias, padded, backend):
    with use_bias(model, bias, backend="reference"):
        wanted = gradients(model, padded)
    with use_bias(model, bias, backend=backend):
        got = gradients(model, padded)
    for name, grad in wanted.items():
        torch.testing.assert_close(got[name], grad, rtol=0, atol=5e-5 * float(grad.abs().max()))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients_to_the_bit(model, bias, padded, reentrant):
    with use_bias(model, bias) as handle:
        wanted = gradients(model, padded)
        once = handle.calls
        checkpoint(model, reentrant)
        got = gradients(model, padded)
        assert handle.calls == once + 2 * once
    assert all(torch.equal(got[name], grad) for name, grad in wanted.items())


def test_a_recomputation_takes_the_draws_of_its_forward_pass(model, padded):
    with use_bias(model, draws(seed=0)) as handle:
        wanted = gradients(model, padded)
        checkpoint(model)
        got = gradients(model, padded, lambda: handle.set(draws(seed=1)))
        other = gradients(model, padded)
    assert all(torch.equal(got[name], grad) for name, grad in wanted.items())
    assert not torch.equal(other["lm_head.weight"], wanted["lm_head.weight"])


def test_new_draws_every_step_train_the_model(model, padded):
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    with use_bias(model, draws(), rope="drop") as handle:
        for step in range(12):
            handle.set(draws(seed=step))
            loss = model(**padded, use_cache=False).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_another_number_type(model, padded):
    model = model.to(torch.bfloat16)
    with use_bias(model, draws()) as handle:
        got = gradients(model, padded)
        assert handle.backend == "fused"
    assert all(bool(grad.isfinite().all()) and grad.dtype == torch.bfloat16 for grad in got.values())
