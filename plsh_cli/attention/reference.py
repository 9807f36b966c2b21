"""Dense attention under a multiplicative bias matrix: the specification of every faster way.

Shapes: b batch dimensions (any number, also none), h query heads, g key/value heads (h is a multiple of g; query head i
reads key head i // (h / g)), n queries, m keys, d head dim of queries and keys, e head dim of values.
Paper symbols: weights = L* or M~, out = T* or T~.
"""

from __future__ import annotations

import torch

from plsh_cli.attention.bias import Bias, Decay, NoBias, Plsh, head_structures, one_draw
from plsh_cli.attention.inputs import Layout, check, check_draws, compute_dtype
from plsh_cli.positional.matrices import m_tilde
from plsh_cli.positional.partitions import PartitionSet


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: torch.Tensor, *, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out_i = sum_j w_ij exp(s_ij) v_j / sum_j w_ij exp(s_ij) with s = scale q k^T, and lse_i = ln of the denominator.

    q (b.., h, n, d), k (b.., g, m, d), v (b.., g, m, e); weights (h, n, m), or anything that broadcasts to it, finite
    and >= 0, multiply the exponentials in numerator and denominator. A weight of 0 excludes its key exactly: it takes
    no part in the row's maximum either, and a number that is not finite reaches only the rows that see it. causal:
    query i sees keys j <= i + m - n (the last query sees all: bottom-right alignment, so that queries may be the last n
    of m positions). A row that sees no key gives 0 and lse -inf, with gradient 0. Returns out (b.., h, n, e) in q's
    dtype and lse (b.., h, n), natural logarithm; both are computed in float32, or in float64 where an input is float64.
    Differentiable in all four tensors. Raises ValueError for shapes that do not fit and for weights that are negative
    or not finite.
    """
    _check(q, k, v, weights)
    n, m = q.shape[-2], k.shape[-2]
    dtype = torch.float32
    for tensor in (q, k, v, weights):
        dtype = torch.promote_types(dtype, tensor.dtype)
    weights = weights.to(dtype)
    seen = weights > 0
    # ln 1 for excluded pairs keeps their gradient finite; the mask then removes them.
    log_weights = torch.where(seen, weights, 1.0).log()
    if causal:
        seen = seen & torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
    return _attend(q, k, v, log_weights, seen, dtype, scale)


def reference_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: Bias | None = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    q_offset: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (b, h, n, d) and lse (b, h, n) of attention under a bias, with matrices of n x m: see `attention`.

    The decay of ALiBi is added to the logits, so that it does not underflow far away.
    """
    layout, scale = check(
        q, k, v, causal=causal, scale=scale, q_offset=q_offset, cu_seqlens=cu_seqlens, key_padding_mask=key_padding_mask
    )
    bias = NoBias() if bias is None else bias
    dtype = compute_dtype(q.dtype)
    seen = visible(layout, q.device)

    def under(bias: Bias, counts: bool | torch.Tensor = True) -> tuple[torch.Tensor, torch.Tensor]:
        log_weights = dense_log_weights(bias, q.shape[1], layout).to(q.device, dtype)
        return _attend(q, k, v, log_weights, seen & (log_weights > -torch.inf) & counts, dtype, scale)

    out, lse = under(bias)
    if isinstance(bias, Plsh) and bias.merge == "mean":
        out = _mean_of_draws(bias.parts, under, dtype, q.device).to(q.dtype)
    return out, lse


def visible(layout: Layout, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return which keys each query may see whatever the bias, bool, (n, m) or (b, 1, n, m)."""
    rows, columns = (
        layout.offset + torch.arange(layout.n, device=device)[:, None],
        torch.arange(layout.m, device=device),
    )
    seen = columns <= rows if layout.causal else torch.ones(layout.n, layout.m, dtype=torch.bool, device=device)
    if layout.documents is not None:
        starts = torch.as_tensor(layout.documents, device=device)[1:]
        number = torch.bucketize(torch.arange(layout.m, device=device), starts, right=True)
        seen = seen & (number[:, None] == number[None, :])
    return seen if layout.keep is None else seen & layout.keep[:, None, None, :]


def dense_log_weights(bias: Bias, num_heads: int, layout: Layout) -> torch.Tensor:
    """Return the logarithms of L*, its window, or M~ at the call's queries and keys, (h or 1, n, m) float64."""
    structures = head_structures(bias, num_heads, layout.positions)
    if isinstance(bias, Plsh) and bias.parts.num_heads == 1:
        structures = structures[:1]
    if any(isinstance(one, PartitionSet) for one in structures):
        check_draws(layout)
    rows, columns = layout.offset + torch.arange(layout.n)[:, None], torch.arange(layout.m)
    distance = (rows - columns).abs().double()
    return torch.stack(
        [
            torch.where(distance <= one.width, -distance / one.sigma, -torch.inf)
            if isinstance(one, Decay)
            else _draws_at(one, layout)
            for one in structures
        ]
    )


def _draws_at(parts: PartitionSet, layout: Layout) -> torch.Tensor:
    """Return ln M~ (n, m) of one head; queries before position 0 are in no block."""
    whole = torch.from_numpy(m_tilde(parts))
    out = whole.new_zeros(layout.n, layout.m)
    first = min(max(0, -layout.offset), layout.n)
    out[first:] = whole[max(0, layout.offset) : max(0, layout.offset + layout.n), : layout.m]
    return out.log()


def _mean_of_draws(parts: PartitionSet, under, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the weighted mean of the outputs over the draws in which a row has keys; 0 where there is none."""
    total, mass = 0.0, 0.0
    for k in range(parts.num_draws):
        weight = torch.from_numpy(parts.weights[:, k, None])
        # A draw that weighs 0 is none: 0 times NaN would be seen.
        out, lse = under(Plsh(one_draw(parts, k)), (weight > 0)[..., None].to(device))
        weight = torch.where(lse == -torch.inf, 0.0, weight.to(device, dtype))
        total, mass = total + weight[..., None] * out.to(dtype), mass + weight
    return total / torch.where(mass == 0, 1.0, mass)[..., None]


def _attend(q, k, v, log_weights, seen, dtype: torch.dtype, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over the seen keys of scale q k^T + log_weights, in `dtype`; the rows of a key head's queries as one."""
    *batch, h, n, d = q.shape
    g, m, e = v.shape[-3:]
    rows = (*batch, g, h // g * n)
    seen = seen.expand(*batch, h, n, m).reshape(*rows, m)
    log_weights = log_weights.expand(*batch, h, n, m).reshape(*rows, m)
    scores = scale * _Scores.apply(q.to(dtype).reshape(*rows, d), k.to(dtype), seen)
    logits = (scores + log_weights).masked_fill(~seen, -torch.inf)
    largest = logits.amax(dim=-1, keepdim=True).detach() if m else logits.new_zeros(*rows, 1)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    terms = (logits - largest).exp()
    total = terms.sum(dim=-1, keepdim=True)
    empty = ~seen.any(dim=-1, keepdim=True)
    out = _Mix.apply(terms, v.to(dtype), seen) / torch.where(empty, 1.0, total)
    lse = torch.where(empty, -torch.inf, torch.where(empty, 1.0, total).log() + largest)
    return out.reshape(*batch, h, n, e).to(q.dtype), lse.reshape(*batch, h, n)


class _Scores(torch.autograd.Function):
    """q k^T; the gradients take the seen pairs only."""

    @staticmethod
    def forward(ctx, q, k, seen):
        ctx.save_for_backward(q, k, seen)
        return q @ k.transpose(-1, -2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, seen = ctx.saved_tensors
        return _sum_over_seen(grad, k, seen), _sum_over_seen(grad.mT, q, seen.mT), None


class _Mix(torch.autograd.Function):
    """terms v over the seen pairs, forward and in the gradients."""

    @staticmethod
    def forward(ctx, terms, v, seen):
        ctx.save_for_backward(terms, v, seen)
        return _sum_over_seen(terms, v, seen)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        terms, v, seen = ctx.saved_tensors
        d_terms = (grad @ v.mT).masked_fill(~seen, 0.0)
        return d_terms, _sum_over_seen(terms.mT, grad, seen.mT), None


def _sum_over_seen(terms: torch.Tensor, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """sum_j terms_ij x_j over the seen pairs; a row x_j that is not finite reaches no other i (0 times NaN is NaN)."""
    terms = terms.masked_fill(~seen, 0.0)
    bad = ~x.isfinite().all(dim=-1)
    if not bool(bad.any()):
        return terms @ x
    total = terms @ x.masked_fill(bad[..., None], 0.0)
    for j in bad.flatten(0, -2).any(dim=0).nonzero().flatten().tolist():
        reached = seen[..., j] & bad[..., None, j]
        total = total + torch.where(reached[..., None], terms[..., j, None] * x[..., None, j, :], 0.0)
    return total


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: torch.Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim < 3:
            raise ValueError(f"{name} must have shape (..., heads, positions, head dim), got {tuple(tensor.shape)}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must agree but for the head dim, got {tuple(k.shape)} and {tuple(v.shape)}")
    if q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must agree in batch and head dim, got {tuple(q.shape)} and {tuple(k.shape)}")
    if k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise ValueError(f"query heads must be a multiple of key heads, got {q.shape[-3]} and {k.shape[-3]}")
    full = (q.shape[-3], q.shape[-2], k.shape[-2])
    if weights.ndim > 3 or any(
        size not in (1, whole) for size, whole in zip(weights.shape[::-1], full[::-1], strict=False)
    ):
        raise ValueError(f"weights must broadcast to (h, n, m) = {full}, got {tuple(weights.shape)}")
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError("weights must be finite and at least 0")
