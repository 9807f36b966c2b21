"""Every bias and backend against the float64 oracle: output, lse and all gradients."""

from __future__ import annotations

import pytest
import torch
from attention_oracle import assert_close, assert_within_budget, biases, inputs, low_precision, oracle, partition, run

from plsh_cli.attention.api import BACKENDS, why_not
from plsh_cli.attention.bias import Plsh
from plsh_cli.attention.reference import reference_attention

SHAPES = [
    (2, 1, 1, 1, 1, 5),
    (3, 6, 6, 2, 2, 64),
    (2, 8, 8, 127, 127, 5),
    (1, 12, 3, 257, 257, 64),
    (1, 2, 1, 1025, 1025, 5),
    (2, 6, 3, 13, 257, 5),
    (2, 2, 1, 257, 127, 5),
]
BIASES = list(biases(2, 2))
EXACT = 1e-12
EPS = torch.finfo(torch.float32).eps
ROUNDINGS = 24  # of float32, for a merge of several float32 results
PLAIN = {"q_offset": None, "cu_seqlens": None, "key_padding_mask": None}


def served(backend: str, x: list[torch.Tensor], bias, dtype: torch.dtype, causal: bool) -> bool:
    return backend not in ("reference", "triton") and not why_not(backend, x[0].to(dtype), bias, causal=causal)


def every(backend_types, x, bias, causal, **options):
    """Compare all backends that serve the call with the oracle."""
    options = PLAIN | {"scale": x[0].shape[-1] ** -0.5, "causal": causal} | options
    wanted = oracle(x, bias, **options)
    for dtype in backend_types:
        independent = run(reference_attention, x, bias, dtype, **options) if dtype != torch.float64 else None
        names = [name for name in BACKENDS if served(name, x, bias, dtype, causal)]
        assert "blocks" in names
        for backend in names:
            found, what = run(BACKENDS[backend], x, bias, dtype, **options), f"{backend} in {dtype}"
            assert found[0].dtype == dtype
            assert found[1].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert_close(found, wanted, EXACT if dtype == torch.float64 else 1e-4, what)
            if independent:
                # A weight exp(score - lse) is as exact as its exponent: rows far from all keys have lse = -433.
                exponent = float(wanted[1].masked_fill(wanted[1] == -torch.inf, 0.0).abs().max())
                assert_within_budget(found, wanted, independent, EPS * (ROUNDINGS + exponent), what)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backends_equal_the_oracle(shape, kind, causal):
    b, h, g, n, m, d = shape
    # More queries than keys: aligned at the end if causal (the first rows are empty), at the start if not.
    offset = 0 if n > m and not causal else None
    bias = biases(h, n if offset == 0 else m)[kind]
    every([torch.float64, torch.float32], inputs(b, h, g, n, m, d), bias, causal, q_offset=offset)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", BIASES)
def test_packed_documents_padding_and_offsets(kind, causal):
    bias = biases(2, 127)[kind]
    cu_seqlens = torch.tensor([0, 0, 3, 3, 40, 41, 127], dtype=torch.int32)
    every([torch.float64], inputs(1, 2, 1, 127, 127, 5), bias, causal, cu_seqlens=cu_seqlens)
    keep = torch.rand(3, 127, generator=torch.Generator().manual_seed(1)) < 0.3
    keep[0] = False
    x = inputs(3, 2, 2, 127, 127, 5)
    every([torch.float64, torch.float32], x, bias, causal, key_padding_mask=keep)
    every([torch.float64], x[:1] + [y[:, :, :61] for y in x[1:]], biases(2, 147)[kind], causal, q_offset=20)
    every([torch.float64], [x[0][:, :, :31], *x[1:]], bias, causal, q_offset=17)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["none", "alibi", "window", "plsh", "plsh, stratified, integer"])
def test_16_bit_errors_within_twice_those_of_a_dense_16_bit_reference(kind, dtype):
    x, bias = inputs(1, 4, 2, 257, 257, 64), biases(4, 257)[kind]
    wanted = oracle(x, bias, dtype, causal=True)
    independent = run(low_precision, x, bias, dtype, causal=True)
    for backend, function in BACKENDS.items():
        if served(backend, x, bias, dtype, True):
            found = run(function, x, bias, dtype, causal=True, scale=0.125, **PLAIN)
            assert_within_budget(found, wanted, independent, torch.finfo(dtype).eps, f"{backend} in {dtype}")


def test_the_reference_is_a_loop_over_numbers():
    x, parts = inputs(1, 2, 1, 11, 13, 3), partition([2.0, 5.0], 13, 4, "importance")
    out, lse = reference_attention(*x, Plsh(parts), causal=True, scale=0.5)
    q, k, v = x
    for head in range(2):
        starts = parts.block_starts_per_token(head)
        for i in range(11):
            p = i + 2
            weights = [
                sum(w for w, row in zip(parts.weights[head], starts, strict=True) if row[p] == row[j])
                for j in range(p + 1)
            ]
            terms = torch.tensor(weights) * (0.5 * k[0, 0, : p + 1] @ q[0, head, i]).exp()
            assert abs(float(lse[0, head, i] - terms.sum().log())) < 1e-12
            torch.testing.assert_close(out[0, head, i], terms @ v[0, 0, : p + 1] / terms.sum(), rtol=1e-12, atol=1e-12)
