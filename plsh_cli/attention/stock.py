"""Ordinary attention over many short sequences, forward and backward from a given lse: what the blocks are made of.

On the CPU both are torch's own flash kernels, which take and return the lse; on other devices matrix products, in
chunks of bounded size. Shapes: c sequences, b batch, n queries, m keys, d head dim. Nothing here keeps a graph.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from plsh_cli.attention.inputs import compute_dtype

# A mask entry that removes a pair. Finite, so that a row of removed pairs has a finite softmax; see `EMPTY`.
REMOVED = -1e30
# The lse of such a row is below this.
EMPTY = -1e29
# Scores that the matrix products hold at once.
CHUNK_SCORES = 1 << 24


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (c, b, n, d) in q's dtype and lse (c, b, n) in float32 (float64 for float64).

    causal needs n = m: query i sees keys up to i. mask, added to the scores: (n, m), or (c or 1, b
    or 1, n or 1, m).
    """
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
    return attend_by_products(q, k, v, causal=causal, mask=mask, scale=scale)


def attend_backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (d_q, d_k, d_v) of the terms exp(score - lse): the share of these keys in a softmax over more of them.

    out and lse are those of the whole softmax, with finite lse.
    """
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_out, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
        )
    return attend_backward_by_products(d_out, q, k, v, out, lse, causal=causal, mask=mask, scale=scale)


def attend_by_products(q, k, v, *, causal, mask, scale) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend` in plain matrix products, any device."""
    dtype = compute_dtype(q.dtype)
    out, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:-1], dtype=dtype)
    for at, rows in _chunks(q, k):
        scores = _scores(q, k, mask, at, rows, causal, scale, dtype)
        lse[at, :, rows] = scores.logsumexp(dim=-1)
        out[at, :, rows] = (scores.softmax(dim=-1) @ v[at].to(dtype)).to(q.dtype)
    return out, lse


def attend_backward_by_products(d_out, q, k, v, out, lse, *, causal, mask, scale):
    """`attend_backward` in plain matrix products, any device."""
    dtype = compute_dtype(q.dtype)
    d_q, d_k, d_v = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (q, k, v))
    for at, rows in _chunks(q, k):
        scores = _scores(q, k, mask, at, rows, causal, scale, dtype)
        terms = (scores - lse[at, :, rows].unsqueeze(-1)).exp()
        grad = d_out[at, :, rows].to(dtype)
        delta = (grad * out[at, :, rows].to(dtype)).sum(dim=-1, keepdim=True)
        d_scores = terms * (grad @ v[at].to(dtype).mT - delta)
        d_q[at, :, rows] = scale * (d_scores @ k[at].to(dtype))
        d_k[at] += scale * (d_scores.mT @ q[at, :, rows].to(dtype))
        d_v[at] += terms.mT @ grad
    return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)


def _scores(q, k, mask, at: slice, rows: slice, causal: bool, scale: float, dtype: torch.dtype) -> torch.Tensor:
    scores = scale * (q[at, :, rows].to(dtype) @ k[at].to(dtype).mT)
    if mask is not None:
        full = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        scores += full[at, :, rows]
    if causal:
        place = torch.arange(q.shape[2], device=q.device)
        scores.masked_fill_(place[None, :] > place[rows, None], -torch.inf)
    return scores


def _chunks(q: torch.Tensor, k: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of sequences and of queries that keep the scores within CHUNK_SCORES where one row allows it."""
    count, batch, n, m = *q.shape[:3], k.shape[2]
    sequences = max(1, CHUNK_SCORES // max(1, batch * n * m))
    rows = max(1, min(n, CHUNK_SCORES // max(1, batch * m)))
    for first in range(0, count, sequences):
        for row in range(0, n, rows):
            yield slice(first, first + sequences), slice(row, row + rows)
