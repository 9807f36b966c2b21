"""Inputs, biases and the float64 oracle for the tests of attention."""

from __future__ import annotations

import numpy as np
import torch

from plsh_cli.attention.bias import Alibi, FixedBlocks, NoBias, Plsh, Window
from plsh_cli.attention.reference import dense_log_weights, reference_attention, visible
from plsh_cli.positional.kernels import alibi
from plsh_cli.positional.partitions import PartitionSet, stack
from plsh_cli.positional.samplers import draw

NAMES = ("out", "lse", "d_q", "d_k", "d_v")


def sigmas(h: int) -> list[float]:
    """From below one token to far more than any length here."""
    return np.geomspace(0.3, 3000.0, h).tolist() if h > 1 else [7.0]


def partition(
    sigma: list[float], n: int, s: int, sampler: str = "iid", pitch: str = "real", seed: int = 0
) -> PartitionSet:
    generator = np.random.default_rng(seed)
    return stack([draw(alibi(x), n, s, generator, sampler, pitch) for x in sigma])


def biases(h: int, positions: int) -> dict[str, object]:
    sigma = sigmas(h)
    return {
        "none": NoBias(),
        "alibi": Alibi(sigma),
        "window": Window(sigma, 1e-2),
        "fixed_blocks": FixedBlocks(sigma),
        "plsh": Plsh(partition(sigma, positions, 7)),
        "plsh, stratified, integer": Plsh(partition(sigma, positions, 6, "stratified", "integer")),
        "plsh, importance": Plsh(partition(sigma, positions, 5, "importance")),
        "plsh, one set": Plsh(partition([9.0], positions, 3, "iid", "integer")),
        "plsh, mean": Plsh(partition(sigma, positions, 3, "iid", "integer"), "mean"),
    }


def inputs(b: int, h: int, g: int, n: int, m: int, d: int, seed: int = 0, spread: float = 1.0) -> list[torch.Tensor]:
    """Return float64 tensors whose numbers float32 holds exactly, so that one oracle serves both."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, n, d), (b, g, m, d), (b, g, m, d))
    return [(spread * torch.randn(*shape, generator=generator)).double() for shape in shapes]


def run(function, x: list[torch.Tensor], bias, dtype: torch.dtype = torch.float64, **options) -> list[torch.Tensor]:
    """Return out, lse and the gradients of a fixed random function of both, on inputs rounded to `dtype`."""
    leaves = [one.to(dtype).requires_grad_() for one in x]
    out, lse = function(*leaves, bias, **options)
    generator = torch.Generator().manual_seed(99)
    d_out, d_lse = (torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in (out, lse))
    empty = lse == -torch.inf
    loss = (out * d_out).sum() + (lse.masked_fill(empty, 0.0) * d_lse).sum()
    return [out.detach(), lse.detach(), *torch.autograd.grad(loss, leaves)]


def oracle(x: list[torch.Tensor], bias, dtype: torch.dtype = torch.float64, **options) -> list[torch.Tensor]:
    """The float64 reference on the numbers that `dtype` makes of the inputs."""
    return run(reference_attention, [one.to(dtype) for one in x], bias, **options)


def low_precision(q, k, v, bias, *, causal, scale=None, **_):
    """Dense attention as a 16-bit kernel computes it: float32 scores, probabilities rounded before they meet v."""
    from plsh_cli.attention.inputs import check

    nothing = {"q_offset": None, "cu_seqlens": None, "key_padding_mask": None}
    layout, scale = check(q, k, v, causal=causal, scale=scale, **nothing)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    logits = scale * (q.float() @ k.float().mT) + dense_log_weights(bias, q.shape[1], layout).float()
    logits = logits.masked_fill(~visible(layout), -torch.inf)
    out = logits.softmax(-1).to(q.dtype).float() @ v.float()
    return out.to(q.dtype), logits.logsumexp(-1)


def by_stored_lse(q, k, v, d_out, d_lse, weights, *, causal: bool, scale: float, again: bool = False):
    """Dense out, lse, d_q, d_k, d_v (h = g), with gradients from the stored lse, as in linear memory.

    again: scores are computed again for the gradients, their sums in another order.
    """
    n, m = q.shape[-2], k.shape[-2]
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n) if causal else torch.ones(n, m, dtype=torch.bool)
    bias = weights.to(q.dtype).log().masked_fill(~seen, -torch.inf)
    logits = scale * (q @ k.mT) + bias
    lse = logits.logsumexp(-1)
    terms = (logits - lse[..., None]).exp()
    out = terms @ v
    if again:
        terms = (scale * (q.flip(-1) @ k.flip(-1).mT) + bias - lse[..., None]).exp()
    delta = (d_out * out).sum(-1) - d_lse
    d_scores = scale * terms * (d_out @ v.mT - delta[..., None])
    return [out, lse, d_scores @ k, d_scores.mT @ q, terms.mT @ d_out]


def error_over_orders(attend, x: list[torch.Tensor], wanted, orders: int = 8) -> list[float]:
    """Return the largest error of each result of `attend`, over orders of the head dim.

    An order changes nothing but how sums are rounded: what an independent computation in this type may be off by.
    """
    worst = [0.0] * len(wanted)
    for seed in range(orders):
        order = torch.randperm(x[0].shape[-1], generator=torch.Generator().manual_seed(seed))
        found = attend(*(one[..., order] if one.ndim == 4 else one for one in x))
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            error = one.double() - (other[..., order] if other.ndim == 4 else other)
            worst[i] = max(worst[i], float(error.abs().max()))
    return worst


def assert_close(found: list[torch.Tensor], wanted: list[torch.Tensor], tolerance: float, what: str = "") -> None:
    """Each of out, lse and gradients within tolerance times (1 + its largest finite number); -inf where it must be."""
    for name, one, other in zip(NAMES, found, wanted, strict=True):
        other = other.double()
        assert bool(((one == -torch.inf) == (other == -torch.inf)).all()), f"{what}: {name} is -inf at wrong places"
        finite = other.isfinite()
        largest = float(other[finite].abs().max()) if bool(finite.any()) else 0.0
        error = float((one.double() - other)[finite].abs().max()) if bool(finite.any()) else 0.0
        assert error <= tolerance * (1.0 + largest), f"{what}: {name} is off by {error:.2e}"


def assert_within_budget(found, wanted, independent, band: float, what: str = "") -> None:
    """Error at most twice that of an independent implementation in the same type, and `band` of the largest number."""
    for name, one, other, theirs in zip(NAMES, found, wanted, independent, strict=True):
        finite = other.isfinite()
        if not bool(finite.any()):
            continue
        error, budget = ((x.double() - other)[finite].abs().max() for x in (one, theirs))
        budget = 2.0 * float(budget) + band * (1.0 + float(other[finite].abs().max()))
        assert float(error) <= budget, f"{what}: {name} is off by {float(error):.2e}, allowed {budget:.2e}"
