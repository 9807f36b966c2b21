"""The dense oracle against loops over single numbers, and the properties that every other attention must share."""

from __future__ import annotations

import math

import pytest
import torch

from plsh_cli.attention.bias import Alibi
from plsh_cli.attention.reference import dense_attention, reference_attention

TINY = 1e-12


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def alibi(h: int, n: int, m: int, sigma: float = 3.0) -> torch.Tensor:
    """The last n of m rows of L*, with another sigma for every head."""
    rows, columns = torch.arange(m - n, m).abs(), torch.arange(m)
    distance = (rows[:, None] - columns[None, :]).abs().double()
    return torch.stack([(-distance / (sigma * (head + 1))).exp() for head in range(h)])


def by_loops(q, k, v, weights, *, causal, scale):
    h, n, _ = q.shape
    g, m, e = v.shape
    out, lse = torch.zeros(h, n, e, dtype=torch.float64), torch.full((h, n), -math.inf, dtype=torch.float64)
    for head in range(h):
        group = head // (h // g)
        for i in range(n):
            keys = [j for j in range(m) if weights[head, i, j] > 0 and (not causal or j <= i + m - n)]
            terms = [float(weights[head, i, j]) * math.exp(scale * float(q[head, i] @ k[group, j])) for j in keys]
            if keys:
                lse[head, i] = math.log(math.fsum(terms))
                out[head, i] = sum(term * v[group, j] for term, j in zip(terms, keys, strict=True)) / math.fsum(terms)
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("h", "g", "n", "m"), [(1, 1, 1, 1), (6, 3, 7, 7), (12, 3, 5, 13), (2, 2, 13, 5)])
def test_equals_loops_over_numbers(h, g, n, m, causal):
    q, k, v = normal(h, n, 5), normal(g, m, 5, seed=1), normal(g, m, 11, seed=2)
    weights = alibi(h, n, m)
    weights[:, :, ::3] = 0.0
    found, wanted = (f(q, k, v, weights, causal=causal, scale=0.3) for f in (dense_attention, by_loops))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=TINY, atol=TINY)


def test_weights_of_one_are_ordinary_attention():
    q, k, v = normal(2, 9, 31, 5), normal(2, 3, 31, 5, seed=1), normal(2, 3, 31, 5, seed=2)
    out, _ = dense_attention(q, k, v, torch.ones(1, 1, 1), causal=True, scale=0.2)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2, enable_gqa=True)
    torch.testing.assert_close(out, wanted, rtol=TINY, atol=TINY)


def test_multiplying_by_l_star_is_adding_the_alibi_bias():
    n, slopes = 31, torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    distance = (torch.arange(n)[:, None] - torch.arange(n)[None, :]).abs()
    bias = -slopes[:, None, None] * distance
    q, k, v = (normal(3, n, 5, seed=seed) for seed in range(3))
    out, lse = dense_attention(q, k, v, bias.exp(), causal=False, scale=0.4)
    scores = 0.4 * q @ k.transpose(-1, -2) + bias
    torch.testing.assert_close(out, scores.softmax(-1) @ v, rtol=TINY, atol=TINY)
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=TINY, atol=TINY)


def test_five_queries_over_thirteen_keys_are_the_last_rows_of_the_full_pass():
    q, k, v, weights = normal(2, 13, 5), normal(2, 13, 5, seed=1), normal(2, 13, 5, seed=2), alibi(2, 13, 13)
    full = dense_attention(q, k, v, weights, causal=True, scale=0.5)
    last = dense_attention(q[:, -5:], k, v, weights[:, -5:], causal=True, scale=0.5)
    for one, other in zip(last, full, strict=True):
        torch.testing.assert_close(one, other[:, -5:], rtol=TINY, atol=TINY)


def test_rows_without_a_key_give_zero_and_minus_infinity_and_no_gradient():
    q, k, v = (normal(1, 6, 5, seed=seed).requires_grad_() for seed in range(3))
    weights = alibi(1, 6, 6)
    weights[:, 2] = 0.0
    out, lse = dense_attention(q, k, v, weights, causal=True, scale=1.0)
    assert bool((out[0, 2] == 0).all())
    assert lse[0, 2] == -math.inf
    assert bool(lse[0, [0, 1, 3, 4, 5]].isfinite().all())
    out.square().sum().backward()
    assert bool((q.grad[0, 2] == 0).all())
    assert all(bool(x.grad.isfinite().all()) for x in (q, k, v))


def test_gradients_in_all_four_inputs():
    q, k, v = normal(4, 5, 3), normal(2, 7, 3, seed=1), normal(2, 7, 2, seed=2)
    weights = alibi(4, 5, 7) + 0.1
    inputs = [x.requires_grad_() for x in (q, k, v, weights)]
    assert torch.autograd.gradcheck(lambda *x: dense_attention(*x, causal=True, scale=0.7), inputs)


def test_a_weight_of_zero_excludes_its_key_before_the_maximum():
    # With the huge score in the row maximum, every term that counts would underflow.
    q, k, v = normal(1, 7, 5), normal(1, 7, 5, seed=1), normal(1, 7, 5, seed=2)
    weights = alibi(1, 7, 7)
    weights[:, :, 3] = 0.0
    wanted = dense_attention(q, k, v, weights, causal=False, scale=1.0)
    k[0, 3] = q[0].sum(0) * 1e4
    found = dense_attention(q, k, v, weights, causal=False, scale=1.0)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert bool(found[1].isfinite().all())


def test_scores_of_hundreds_keep_their_denominator():
    q, k, v = 30 * normal(2, 61, 8), 10 * normal(2, 61, 8, seed=1), normal(2, 61, 8, seed=2)
    out, lse = dense_attention(q, k, v, (alibi(2, 61, 61) > 0.5).double(), causal=True, scale=1.0)
    assert bool(lse.isfinite().all())
    assert float(out.abs().max()) <= float(v.abs().max())


def test_a_constant_added_to_a_row_of_scores_moves_only_the_lse():
    q, k, v, weights = normal(2, 11, 5), normal(2, 11, 5, seed=1), normal(2, 11, 5, seed=2), alibi(2, 11, 11)
    shift = normal(2, 11, 1, seed=3)
    raised = torch.cat([q, shift], -1), torch.cat([k, torch.ones(2, 11, 1, dtype=torch.float64)], -1)
    out, lse = dense_attention(q, k, v, weights, causal=True, scale=1.0)
    other, raised_lse = dense_attention(*raised, v, weights, causal=True, scale=1.0)
    torch.testing.assert_close(other, out, rtol=TINY, atol=TINY)
    torch.testing.assert_close(raised_lse, lse + shift[..., 0], rtol=TINY, atol=TINY)


def test_later_tokens_do_not_change_earlier_outputs():
    q, k, v, weights = normal(3, 17, 5), normal(1, 17, 5, seed=1), normal(1, 17, 5, seed=2), alibi(3, 17, 17)
    before, _ = dense_attention(q, k, v, weights, causal=True, scale=1.0)
    for x in (q, k, v):
        x[:, -1] += 5
    after, _ = dense_attention(q, k, v, weights, causal=True, scale=1.0)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_a_batch_is_its_items():
    q, k, v, weights = normal(5, 6, 7, 4), normal(5, 2, 7, 4, seed=1), normal(5, 2, 7, 4, seed=2), alibi(6, 7, 7)
    out, lse = dense_attention(q, k, v, weights, causal=True, scale=1.0)
    for item in range(5):
        one, one_lse = dense_attention(q[item], k[item], v[item], weights, causal=True, scale=1.0)
        torch.testing.assert_close(out[item], one, rtol=TINY, atol=TINY)
        torch.testing.assert_close(lse[item], one_lse, rtol=TINY, atol=TINY)


def test_lse_weighted_merge_of_masks_is_attention_under_their_mean():
    blocks = [torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 1, 2])]
    masks = [(ids[:, None] == ids[None, :]).double()[None] for ids in blocks]
    q, k, v = 2 * normal(1, 6, 5), normal(1, 6, 5, seed=1), normal(1, 6, 5, seed=2)
    parts = [dense_attention(q, k, v, mask, causal=False, scale=1.0) for mask in masks]
    outs, lses = torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])
    merged = (lses.softmax(0)[..., None] * outs).sum(0)
    out, lse = dense_attention(q, k, v, sum(masks) / 2, causal=False, scale=1.0)
    torch.testing.assert_close(merged, out, rtol=TINY, atol=TINY)
    torch.testing.assert_close(lses.logsumexp(0) - math.log(2), lse, rtol=TINY, atol=TINY)
    assert float((outs.mean(0) - out).abs().max()) > 0.05


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_with_the_pairs_that_count(which, value):
    # Position 4 sees, and is seen by, positions 4 and 5 only.
    weights = alibi(2, 9, 9)
    weights[:, 4] = weights[:, :, 4] = 0.0
    weights[:, 4:6, 4] = weights[:, 4, 4:6] = 1.0
    results = []
    for wrong in (0.0, value):
        x = [normal(2, 9, 5, seed=seed) for seed in range(3)]
        x[which][:, 4] = wrong
        x = [y.requires_grad_() for y in x]
        out, lse = dense_attention(*x, weights, causal=False, scale=1.0)
        loss = out.square().sum() + lse.sum()
        results.append([out.detach(), *torch.autograd.grad(loss, x)])
    touched = {0: [4], 1: [4, 5], 2: [4, 5]}[which]
    others = [i for i in range(9) if i not in touched]
    torch.testing.assert_close(results[1][0][:, others], results[0][0][:, others], rtol=TINY, atol=TINY)
    assert not bool(results[1][0][:, touched].isfinite().all(-1).any())
    # Row 5 sees all positions: where it is touched, so are all gradients of k and v.
    clean = {0: [0, 1, 2, 3, 6, 7, 8], 1: [], 2: []}[which]
    for one, other in zip(results[1][2:], results[0][2:], strict=True):
        torch.testing.assert_close(one[:, clean], other[:, clean], rtol=TINY, atol=TINY)
    torch.testing.assert_close(results[1][1][:, others], results[0][1][:, others], rtol=TINY, atol=TINY)


def test_a_decay_does_not_underflow_a_million_tokens_away():
    q, k, v = normal(1, 2, 1, 5), normal(1, 2, 3, 5, seed=1), normal(1, 2, 3, 5, seed=2)
    out, lse = reference_attention(q, k, v, Alibi(2.0), scale=1.0, q_offset=1_000_000)
    logits = q @ k.mT + torch.tensor([-1.0, -0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(out, logits.softmax(-1) @ v, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lse, logits.logsumexp(-1) - 499_999.0, rtol=TINY, atol=0.0)


@pytest.mark.parametrize(
    ("dtype", "lse_dtype"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_types_and_low_precision(dtype, lse_dtype):
    exact = [normal(h, 37, 8, seed=seed, dtype=dtype) for seed, h in enumerate((6, 2, 2))]
    weights = alibi(6, 37, 37).to(dtype)
    out, lse = dense_attention(*exact, weights, causal=True, scale=0.35)
    wanted, wanted_lse = dense_attention(*(x.double() for x in exact), weights.double(), causal=True, scale=0.35)
    assert (out.dtype, lse.dtype) == (dtype, lse_dtype)
    # Inputs are the same numbers: what differs is float32 accumulation and the last rounding of the output.
    torch.testing.assert_close(out.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q": normal(5, 7, 4)}, "multiple of key heads"),
        ({"q": normal(4, 7, 3)}, "head dim"),
        ({"q": normal(7, 4)}, "q must have shape"),
        ({"v": normal(2, 6, 4)}, "k and v must agree"),
        ({"weights": alibi(4, 7, 6)}, "broadcast"),
        ({"weights": alibi(3, 7, 7)}, "broadcast"),
        ({"weights": -alibi(4, 7, 7)}, "at least 0"),
        ({"weights": alibi(4, 7, 7) * math.nan}, "finite"),
    ],
)
def test_what_does_not_fit_is_refused(change, text):
    inputs = {"q": normal(4, 7, 4), "k": normal(2, 7, 4), "v": normal(2, 7, 4), "weights": alibi(4, 7, 7)} | change
    with pytest.raises(ValueError, match=text):
        dense_attention(**inputs, causal=True, scale=1.0)
