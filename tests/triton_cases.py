"""Inputs, the float64 oracle and the marks that the tests of the Triton operator share.

They run on the GPU where there is one, else in Triton's interpreter, which is slow: sizes are small, and what needs
larger ones runs on a GPU only.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of triton
pytest.importorskip("triton")

from plsh_cli.attention import triton_attention as operator
from plsh_cli.attention.fused import Band
from plsh_cli.attention.reference import dense_attention
from plsh_cli.attention.triton_attention import triton_attention
from plsh_cli.attention.triton_draws import Draws
from plsh_cli.positional import kernels, matrices, partitions, samplers

INF, NAN = float("inf"), float("nan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
MARKS = [
    # numpy, which the interpreter computes with, warns of inf - inf and the like.
    pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning"),
    pytest.mark.skipif(
        DEVICE == "cpu" and not operator.interpreted(), reason="triton was imported without TRITON_INTERPRET"
    ),
]
SIGMAS = (0.2, 1e9, 2.0, 16.0, 64.0, 300.0)
WIDTHS = (3, INF, 10, INF, 0, 70)


def draw(sigmas, n, num_samples, sampler="iid", pitch="real") -> partitions.PartitionSet:
    sets = [
        samplers.draw(kernels.alibi(x), n, num_samples, np.random.default_rng(i), sampler=sampler, pitch=pitch)
        for i, x in enumerate(sigmas)
    ]
    return partitions.stack(sets)


def draw_weights(parts: partitions.PartitionSet, n: int) -> torch.Tensor:
    """M~ per head for the last n positions as queries, (h, n, m)."""
    whole = [matrices.m_tilde(parts.head(i)) for i in range(parts.num_heads)]
    return torch.tensor(np.stack(whole))[:, parts.capacity - n :]


def band_weights(band: Band, n: int, m: int) -> torch.Tensor:
    """exp(-distance / sigma) up to the width, (h, n, m)."""
    distance = (torch.arange(n)[:, None] + (m - n) - torch.arange(m)).abs().double()
    return torch.stack(
        [torch.exp(-distance / s) * (distance <= w) for s, w in zip(band.sigma, band.width, strict=True)]
    )


def structure_and_weights(kind: str, sigmas, widths, n: int, m: int, num_samples: int = 3, **options):
    if kind == "draws":
        parts = draw(sigmas, m, num_samples, **options)
        return Draws(parts), draw_weights(parts, n)
    band = Band(sigmas, widths)
    return band, band_weights(band, n, m)


def tensors(n, m, d, h, g, batch=1, dtype=torch.float32, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, h, n, d), (batch, g, m, d), (batch, g, m, d), (batch, h, n, d), (batch, h, n))
    q, k, v, d_out, d_lse = (torch.randn(shape, generator=generator) for shape in shapes)
    return [(q * spread).to(dtype), k.to(dtype), v.to(dtype), d_out.to(dtype), d_lse]


def run(function, q, k, v, d_out, d_lse):
    """Return out, lse, dq, dk, dv; rows without keys take no part in the gradient through lse."""
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out, lse = function(q, k, v)
    loss = (out.double() * d_out.double()).sum() + (
        torch.where(lse.isfinite(), lse, 0.0).double() * d_lse.double()
    ).sum()
    return [x.detach().cpu() for x in (out, lse, *torch.autograd.grad(loss, (q, k, v)))]


def operate(structure, inputs, causal, **options):
    return run(
        lambda q, k, v: triton_attention(q, k, v, structure, causal=causal, **options), *(x.to(DEVICE) for x in inputs)
    )


def oracle(weights, inputs, causal):
    """Dense attention in float64 on the same inputs."""
    scale = inputs[0].shape[-1] ** -0.5
    wide = [x.double() for x in inputs]
    return run(lambda q, k, v: dense_attention(q, k, v, weights, causal=causal, scale=scale), *wide)


def assert_close(ours, wanted, tolerance=1e-5):
    """Largest error relative to the largest entry, per tensor; an lse has an absolute error, in nats."""
    for name, got, right in zip(("out", "lse", "dq", "dk", "dv"), ours, wanted, strict=True):
        seen = right.isfinite()
        assert torch.equal(got.isfinite(), seen), name
        size = 1.0 if name == "lse" else max(right.abs().max().item(), 1e-30)
        assert ((got.double() - right)[seen].abs().max().item() if seen.any() else 0.0) <= tolerance * size, name
