"""Faults that users of neighbouring software have hit, tried on every backend of attention."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from attention_oracle import assert_close, biases, inputs, oracle, partition, run

from plsh_cli.attention.api import BACKENDS, attention, why_not
from plsh_cli.attention.bias import Alibi, FixedBlocks, NoBias, Plsh, Window
from plsh_cli.attention.merge import Sums, merge
from plsh_cli.positional.kernels import alibi_slopes
from plsh_cli.positional.partitions import PartitionSet

TINY = 1e-12
BIASES = list(biases(2, 2))


def backends(q: torch.Tensor, bias, causal: bool = True) -> list[str]:
    return [name for name in BACKENDS if name != "triton" and not why_not(name, q, bias, causal=causal)]


def blocks_of(*sizes: int) -> PartitionSet:
    """One draw of equal blocks per given size, as one head."""
    widths = np.array([sizes], dtype=np.float64)
    weights = np.full_like(widths, 1.0 / len(sizes))
    return PartitionSet(widths, 0.0 * widths, weights, np.arange(len(sizes))[None], 6, "real")


def test_a_bias_formed_in_16_bits_would_drift():
    # Constant q and k: the weights are the bias alone. v is the identity, a chunk of keys at a time.
    n, d = 16384, 64
    q, k = torch.ones(1, 1, 1, d), torch.ones(1, 1, n, d)
    exact = torch.exp(-torch.arange(n - 1, -1, -1, dtype=torch.float64) / 2.0)
    exact /= exact.sum()
    for name in backends(q.bfloat16(), Alibi(2.0)):
        v = torch.zeros(1, 1, n, d)
        v[0, 0, -d:] = torch.eye(d)
        out = attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), Alibi(2.0), backend=name)
        # The last 64 keys hold all but e^-32 of the mass. Output in bfloat16: 2^-9 relative, half of it in the total
        # variation.
        assert 0.5 * float((out[0, 0, 0].double() - exact[-d:]).abs().sum()) < 1e-3, name


def test_weights_fall_with_distance_for_every_head():
    n = 31
    q, k, v = torch.ones(1, 12, n, 5), torch.ones(1, 12, n, 31), torch.eye(n).expand(1, 12, n, n).contiguous()
    q = torch.ones(1, 12, n, n)
    for name in backends(q, Alibi(1.0)):
        weights = attention(q, k, v, Alibi((1.0 / alibi_slopes(12)).tolist()), backend=name)[0]
        past = weights[:, -1]
        assert bool((past[:, 1:] > past[:, :-1]).all()), name


def test_bidirectional_bias_is_symmetric():
    x = [y.float() for y in inputs(1, 2, 2, 33, 33, 5)]
    bias = Alibi([2.0, 9.0])
    for name in backends(x[0], bias, causal=False):
        forth = attention(*x, bias, causal=False, backend=name)
        back = attention(*(y.flip(2) for y in x), bias, causal=False, backend=name)
        torch.testing.assert_close(back.flip(2), forth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", BIASES)
def test_token_by_token_decode_equals_the_full_pass(kind):
    x, n = [y.float() for y in inputs(2, 4, 2, 33, 33, 5)], 33
    bias = biases(4, n)[kind]
    for name in backends(x[0], bias):
        q, k, v = x
        full = attention(q, k, v, bias, backend=name)
        for t in range(0, n, 4):
            now = Plsh(bias.parts.prefix(t + 1), bias.merge) if isinstance(bias, Plsh) else bias
            step = attention(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], now, backend=name)
            torch.testing.assert_close(step[:, :, 0], full[:, :, t], rtol=1e-5, atol=1e-5)
        five = attention(q[:, :, -5:], k, v, bias, backend=name)
        torch.testing.assert_close(five, full[:, :, -5:], rtol=1e-5, atol=1e-5)


def test_merging_empty_parts():
    for values in ((-math.inf, -math.inf), (-math.inf, 0.3), (0.3, -math.inf), (0.3, -0.2)):
        lse = [torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in values]
        out = [torch.full((1, 3), 0.0 if value == -math.inf else value, dtype=torch.float64) for value in values]
        leaves = [o.requires_grad_() for o in out] + lse
        merged, merged_lse = merge(out[0], lse[0], out[1], lse[1])
        sums = Sums.start((1, 3), torch.float64, torch.device("cpu"))
        for o, x in zip(out, lse, strict=True):
            sums.absorb(o.detach(), x.detach())
        kept, kept_lse = sums.merged()
        torch.testing.assert_close(kept, merged.detach(), rtol=TINY, atol=TINY)
        torch.testing.assert_close(kept_lse, merged_lse.detach(), rtol=TINY, atol=TINY)
        if max(values) == -math.inf:
            assert bool((merged == 0).all())
            assert float(merged_lse.detach()) == -math.inf
        for loss in (merged.sum(), merged_lse.sum()):
            grads = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
            assert all(g is None or bool(g.isfinite().all()) for g in grads)


def test_the_merge_is_in_natural_logarithms():
    parts = blocks_of(3, 2)
    x = inputs(1, 1, 1, 6, 6, 5)
    wanted = oracle(x, Plsh(parts), causal=False)
    assert_close(run(BACKENDS["blocks"], x, Plsh(parts), causal=False), wanted, TINY)
    mean = attention(*x, Plsh(parts, "mean"), causal=False, backend="blocks")
    assert float((mean - wanted[0]).detach().abs().max()) > 0.02


@pytest.mark.parametrize("kind", BIASES)
def test_tiny_bins_and_empty_documents(kind):
    bias = biases(1, 7)[kind]
    bias = Plsh(partition([0.2], 7, 4), bias.merge) if isinstance(bias, Plsh) else bias
    x = inputs(1, 1, 1, 7, 7, 5)
    for cu_seqlens in (None, torch.tensor([0, 0, 3, 3, 7])):
        wanted = oracle(x, bias, cu_seqlens=cu_seqlens)
        for name in backends(x[0].float(), bias):
            options = {"causal": True, "scale": 5**-0.5, "q_offset": None, "key_padding_mask": None}
            found = run(BACKENDS[name], x, bias, torch.float32, cu_seqlens=cu_seqlens, **options)
            assert_close(found, wanted, 3e-6, name)


@pytest.mark.parametrize("n", [129, 1025])
@pytest.mark.parametrize("kind", BIASES)
def test_gradients_are_finite_when_n_is_no_multiple_of_128(kind, n):
    bias = biases(2, n)[kind]
    for name in backends(torch.zeros(1, 2, n, 5), bias):
        x = [y.float().requires_grad_() for y in inputs(1, 2, 1, n, n, 5)]
        attention(*x, bias, backend=name).square().sum().backward()
        assert all(bool(y.grad.isfinite().all()) for y in x), name
        assert all(float(y.grad.abs().max()) > 0 for y in x), name


def test_fresh_draws_at_every_step_compile_nothing():
    x = [y.float() for y in inputs(1, 2, 2, 127, 127, 5)]
    for step in range(20):
        bias = Plsh(partition([2.0, 8.0], 127, 3, seed=step))
        for name in backends(x[0], bias):
            assert bool(attention(*x, bias, backend=name).isfinite().all())


def test_blocks_of_another_length():
    # n = 1000, blocks of 256: the last 232 tokens are a block of their own.
    x = inputs(1, 1, 1, 1000, 1000, 5)
    out = attention(*x, FixedBlocks(128.0), causal=False, backend="blocks")
    alone = attention(*(y[:, :, 768:] for y in x), NoBias(), causal=False, backend="blocks")
    torch.testing.assert_close(out[:, :, 768:], alone, rtol=TINY, atol=TINY)
    parts = partition([9.0], 1000, 3)
    shorter = [y[:, :, :999] for y in x]
    for name in ("blocks", "reference"):
        with pytest.raises(ValueError, match=r"prefix\(999\)"):
            attention(*shorter, Plsh(parts), backend=name)
    attention(*shorter, Plsh(parts.prefix(999)), backend="blocks")


@pytest.mark.parametrize("kind", BIASES)
def test_the_last_token_moves_no_earlier_output(kind):
    x = [y.float() for y in inputs(1, 2, 1, 127, 127, 5)]
    y = [one.clone() for one in x]
    for one in y:
        one[:, :, -1] += 5.0
    bias = biases(2, 127)[kind]
    for name in backends(x[0], bias):
        before, after = attention(*x, bias, backend=name), attention(*y, bias, backend=name)
        torch.testing.assert_close(after[:, :, :-1], before[:, :, :-1], rtol=1e-6, atol=1e-6)
        assert float((after - before)[:, :, -1].abs().max()) > 1e-3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", BIASES)
def test_what_is_not_finite_reaches_the_rows_that_see_it_only(kind, causal):
    n, at = 61, 23
    bias = biases(2, n)[kind]
    keep = torch.ones(1, n, dtype=torch.bool)
    keep[0, 11] = False
    clean = inputs(1, 2, 1, n, n, 5)
    for which, value in ((0, math.nan), (1, math.nan), (2, math.nan), (2, math.inf)):
        x = [y.clone() for y in clean]
        x[which][0, 0, at, 2] = value
        x[2][0, 0, 11] = math.nan  # a key that is padding
        options = {"causal": causal, "scale": 0.4, "q_offset": None, "cu_seqlens": None, "key_padding_mask": keep}
        wanted = oracle(x, bias, **options)
        plain = oracle([y.masked_fill(~y.isfinite(), 0.0) for y in x], bias, **options)
        seen = [~w.isfinite() for w in wanted]
        # Somebody sees it, others do not.
        assert bool(seen[0].any())
        assert not bool(seen[0].all()) or kind in ("none", "alibi")
        for name in backends(x[0].float(), bias, causal):
            found = run(BACKENDS[name], x, bias, torch.float32, **options)
            for part, one, bad, other in zip(
                ("out", "d_q", "d_k", "d_v"),
                found[:1] + found[2:],
                seen[:1] + seen[2:],
                plain[:1] + plain[2:],
                strict=True,
            ):
                rows = bad.any(-1)
                assert bool(one[~rows].isfinite().all()), f"{name}: {part} leaks"
                assert bool((~one[rows].isfinite()).any(-1).all()), f"{name}: {part} hides"
                if part == "out":
                    torch.testing.assert_close(one[~rows].double(), other[~rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("merge", ["lse", "mean"])
def test_draws_of_weight_0_see_nothing(merge):
    # One block over all tokens, which weighs 0, and blocks of 5: what is not finite stays in its block of 5.
    n = 20
    widths = np.array([[1000.0, 5.0]])
    parts = PartitionSet(widths, 0.0 * widths, np.array([[0.0, 1.0]]), np.array([[0, 1]]), n, "real")
    clean = inputs(1, 1, 1, n, n, 5)
    wanted = oracle(clean, Plsh(parts), causal=False)
    options = {"causal": False, "scale": None, "q_offset": None, "cu_seqlens": None, "key_padding_mask": None}
    for which in range(3):
        x = [y.clone() for y in clean]
        x[which][0, 0, 7, 2] = math.nan
        for name in backends(x[0].float(), Plsh(parts, merge), causal=False):
            found = run(BACKENDS[name], x, Plsh(parts, merge), torch.float32, **options)
            for one, other in zip(found, wanted, strict=True):
                for rows in (slice(0, 5), slice(10, n)):
                    torch.testing.assert_close(one[:, :, rows].double(), other[:, :, rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", BIASES)
def test_huge_scores_keep_every_rows_denominator(kind):
    x = inputs(1, 2, 1, 127, 127, 5, spread=17.0)  # scores of standard deviation 300
    bias = biases(2, 127)[kind]
    wanted = oracle(x, bias)
    for name in backends(x[0].float(), bias):
        out, lse = attention(*(y.float() for y in x), bias, backend=name, return_lse=True)
        assert bool(lse.isfinite().all()), name
        torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(out.double(), wanted[0], rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("kind", BIASES)
def test_rows_without_keys_have_no_gradient(kind):
    bias = biases(2, 5)[kind]
    x = inputs(1, 2, 2, 13, 5, 5)
    for name in backends(x[0].float(), bias):
        leaves = [y.float().requires_grad_() for y in x]
        out, lse = attention(*leaves, bias, backend=name, return_lse=True)
        assert bool((out[:, :, :8] == 0).all())
        assert bool((lse[:, :, :8] == -math.inf).all())
        grads = torch.autograd.grad(out.sum() + lse.sum(), leaves)
        assert bool((grads[0][:, :, :8] == 0).all()), name
        assert all(bool(g.isfinite().all()) for g in grads), name


@pytest.mark.parametrize("kind", BIASES)
def test_a_batch_is_its_items(kind):
    x = [y.float() for y in inputs(8, 2, 1, 41, 41, 5)]
    bias = biases(2, 41)[kind]
    for name in backends(x[0], bias):
        whole = attention(*x, bias, backend=name)
        for i in (0, 7):
            one = attention(*(y[i : i + 1] for y in x), bias, backend=name)
            torch.testing.assert_close(whole[i : i + 1], one, rtol=1e-5, atol=1e-5)


def test_windows_keep_the_keys_at_eps_and_cut_those_below():
    # exp(-d / 3) >= 1e-2 up to d = 13.
    n = 40
    q = torch.zeros(1, 1, n, n)
    v = torch.eye(n)[None, None]
    for name in backends(q, Window(3.0, 1e-2)):
        weights = attention(q, q, v, Window(3.0, 1e-2), backend=name)[0, 0, -1]
        assert bool((weights[: n - 14] == 0).all()), name
        assert bool((weights[n - 14 :] > 0).all()), name
