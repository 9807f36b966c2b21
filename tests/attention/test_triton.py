"""The Triton operator against dense float64 attention: outputs, lse and all gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from attention_oracle import by_stored_lse, error_over_orders
from triton_cases import (
    DEVICE,
    INF,
    MARKS,
    NAN,
    ON_GPU,
    SIGMAS,
    WIDTHS,
    assert_close,
    draw,
    draw_weights,
    operate,
    oracle,
    run,
    structure_and_weights,
    tensors,
)

from plsh_cli.attention import triton_draws
from plsh_cli.attention.fused import Band
from plsh_cli.attention.reference import dense_attention
from plsh_cli.attention.triton_attention import triton_attention
from plsh_cli.attention.triton_draws import Draws

pytestmark = MARKS


@pytest.mark.parametrize("capacity", [1, 2, 31, 65, 300])
@pytest.mark.parametrize(("sampler", "pitch"), [("iid", "real"), ("importance", "real"), ("stratified", "integer")])
def test_tables_name_the_blocks_of_every_draw(capacity, sampler, pitch, monkeypatch):
    monkeypatch.setattr(triton_draws, "STARTS_AT_A_TIME", 100)
    parts = draw((0.2, 1.0, 16.0, 1e9), capacity, 7, sampler, pitch)
    tables = Draws(parts).on(torch.device(DEVICE))
    blocks, first, end = (x.cpu().numpy() for x in (tables.blocks, tables.first, tables.end))
    position = np.arange(capacity)
    for head in range(parts.num_heads):
        starts = parts.block_starts_per_token(head)
        words, before = (
            blocks[head][:, position >> 5, 0].astype(np.int64) & 0xFFFFFFFF,
            blocks[head][:, position >> 5, 1],
        )
        number = before + np.bitwise_count((words << (31 - (position & 31))) & 0xFFFFFFFF)
        assert (number[:, 1:] - number[:, :-1] == (starts[:, 1:] != starts[:, :-1])).all()
        together = (starts[:, :, None] == starts[:, None, :]).any(0)
        assert (first[head] == together.argmax(1)).all()
        assert (end[head] == capacity - together[:, ::-1].argmax(1)).all()


@pytest.mark.parametrize(
    ("n", "m", "d", "h", "g", "num_samples", "causal"),
    [
        (1, 1, 64, 6, 2, 20, True),
        (2, 2, 5, 6, 2, 20, False),
        (63, 63, 5, 6, 2, 20, True),
        (127, 127, 64, 6, 2, 1, False),
        (129, 129, 5, 6, 2, 2, True),
        (129, 129, 64, 2, 1, 20, False),
        (7, 131, 64, 4, 2, 2, True),
    ],
)
def test_draws_equal_dense_float64(n, m, d, h, g, num_samples, causal):
    structure, weights = structure_and_weights("draws", SIGMAS[:h], None, n, m, num_samples)
    inputs = tensors(n, m, d, h, g)
    assert_close(operate(structure, inputs, causal), oracle(weights, inputs, causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("n", "m", "d", "h", "g"),
    [
        (1, 1, 64, 6, 2),
        (2, 2, 5, 1, 1),
        (63, 63, 5, 6, 2),
        (127, 127, 64, 2, 1),
        (129, 129, 5, 6, 2),
        (7, 131, 40, 3, 3),
    ],
)
def test_band_equals_dense_float64(n, m, d, h, g, causal):
    structure, weights = structure_and_weights("band", SIGMAS[:h], WIDTHS[:h], n, m)
    inputs = tensors(n, m, d, h, g)
    assert_close(operate(structure, inputs, causal), oracle(weights, inputs, causal))


@pytest.mark.parametrize(("sampler", "pitch"), [("importance", "real"), ("stratified", "integer")])
def test_samplers_and_more_draws_than_fit_a_word(sampler, pitch):
    structure, weights = structure_and_weights("draws", (0.2, 9.0), None, 37, 37, 41, sampler=sampler, pitch=pitch)
    inputs = tensors(37, 37, 16, 2, 1)
    assert_close(operate(structure, inputs, True), oracle(weights, inputs, True))


def test_unequal_and_zero_weights():
    n = 77
    weights = np.array([[0.5, 0.0, 0.25, 1e-12, 0.25 - 1e-12, 0.0, 0.0]] * 2)
    parts = dataclasses.replace(draw((4.0, 64.0), n, 7), weights=weights)
    inputs = tensors(n, n, 16, 2, 2)
    assert_close(operate(Draws(parts), inputs, True), oracle(draw_weights(parts, n), inputs, True))


def test_one_head_of_draws_serves_all_and_batches_are_independent():
    n, h = 41, 4
    parts = draw((5.0,), n, 3)
    inputs = tensors(n, n, 32, h, 2, batch=3)
    together = operate(Draws(parts), inputs, False)
    assert_close(together, oracle(draw_weights(parts, n), inputs, False))
    alone = operate(Draws(parts), [x[1:2] for x in inputs], False)
    assert all(torch.equal(x[1:2], y) for x, y in zip(together, alone, strict=True))
    again = operate(Draws(parts), inputs, False)
    assert all(torch.equal(x, y) for x, y in zip(together, again, strict=True))


@pytest.mark.parametrize("kind", ["draws", "band"])
def test_spread_scores_keep_every_denominator(kind):
    # Scores of standard deviation 300: a pair of weight 0 in the row's maximum would leave rows without a denominator.
    n, h = 67, 2
    structure, weights = structure_and_weights(kind, (2.0, 16.0), (3, 9), n, n)
    inputs = tensors(n, n, 64, h, h, spread=300.0)
    ours, wanted = operate(structure, inputs, True), oracle(weights, inputs, True)
    assert ours[1].isfinite().all()
    # The kernel for keys and values multiplies transposed tiles, whose sums run in another order.
    dense = lambda *x: by_stored_lse(*x, weights, causal=True, scale=0.125, again=True)  # noqa: E731
    independent = error_over_orders(dense, inputs, wanted)
    for name, got, right, theirs in zip(("out", "lse", "dq", "dk", "dv"), ours, wanted, independent, strict=True):
        assert float((got.double() - right).abs().max()) <= 2.0 * theirs, name


def low_precision_reference(q, k, v, weights, causal, scale):
    """Dense attention with every product's operands and results rounded to q's dtype, independent of the kernels."""
    group, n, m = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    logits = (q.float() @ k.float().transpose(-1, -2)) * scale + weights.float().log()
    if causal:
        logits = logits.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -INF)
    lse = logits.logsumexp(-1)
    terms = (logits - lse[..., None]).exp().to(q.dtype)
    return (terms.float() @ v.float()).to(q.dtype), lse


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["draws", "band"])
def test_low_precision_stays_within_twice_an_independent_reference(kind, dtype):
    n, d, h, g = (513 if DEVICE == "cuda" else 97), 64, 2, 1
    structure, weights = structure_and_weights(kind, (8.0, 128.0), (55, INF), n, n)
    inputs = tensors(n, n, d, h, g, dtype=dtype)
    ours, wanted = operate(structure, inputs, True), oracle(weights, inputs, True)
    reference = run(lambda q, k, v: low_precision_reference(q, k, v, weights, True, d**-0.5), *inputs)
    for name, got, other, right in zip(("out", "lse", "dq", "dk", "dv"), ours, reference, wanted, strict=True):
        band_of_rounding = torch.finfo(dtype).eps * right.abs().max()
        budget = 2.0 * (other.double() - right).abs().max() + (1e-5 if name == "lse" else band_of_rounding)
        assert (got.double() - right).abs().max() <= budget, name


def test_positions_far_from_zero():
    # A bias formed in low precision, or from absolute positions, would be far off here.
    n, d = 16384, 16
    q = torch.ones(1, 1, 1, d, dtype=torch.float16, device=DEVICE)
    k = torch.ones(1, 1, n, d, dtype=torch.float16, device=DEVICE)
    v = torch.zeros(1, 1, n, d, dtype=torch.float16, device=DEVICE)
    v[0, 0, -d:] = torch.eye(d, dtype=torch.float16)
    out, _ = triton_attention(q, k, v, Band((2.0,), (1000,)), causal=True, scale=1.0)
    wanted = torch.softmax(-(n - 1 - torch.arange(n)).double() / 2.0, 0)[-d:]
    assert 0.5 * (out[0, 0, 0].cpu().double() - wanted).abs().sum() < 1e-3


@pytest.mark.parametrize("kind", ["draws", "band"])
@pytest.mark.parametrize(("causal", "dtype"), [(True, torch.int32), (False, torch.int64)])
def test_packed_documents(kind, causal, dtype):
    starts, n = [0, 0, 3, 3, 40, 66, 67, 81], 81
    structure, weights = structure_and_weights(kind, (16.0, 1e9), (9, INF), n, n)
    document = torch.repeat_interleave(torch.arange(len(starts) - 1), torch.tensor(starts).diff())
    inputs = tensors(n, n, 16, 2, 1)
    ours = operate(structure, inputs, causal, cu_seqlens=torch.tensor(starts, dtype=dtype))
    assert_close(ours, oracle(weights * (document[:, None] == document), inputs, causal))


@pytest.mark.parametrize("kind", ["draws", "band"])
def test_key_padding(kind):
    n = 70
    structure, weights = structure_and_weights(kind, (16.0, 1e9), (9, INF), n, n)
    keep = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) < 0.6
    keep[0, :20] = False  # the first rows of one batch entry see nothing under a causal mask
    inputs = tensors(n, n, 16, 2, 1, batch=2)
    for x in inputs[1:3]:
        x[~keep[:, None].expand(x.shape[:3])] = NAN
    ours = operate(structure, inputs, True, key_padding_mask=keep.to(DEVICE))
    clean = [x.nan_to_num(0.0) for x in inputs]
    for i in range(2):
        assert_close([x[i : i + 1] for x in ours], oracle(weights * keep[i], [x[i : i + 1] for x in clean], True))


@pytest.mark.parametrize("kind", ["draws", "band"])
def test_query_offset_places_queries_among_the_keys(kind):
    n, m, offset = 20, 100, 37
    structure, weights = structure_and_weights(kind, (4.0, 64.0), (9, INF), m, m)
    q, k, v, *_ = tensors(n, m, 32, 2, 2)
    seen = torch.ones(n, m, dtype=torch.bool).tril(offset)
    for causal, mask in ((True, seen), (False, torch.ones_like(seen))):
        out, lse = triton_attention(
            *(x.to(DEVICE) for x in (q, k, v)), structure, causal=causal, scale=0.2, q_offset=offset
        )
        wide = (x.double() for x in (q, k, v))
        wanted, wanted_lse = dense_attention(*wide, weights[:, offset : offset + n] * mask, causal=False, scale=0.2)
        assert (out.cpu() - wanted).abs().max() < 1e-5
        assert (lse.cpu() - wanted_lse).abs().max() < 1e-5


@ON_GPU
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("kind", ["draws", "band"])
def test_larger_sizes_equal_dense_float64(kind, dim, causal):
    n = 1025
    structure, weights = structure_and_weights(kind, SIGMAS, WIDTHS, n, n, 20)
    inputs = tensors(n, n, dim, 6, 2, batch=2)
    assert_close(operate(structure, inputs, causal), oracle(weights, inputs, causal))


@ON_GPU
def test_a_thousand_draws():
    n = 331
    structure, weights = structure_and_weights("draws", (2.0, 300.0), None, n, n, 1000)
    inputs = tensors(n, n, 64, 2, 1)
    assert_close(operate(structure, inputs, True), oracle(weights, inputs, True))
