"""The fused CPU operator against dense float64 attention: outputs, lse, all gradients, and its edges."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from attention_oracle import by_stored_lse, error_over_orders

from plsh_cli.attention.fused import Band, Draws, fused_attention
from plsh_cli.attention.reference import dense_attention
from plsh_cli.positional import kernels, matrices, partitions, samplers

INF = float("inf")
SIGMAS = (0.2, 2.0, 16.0, 64.0, 300.0, 1e9, 8.0, 4.0, 1.0, 32.0, 128.0, 256.0)
WIDTHS = (3, 10, 1e9, INF, 500, INF, 0, 70, 4, 64, 63, 1)
# (n, m, d, query heads, key heads)
SHAPES = (
    (1, 1, 64, 2, 1),
    (2, 2, 5, 1, 1),
    (1, 33, 64, 6, 2),
    (127, 127, 5, 6, 6),
    (257, 257, 64, 12, 3),
    (1025, 1025, 64, 8, 8),
    (131, 131, 128, 2, 1),
    (131, 131, 96, 4, 2),
    (33, 257, 64, 8, 4),
    (65, 1031, 16, 3, 1),
)


def draw(sigmas, n, num_samples, seed=0, sampler="iid", pitch="real") -> partitions.PartitionSet:
    return partitions.stack(
        [
            samplers.draw(
                kernels.alibi(sigma), n, num_samples, np.random.default_rng(seed + i), sampler=sampler, pitch=pitch
            )
            for i, sigma in enumerate(sigmas)
        ]
    )


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


def tensors(n, m, d, h, g, batch=2, dtype=torch.float32, spread=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
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
    return (out.detach(), lse.detach(), *torch.autograd.grad(loss, (q, k, v)))


def both(structure, weights, inputs, causal, **options):
    """Return (result, oracle) of `run`: the operator, and dense attention in float64 on the same inputs."""
    scale = inputs[0].shape[-1] ** -0.5
    ours = run(lambda q, k, v: fused_attention(q, k, v, structure, causal=causal, scale=scale, **options), *inputs)
    wide = [x.double() for x in inputs]
    oracle = run(lambda q, k, v: dense_attention(q, k, v, weights, causal=causal, scale=scale), *wide)
    return ours, oracle


def assert_close(ours, oracle, tolerance):
    """Largest error relative to the largest entry, per tensor; an lse has an absolute error, in nats."""
    for name, got, wanted in zip(("out", "lse", "dq", "dk", "dv"), ours, oracle, strict=True):
        got = got.double()
        seen = wanted.isfinite()
        assert torch.equal(got.isfinite(), seen), name
        size = 1.0 if name == "lse" else max(wanted.abs().max().item(), 1e-30)
        assert ((got - wanted)[seen].abs().max().item() if seen.any() else 0.0) <= tolerance * size, name


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_band_equals_dense_float64(shape, causal):
    n, m, _, h, _ = shape
    band = Band(SIGMAS[:h], WIDTHS[:h])
    assert_close(*both(band, band_weights(band, n, m), tensors(*shape), causal), 1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_draws_equal_dense_float64(shape, causal):
    n, m, _, h, _ = shape
    parts = draw(SIGMAS[:h], m, 20)
    assert_close(*both(Draws(parts), draw_weights(parts, n), tensors(*shape), causal), 1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_samples", [1, 256, 1000])
@pytest.mark.parametrize("sampler", ["iid", "stratified", "importance"])
@pytest.mark.parametrize("pitch", ["real", "integer"])
def test_samplers_and_numbers_of_draws(pitch, sampler, num_samples, causal):
    n = 331
    parts = draw((2.0, 16.0, 300.0), n, num_samples, sampler=sampler, pitch=pitch)
    assert_close(*both(Draws(parts), draw_weights(parts, n), tensors(n, n, 32, 3, 3, batch=1), causal), 1e-5)


def test_unequal_and_zero_weights():
    n = 193
    parts = draw((4.0, 64.0), n, 7)
    weights = np.array([[0.5, 0.0, 0.25, 1e-12, 0.25 - 1e-12, 0.0, 0.0]] * 2)
    parts = dataclasses.replace(parts, weights=weights)
    ours, oracle = both(Draws(parts), draw_weights(parts, n), tensors(n, n, 16, 2, 2), True)
    assert_close(ours, oracle, 1e-5)


def test_fixed_blocks_are_one_draw():
    n, lengths = 1000, (4.0, 32.0, 256.0)
    columns = [np.array([[x] for x in lengths]), np.zeros((3, 1)), np.ones((3, 1)), np.zeros((3, 1), dtype=np.int64)]
    parts = partitions.PartitionSet(*columns, capacity=n, pitch="integer")
    position = torch.arange(n)
    weights = torch.stack([(position[:, None] // x == position // x).double() for x in lengths])
    for causal in (True, False):
        assert_close(*both(Draws(parts), weights, tensors(n, n, 32, 3, 1, batch=1), causal), 1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_spread_scores_keep_every_denominator(causal):
    # Scores of standard deviation 300: a pair of weight 0 in the row's maximum would leave rows without a denominator.
    n, h = 257, 4
    parts = draw((2.0, 8.0, 16.0, 64.0), n, 20)
    inputs = tensors(n, n, 64, h, h, spread=300.0)
    weights = draw_weights(parts, n)
    ours, oracle = both(Draws(parts), weights, inputs, causal)
    assert ours[1].isfinite().all()
    independent = error_over_orders(lambda *x: by_stored_lse(*x, weights, causal=causal, scale=0.125), inputs, oracle)
    for name, got, wanted, theirs in zip(("out", "lse", "dq", "dk", "dv"), ours, oracle, independent, strict=True):
        assert float((got.double() - wanted).abs().max()) <= 2.0 * theirs, name


def low_precision_reference(q, k, v, weights, causal, scale):
    """Dense attention with each product's operands and results rounded to the dtype of q, apart from the kernels."""
    dtype = q.dtype
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    n, m = q.shape[2], k.shape[2]
    logits = (q.float() @ k.float().transpose(-1, -2)) * scale + weights.float().log()
    if causal:
        logits = logits.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -INF)
    lse = logits.logsumexp(-1)
    terms = (logits - lse[..., None]).exp().to(dtype)
    return (terms.float() @ v.float()).to(dtype), lse


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["draws", "band"])
def test_low_precision_stays_within_twice_an_independent_reference(kind, causal, dtype):
    shape = n, m, d, _h, _g = 257, 257, 64, 6, 3
    parts = draw((2.0, 8.0, 16.0, 64.0, 128.0, 256.0), m, 20)
    band = Band((2.0, 8.0, 16.0, 64.0, 128.0, 256.0), (INF, 55, INF, 441, INF, INF))
    structure, weights = (Draws(parts), draw_weights(parts, n)) if kind == "draws" else (band, band_weights(band, n, m))
    inputs = tensors(*shape, dtype=dtype)
    ours, oracle = both(structure, weights, inputs, causal)
    reference = run(lambda q, k, v: low_precision_reference(q, k, v, weights, causal, d**-0.5), *inputs)
    for name, got, other, wanted in zip(("out", "lse", "dq", "dk", "dv"), ours, reference, oracle, strict=True):
        band_of_rounding = torch.finfo(dtype).eps * wanted.abs().max()
        budget = 2.0 * (other.double() - wanted).abs().max() + (1e-5 if name == "lse" else band_of_rounding)
        assert (got.double() - wanted).abs().max() <= budget, name
        mean_budget = 2.0 * (other.double() - wanted).abs().mean() + 1e-6 * wanted.abs().mean()
        if name != "lse":
            assert (got.double() - wanted).abs().mean() <= mean_budget, name


def test_low_precision_positions_do_not_drift():
    # A bias formed in bf16 as slope x position would be off by 0.76 here.
    n, d = 16384, 16
    q = k = torch.ones(1, 1, 1, d, dtype=torch.bfloat16)
    k = k.expand(1, 1, n, d).contiguous()
    v = torch.zeros(1, 1, n, d, dtype=torch.bfloat16)
    v[0, 0, -d:] = torch.eye(d, dtype=torch.bfloat16)
    out, _ = fused_attention(q, k, v, Band((2.0,), (INF,)), causal=True, scale=1.0)
    wanted = torch.softmax(-(n - 1 - torch.arange(n)).double() / 2.0, 0)[-d:]
    assert 0.5 * (out[0, 0, 0].double() - wanted).abs().sum() < 1e-3


def structures(h, n):
    sigmas = SIGMAS[1 : 1 + h]
    return {"draws": Draws(draw(sigmas, n, 20)), "band": Band(sigmas, [INF, 9, 70, 200, INF, 1][:h])}


@pytest.mark.parametrize("kind", ["draws", "band"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_do_not_depend_on_threads_or_batch(kind, dtype):
    n, h = 701, 4
    structure = structures(h, n)[kind]
    inputs = tensors(n, n, 64, h, 2, batch=8, dtype=dtype)
    for causal in (True, False):
        call = lambda q, k, v, threads=1: fused_attention(q, k, v, structure, causal=causal, num_threads=threads)  # noqa: B023, E731
        first = run(call, *inputs)
        for threads in (2, 3):
            again = run(lambda q, k, v: call(q, k, v, threads), *inputs)  # noqa: B023
            assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
        alone = run(call, *(x[3:4] for x in inputs))
        assert all(torch.equal(x[3:4], y) for x, y in zip(first, alone, strict=True))


@pytest.mark.parametrize("kind", ["draws", "band"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_future_tokens_never_change_past_outputs(kind, dtype):
    n, h = 333, 4
    structure = structures(h, n)[kind]
    q, k, v, *_ = tensors(n, n, 64, h, 2, dtype=dtype)
    out, lse = fused_attention(q, k, v, structure, causal=True)
    for cut in (1, 100, 332):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, :, cut:] = 7.0
        other, other_lse = fused_attention(*changed, structure, causal=True)
        assert torch.equal(out[:, :, :cut], other[:, :, :cut])
        assert torch.equal(lse[:, :, :cut], other_lse[:, :, :cut])


@pytest.mark.parametrize("kind", ["draws", "band"])
def test_decoding_equals_the_full_pass(kind):
    n, h = 133, 4
    parts = draw(SIGMAS[1 : 1 + h], n, 20)
    band = structures(h, n)["band"]
    q, k, v, *_ = tensors(n, n, 64, h, 2)
    whole, whole_lse = fused_attention(q, k, v, Draws(parts) if kind == "draws" else band, causal=True)
    for i in (0, 1, 63, 64, 100, 132):
        structure = Draws(parts.prefix(i + 1)) if kind == "draws" else band
        step, lse = fused_attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], structure, causal=True)
        torch.testing.assert_close(step[:, :, 0], whole[:, :, i], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse[:, :, 0], whole_lse[:, :, i], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["draws", "band"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("number", [float("nan"), INF])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_not_finite_numbers_reach_only_rows_that_see_them(kind, causal, number, which, dtype):
    n, h, place = 150, 2, 70
    sigmas = (2.0, 8.0)
    parts = draw(sigmas, n, 3)
    band = Band(sigmas, (5, 20))
    structure, weights = (Draws(parts), draw_weights(parts, n)) if kind == "draws" else (band, band_weights(band, n, n))
    inputs = tensors(n, n, 16, h, h, dtype=dtype)
    call = lambda q, k, v: fused_attention(q, k, v, structure, causal=causal)  # noqa: E731
    clean = run(call, *inputs)
    dirty_inputs = [x.clone() for x in inputs]
    dirty_inputs[which][1, 0, place, 3] = number
    dirty = run(call, *dirty_inputs)
    sees = weights > 0
    if causal:
        sees = sees & torch.ones(n, n, dtype=torch.bool).tril()
    # Rows of head 0 of batch entry 1 that the number may reach.
    queries = torch.zeros(n, dtype=torch.bool)
    queries[place] = True
    if which:
        queries = sees[0, :, place]
    keys = sees[0, queries].any(dim=0)
    for name, got, wanted in zip(("out", "lse", "dq", "dk", "dv"), dirty, clean, strict=True):
        touched = torch.zeros(wanted.shape[:3], dtype=torch.bool)
        touched[1, 0] = keys if name in ("dk", "dv") else queries
        torch.testing.assert_close(got[~touched], wanted[~touched], rtol=0.02, atol=0.02)
        assert got[~touched].isfinite().all(), name
    if which != 2 and number != number:
        assert dirty[1][1, 0, queries].isnan().all()
    spoiled = queries
    if which == 1 and number == INF:
        # Where this entry of the query is negative, the score is -inf and the key just has no share.
        spoiled = queries & (inputs[0][1, 0, :, 3] > 0)
    assert not dirty[0][1, 0, spoiled].isfinite().all(dim=-1).any()


def test_rows_without_keys_and_unwritten_memory():
    # More queries than keys: the first rows have none. torch fills new memory with NaN in deterministic mode.
    n, m, h = 75, 13, 2
    band = Band((4.0, 16.0), (INF, 3))
    parts = draw((4.0, 16.0), m, 20)
    inputs = tensors(n, m, 64, h, 1)
    weights = torch.zeros(h, n, m, dtype=torch.float64)
    weights[:, n - m :] = draw_weights(parts, m)
    torch.use_deterministic_algorithms(True)
    try:
        for structure, w in ((band, band_weights(band, n, m)), (Draws(parts), weights)):
            ours, oracle = both(structure, w, inputs, True)
            assert_close(ours, oracle, 1e-5)
            assert (ours[0][:, :, : n - m] == 0).all()
            assert (ours[1][:, :, : n - m] == -INF).all()
            assert (ours[2][:, :, : n - m] == 0).all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", ["draws", "band"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_documents(kind, causal, dtype):
    starts = [0, 0, 3, 3, 70, 71, 300, 333]
    n, h = 333, 4
    sigmas = (2.0, 16.0, 64.0, 1e9)
    parts = draw(sigmas, n, 20)
    band = Band(sigmas, (INF, 9, 70, INF))
    structure, weights = (Draws(parts), draw_weights(parts, n)) if kind == "draws" else (band, band_weights(band, n, n))
    document = torch.repeat_interleave(torch.arange(len(starts) - 1), torch.tensor(starts).diff())
    weights = weights * (document[:, None] == document)
    assert_close(
        *both(structure, weights, tensors(n, n, 64, h, 2), causal, cu_seqlens=torch.tensor(starts, dtype=dtype)), 1e-5
    )


@pytest.mark.parametrize("kind", ["draws", "band"])
@pytest.mark.parametrize("causal", [True, False])
def test_key_padding(kind, causal):
    n, h = 203, 4
    sigmas = (2.0, 16.0, 64.0, 1e9)
    parts = draw(sigmas, n, 20)
    band = Band(sigmas, (INF, 9, 70, INF))
    structure, weights = (Draws(parts), draw_weights(parts, n)) if kind == "draws" else (band, band_weights(band, n, n))
    keep = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) < 0.6
    inputs = tensors(n, n, 64, h, 2)
    for x in inputs[1:3]:
        x[~keep[:, None].expand(x.shape[:3])] = float("nan")
    ours = run(lambda q, k, v: fused_attention(q, k, v, structure, causal=causal, key_padding_mask=keep), *inputs)
    clean = [x.nan_to_num(0.0).double() for x in inputs]
    for i in range(2):
        masked = weights * keep[i]
        one = run(
            lambda q, k, v, masked=masked: dense_attention(q, k, v, masked, causal=causal, scale=0.125),
            *(x[i : i + 1] for x in clean),
        )
        assert_close([x[i : i + 1] for x in ours], one, 1e-5)


def test_positions_far_from_zero():
    # The last 64 of 100,000 positions: distances are formed from differences, so float32 loses nothing.
    n, m, d = 64, 100_000, 16
    q, k, v, *_ = tensors(n, m, d, 2, 1, batch=1)
    band = Band((2.0, 256.0), (INF, INF))
    out, _lse = fused_attention(q, k, v, band, causal=True, scale=0.25)
    tail = 8192
    wanted, _ = dense_attention(
        q.double(),
        k[:, :, -tail:].double(),
        v[:, :, -tail:].double(),
        band_weights(band, n, tail),
        causal=True,
        scale=0.25,
    )
    assert (out - wanted).abs().max() < 1e-5


def test_query_offset_places_queries_among_the_keys():
    n, m, h, offset = 70, 300, 2, 120
    parts = draw((16.0, 64.0), m, 20)
    q, k, v, *_ = tensors(n, m, 32, h, h)
    weights = torch.tensor(np.stack([matrices.m_tilde(parts.head(i)) for i in range(h)]))[:, offset : offset + n]
    seen = torch.ones(n, m, dtype=torch.bool).tril(offset)
    for causal, mask in ((True, seen), (False, torch.ones_like(seen))):
        out, lse = fused_attention(q, k, v, Draws(parts), causal=causal, scale=0.2, q_offset=offset)
        wanted, wanted_lse = dense_attention(
            q.double(), k.double(), v.double(), weights * mask, causal=False, scale=0.2
        )
        assert (out - wanted).abs().max() < 1e-5
        assert (lse - wanted_lse).abs().max() < 1e-5


def test_any_strides():
    n, h, d = 97, 4, 64
    q, k, v, *_ = tensors(n, n, d, h, h)
    band = structures(h, n)["band"]
    wanted, _ = fused_attention(q, k, v, band, causal=True)
    by_position = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    joined = torch.stack((q, k, v), dim=-1)
    for views in (by_position, joined.unbind(-1), torch.cat((q, k, v), dim=-1).split(d, dim=-1)):
        assert torch.equal(fused_attention(*views, band, causal=True)[0], wanted)
    odd = [torch.cat((x, x[..., :1]), -1)[..., :d] for x in (q.bfloat16(), k.bfloat16(), v.bfloat16())]
    low = [x.bfloat16() for x in (q, k, v)]
    assert torch.equal(fused_attention(*odd, band, causal=True)[0], fused_attention(*low, band, causal=True)[0])


def test_empty_inputs():
    band = Band((4.0,), (INF,))
    for batch, n, m in ((0, 3, 3), (2, 0, 5), (2, 3, 0)):
        q, k, v = torch.randn(batch, 1, n, 16), torch.randn(batch, 1, m, 16), torch.randn(batch, 1, m, 16)
        q.requires_grad_()
        out, lse = fused_attention(q, k, v, band, causal=True)
        assert out.shape == q.shape
        assert (out == 0).all()
        assert (lse == -INF).all()
        out.sum().backward()
        assert (q.grad == 0).all()


def test_bad_arguments_are_named():
    n, h = 9, 2
    q, k, v, *_ = tensors(n, n, 16, h, h)
    band = Band((4.0, 4.0), (INF, INF))
    cases = [
        ("q: must have shape", (q[0], k, v, band), {}),
        ("q: has 2 heads", (q, k[:, :1].expand(2, 3, n, 16), v[:, :1].expand(2, 3, n, 16), band), {}),
        ("structure: is for 1", (q, k, v, Band((4.0,), (INF,))), {}),
        ("structure: draws for 10", (q, k, v, Draws(draw((4.0, 4.0), n + 1, 2))), {}),
        ("q_offset = -1", (q, k, v, Draws(draw((4.0, 4.0), n, 2))), {"q_offset": -1, "causal": False}),
        ("q_offset = 0.5", (q, k, v, band), {"q_offset": 0.5}),
        ("q_offset = nan", (q, k, v, band), {"q_offset": float("nan")}),
        ("q_offset = 536870912", (q, k, v, band), {"q_offset": 1 << 29}),
        ("k: is torch.float16", (q, k.half(), v, band), {}),
        ("q: is torch.float64", (q.double(), k.double(), v.double(), band), {}),
        ("v: has shape", (q, k, v[:, :, 1:], band), {}),
        ("cu_seqlens", (q, k, v, band), {"cu_seqlens": torch.tensor([0, 5, 3, 9])}),
        ("cu_seqlens", (q, k, v, band), {"cu_seqlens": torch.tensor([0, 8])}),
        ("cu_seqlens", (q, k, v, band), {"cu_seqlens": torch.tensor([0.0, 9.0])}),
        ("key_padding_mask", (q, k, v, band), {"key_padding_mask": torch.ones(2, n)}),
        ("num_threads", (q, k, v, band), {"num_threads": 0}),
        ("scale", (q, k, v, band), {"scale": float("nan")}),
    ]
    for text, arguments, options in cases:
        with pytest.raises(ValueError, match=text):
            fused_attention(*arguments, **{"causal": True, **options})
    for sigma, width in (
        ((0.0,), (1.0,)),
        ((-1.0,), (1.0,)),
        ((float("nan"),), (1.0,)),
        ((1.0,), (-1.0,)),
        ((1.0,), ()),
    ):
        with pytest.raises(ValueError, match=r"sigma|width"):
            Band(sigma, width)
