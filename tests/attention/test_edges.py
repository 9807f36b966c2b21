"""Calls at the edge of what attention takes: nothing in them, odd layouts, scales that are not positive."""

from __future__ import annotations

import math

import pytest
import torch
from attention_oracle import assert_close, assert_within_budget, biases, inputs, oracle, partition, run

from plsh_cli.attention.api import BACKENDS, attention, why_not
from plsh_cli.attention.bias import Alibi, Plsh
from plsh_cli.attention.reference import reference_attention

BIASES = list(biases(2, 2))
PLAIN = {"causal": True, "scale": None, "q_offset": None, "cu_seqlens": None, "key_padding_mask": None}


def backends(q: torch.Tensor, bias, causal: bool = True, scale: float | None = None) -> list[str]:
    names = [name for name in BACKENDS if name != "triton" and not why_not(name, q, bias, causal=causal)]
    return [name for name in names if name != "augmented" or scale != 0.0]


@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize(("b", "n", "m"), [(0, 7, 7), (2, 0, 7), (2, 7, 0), (0, 0, 0), (2, 0, 0)])
def test_empty_tensors(b, n, m, kind):
    x, bias = inputs(b, 2, 1, n, m, 5), biases(2, max(m, 1))[kind]
    for name in backends(x[0].float(), bias):
        out, lse, *grads = run(BACKENDS[name], x, bias, torch.float32, **PLAIN)
        assert out.shape == x[0].shape, name
        assert bool((out == 0).all()), name
        assert bool((lse == -math.inf).all()), name
        assert [g.shape for g in grads] == [y.shape for y in x], name
        assert all(bool((g == 0).all()) for g in grads), name


@pytest.mark.parametrize("kind", BIASES)
def test_queries_before_all_keys(kind):
    x, bias = inputs(1, 2, 1, 7, 11, 5), biases(2, 11)[kind]
    for offset in (-1000, -8, -7, -6):
        options = PLAIN | {"q_offset": offset}
        wanted = oracle(x, bias, **options)
        assert bool((wanted[1][:, :, : min(7, -offset)] == -math.inf).all())
        for name in backends(x[0].float(), bias):
            assert_close(run(BACKENDS[name], x, bias, torch.float32, **options), wanted, 3e-6, name)


@pytest.mark.parametrize("kind", BIASES)
def test_no_tokens_in_documents(kind):
    x, bias = inputs(1, 2, 1, 0, 0, 5), biases(2, 1)[kind]
    for name in backends(x[0].float(), bias):
        out = attention(*(y.float() for y in x), bias, backend=name, cu_seqlens=torch.tensor([0, 0]))
        assert out.shape == (1, 2, 0, 5), name


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [0.0, -0.3, 3.0])
@pytest.mark.parametrize("kind", BIASES)
def test_any_scale(kind, scale, causal):
    # torch's kernels multiply the -inf of a causal mask by the scale.
    x, bias = inputs(2, 2, 1, 61, 61, 5), biases(2, 61)[kind]
    options = PLAIN | {"causal": causal, "scale": scale}
    wanted = oracle(x, bias, **options)
    for dtype in (torch.float64, torch.float32):
        for name in backends(x[0].to(dtype), bias, causal, scale):
            assert_close(
                run(BACKENDS[name], x, bias, dtype, **options), wanted, 1e-12 if dtype.itemsize == 8 else 1e-4, name
            )


def odd_layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """The same numbers under other strides; what lies between them is NaN."""
    n, d = x.shape[2:]
    nan = torch.full_like(x, math.nan)
    return [
        x.transpose(1, 2).contiguous().transpose(1, 2),
        x.mT.contiguous().mT,
        x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        torch.stack((x, nan), dim=-1)[..., 0],
        torch.cat((nan[..., :1], x, nan[..., :2]), dim=-1)[..., 1 : 1 + d],
        torch.cat((nan[:, :, :1], x, nan[:, :, :1]), dim=2)[:, :, 1 : 1 + n],
    ]


@pytest.mark.parametrize("d", [1, 3, 16])
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strides_change_nothing(dtype, spoilt, d):
    # With a head dim of 1 the last stride says nothing, and operations on the tensor may keep it or not.
    x = [y.to(dtype) for y in inputs(2, 4, 2, 37, 37, d)]
    if spoilt:
        x[0][1, 0, 5, 0] = math.nan
    for bias in (Plsh(partition([0.5, 2.0, 5.0, 20.0], 37, 4)), Alibi(3.0)):
        for name in backends(x[0], bias):
            wanted = run(BACKENDS[name], x, bias, dtype, **PLAIN)
            for layout in range(6):
                views = [odd_layouts(y)[layout].requires_grad_() for y in x]
                out, lse = BACKENDS[name](*views, bias, **PLAIN)
                generator = torch.Generator().manual_seed(99)
                weights = [
                    torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in (out, lse)
                ]
                found = [out, lse, *torch.autograd.grad((out, lse), views, weights)]
                for part, other in zip(found, wanted, strict=True):
                    torch.testing.assert_close(part.detach(), other, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_expanded_tensors():
    x = [y.float() for y in inputs(1, 1, 1, 37, 37, 5)]
    wide = [y.expand(3, h, 37, 5) for y, h in zip(x, (4, 2, 2), strict=True)]
    for bias in (Plsh(partition([2.0], 37, 4)), Alibi(3.0)):
        for name in backends(wide[0], bias):
            one, all_of_them = (attention(*y, bias, backend=name) for y in (x, wide))
            torch.testing.assert_close(all_of_them, one.expand(3, 4, 37, 5), rtol=1e-6, atol=1e-6)


def test_a_merge_of_1000_draws_is_as_exact_as_one():
    # Sums relative to the largest lse: an lse of 300 would otherwise cost a rounding of 1.5e-5 in each of the draws.
    x, bias = inputs(1, 1, 1, 61, 61, 5), Plsh(partition([9.0], 61, 1000))
    x[0][..., 0], x[1][..., 0] = 30.0, 10.0
    options = PLAIN | {"scale": 1.0}
    wanted = oracle(x, bias, **options)
    assert float(wanted[1].min()) > 290.0
    independent = run(reference_attention, x, bias, torch.float32, **options)
    # As for a single draw: a few roundings, and that of the exponent, whose size is that of the lse.
    band = torch.finfo(torch.float32).eps * (24 + float(wanted[1].max()))
    for name in backends(x[0].float(), bias):
        assert_within_budget(run(BACKENDS[name], x, bias, torch.float32, **options), wanted, independent, band, name)
