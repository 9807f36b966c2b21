"""Dense attention under a multiplicative bias matrix: the specification of every faster way.

Shapes: b batch dimensions (any number, also none), h query heads, g key/value heads (h is a multiple of g; query head i
reads key head i // (h / g)), n queries, m keys, d head dim of queries and keys, e head dim of values.
Paper symbols: weights = L* or M~, out = T* or T~.
"""

from __future__ import annotations

import torch


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: torch.Tensor, *, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out_i = sum_j w_ij exp(s_ij) v_j / sum_j w_ij exp(s_ij) with s = scale q k^T, and lse_i = ln of the denominator.

    q (b.., h, n, d), k (b.., g, m, d), v (b.., g, m, e); weights (h, n, m), or anything that broadcasts to it, finite
    and >= 0, multiply the exponentials in numerator and denominator. A weight of 0 excludes its key exactly: it takes
    no part in the row's maximum either. causal: query i sees keys j <= i + m - n (the last query sees all: bottom-right
    alignment, so that queries may be the last n of m positions). A row that sees no key gives 0 and lse -inf, with
    gradient 0. Returns out (b.., h, n, e) in q's dtype and lse (b.., h, n), natural logarithm; both are computed in
    float32, or in float64 where an input is float64. Differentiable in all four tensors. Raises ValueError for shapes
    that do not fit and for weights that are negative or not finite.
    """
    _check(q, k, v, weights)
    dtype = torch.float32
    for tensor in (q, k, v, weights):
        dtype = torch.promote_types(dtype, tensor.dtype)
    scores = scale * _per_key_head(q.to(dtype), k.to(dtype).transpose(-1, -2))
    weights = weights.to(dtype)
    seen = weights > 0
    if causal:
        n, m = scores.shape[-2:]
        seen = seen & torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
    # ln 1 for excluded pairs keeps their gradient finite; the mask then removes them.
    logits = (scores + torch.where(seen, weights, 1.0).log()).masked_fill(~seen, -torch.inf)
    largest = logits.amax(dim=-1, keepdim=True).detach()
    largest = torch.where(largest.isfinite(), largest, 0.0)
    terms = (logits - largest).exp()
    total = terms.sum(dim=-1, keepdim=True)
    empty = total == 0
    out = _per_key_head(terms, v.to(dtype)) / torch.where(empty, 1.0, total)
    lse = torch.where(empty, -torch.inf, torch.where(empty, 1.0, total).log() + largest)
    return out.to(q.dtype), lse.squeeze(-1)


def _per_key_head(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left (b.., h, n, x) @ right (b.., g, x, y): a key head meets the rows of all its query heads, never repeated."""
    *batch, h, n, x = left.shape
    g = right.shape[-3]
    product = left.reshape(*batch, g, h // g * n, x) @ right
    return product.reshape(*batch, h, n, right.shape[-1])


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
