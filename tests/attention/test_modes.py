"""Attention under torch's modes and transforms, from several threads, in child processes, and with copied biases."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from multiprocessing import get_context

import pytest
import torch
from attention_oracle import inputs, partition

from plsh_cli.attention.api import attention, why_not
from plsh_cli.attention.bias import Alibi, Plsh

SIGMA = [1.0, 4.0, 16.0, 64.0]
NAMES = ["fused", "blocks", "augmented", "reference"]


def single(n: int = 67, seed: int = 0) -> list[torch.Tensor]:
    return [y.float() for y in inputs(2, 4, 2, n, n, 8, seed=seed)]


def bias_for(name: str, n: int = 67, seed: int = 0) -> Alibi | Plsh:
    bias = Alibi(SIGMA) if name == "augmented" else Plsh(partition(SIGMA, n, 5, seed=seed))
    if reason := why_not(name, single()[0], bias, causal=True):
        pytest.skip(reason)
    return bias


def with_gradients(call, x: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [y.clone().requires_grad_() for y in x]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_some_inputs_only(name):
    x, bias = single(), bias_for(name)
    whole = with_gradients(lambda *y: attention(*y, bias, backend=name), x)
    for i in range(3):
        leaves = [y.clone().requires_grad_(j == i) for j, y in enumerate(x)]
        attention(*leaves, bias, backend=name).square().sum().backward()
        assert [y.grad is not None for y in leaves] == [j == i for j in range(3)]
        assert torch.equal(leaves[i].grad, whole[1 + i])


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_and_transforms_are_refused(name):
    x, bias = single(), bias_for(name)
    leaves = [y.requires_grad_() for y in x]
    (grad,) = torch.autograd.grad(attention(*leaves, bias, backend=name).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.vmap(lambda *y: attention(*y, bias, backend=name))(*(y[None] for y in x))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_neither_types_nor_numbers(name):
    x, bias = single(), bias_for(name)
    wanted = attention(*x, bias, backend=name)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(*x, bias, backend=name), wanted)
        assert attention(*(y.bfloat16() for y in x), bias, backend=name).dtype == torch.bfloat16
    with torch.inference_mode():
        assert torch.equal(attention(*x, bias, backend=name), wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_torch_compile_leaves_the_call_as_it_is(name):
    # 6 lengths, each with fresh draws: the code around the call compiles once for one length and once for any.
    torch._dynamo.reset()
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    def block(q, k, v, bias):
        return attention(q.sin(), k.cos(), 2 * v, bias, backend=name).sin()

    compiled = torch.compile(block, backend=count)
    for step in range(6):
        x, bias = single(60 + step, step), bias_for(name, 60 + step, step)
        found, wanted = (with_gradients(lambda *y, f=f: f(*y, bias), x) for f in (compiled, block))  # noqa: B023
        assert same(found, wanted)
    assert len(graphs) == 4


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_numbers_are_refused(name):
    from torch._subclasses import FakeTensorMode

    x, bias = single(), bias_for(name)
    with FakeTensorMode() as mode, pytest.raises((ValueError, RuntimeError)):
        attention(*(mode.from_tensor(y) for y in x), bias, backend=name)


@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_computes_the_same(name):
    x, bias = single(), bias_for(name)
    call = lambda *y: attention(*y, bias, backend=name)  # noqa: E731
    again = lambda *y: torch.utils.checkpoint.checkpoint(call, *y, use_reentrant=False)  # noqa: E731
    assert same(with_gradients(again, x), with_gradients(call, x))


@pytest.mark.parametrize("name", NAMES)
def test_threads_of_the_caller_at_once(name):
    # One bias object for all: what backends prepare from it is made while others ask for it.
    x, bias, results = single(), bias_for(name), [None] * 8

    def work(i: int) -> None:
        results[i] = with_gradients(lambda *y: attention(*y, bias, backend=name), x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(one, results[0]) for one in results)


def child(name: str, x: list[torch.Tensor], bias, wanted: list[torch.Tensor]) -> None:
    torch.set_num_threads(1)  # torch's own pool does not survive a fork
    assert same(with_gradients(lambda *y: attention(*y, bias, backend=name), x), wanted)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_forked_process_computes_the_same(name):
    # As in the workers of a DataLoader, after the kernels were used in the parent.
    x, bias = single(), bias_for(name)
    torch.set_num_threads(1)
    wanted = with_gradients(lambda *y: attention(*y, bias, backend=name), x)
    process = get_context("fork").Process(target=child, args=(name, x, bias, wanted))
    process.start()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "augmented"])
def test_copies_of_a_bias_outlive_it(name):
    # What a backend prepared may be memory that goes with the original.
    x, bias = single(), bias_for(name)
    wanted = attention(*x, bias, backend=name)
    stored = io.BytesIO()
    torch.save(bias, stored)
    stored.seek(0)
    copies = [copy.copy(bias), copy.deepcopy(bias), pickle.loads(pickle.dumps(bias))]
    copies += [torch.load(stored, weights_only=False), Plsh(bias.parts)]
    assert not any(one.prepared for one in copies)
    del bias
    for one in copies:
        assert torch.equal(attention(*x, one, backend=name), wanted)


def test_copies_of_prepared_draws_outlive_them():
    bias_for("fused")
    from plsh_cli.attention.fused import Draws, fused_attention

    x, parts = single(), partition(SIGMA, 67, 5)
    draws = Draws(parts)
    wanted = fused_attention(*x, draws, causal=True)
    copies = [copy.deepcopy(draws), pickle.loads(pickle.dumps(draws))]
    assert all(one.table.pointer != draws.table.pointer for one in copies)
    del draws
    for one in copies:
        assert same(fused_attention(*x, one, causal=True), wanted)
