"""The shapes and masks of one attention call, checked once for all backends.

Shapes: b batch, h query heads, g key/value heads (h is a multiple of g), n queries, m keys, d head dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LARGEST_POSITION = 1 << 29  # positions and distances add up within int32 in the kernels


@dataclass(frozen=True, eq=False)
class Layout:
    """Who may see whom, but for the bias: query i is at position i + offset, key j at position j.

    documents: (documents + 1,) int64 offsets of packed documents, or None. keep: (b, m) bool, keys that count, or None.
    positions: how many positions the bias must cover.
    """

    n: int
    m: int
    causal: bool
    offset: int
    documents: np.ndarray | None
    keep: torch.Tensor | None

    @property
    def positions(self) -> int:
        return positions(self.n, self.m, self.offset)


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None,
    q_offset: int | None,
    cu_seqlens: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
) -> tuple[Layout, float]:
    """Return the layout and the scale (default d ** -0.5); ValueError naming the argument that does not fit."""
    _check_tensors(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not math.isfinite(scale):
        raise ValueError(f"scale = {scale}: must be finite")
    n, m = q.shape[2], k.shape[2]
    offset = m - n if q_offset is None else _offset(q_offset)
    if max(n, m, abs(offset)) >= LARGEST_POSITION:
        raise ValueError(f"q_offset = {offset}, n = {n}, m = {m}: must be below {LARGEST_POSITION} in size")
    documents = None if cu_seqlens is None else _documents(cu_seqlens, n, m, offset)
    if key_padding_mask is not None:
        _check_keep(key_padding_mask, q, m)
    return Layout(n, m, bool(causal), offset, documents, key_padding_mask), scale


def positions(n: int, m: int, offset: int) -> int:
    """Return how many positions draws must cover, at least 1: those of all keys and of all queries."""
    return max(1, m, n + offset)


def check_draws(layout: Layout) -> None:
    """Raise ValueError where draws would be asked about positions before 0."""
    if layout.offset < 0 and not layout.causal:
        raise ValueError(
            f"q_offset = {layout.offset}: must be >= 0 with blocks that are not causal, give q_offset "
            f"(the default is m - n = {layout.m - layout.n})"
        )


def check_structure(num_heads: int, capacity: int | None, heads: int, layout: Layout) -> None:
    """Raise ValueError where a kernel's band (capacity None) or draws are not for these heads and positions."""
    if num_heads != heads:
        raise ValueError(f"structure: is for {num_heads} heads, q has {heads}; must be the same")
    if capacity is None:
        return
    if capacity != layout.positions:
        raise ValueError(
            f"structure: draws for {capacity} positions, the call has {layout.positions}; see PartitionSet.prefix"
        )
    check_draws(layout)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums and of lse: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or 0 in (x.shape[1], x.shape[3]):
            raise ValueError(f"{name}: must have shape (batch, heads, positions, head dim), got {tuple(x.shape)}")
        if x.dtype not in DTYPES:
            raise ValueError(f"{name}: is {x.dtype}, must be one of {', '.join(str(t) for t in DTYPES)}")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name}: is {x.dtype} on {x.device}, q is {q.dtype} on {q.device}; must be the same")
    if k.shape != v.shape:
        raise ValueError(f"v: has shape {tuple(v.shape)}, must be that of k, {tuple(k.shape)}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"k: has shape {tuple(k.shape)}, must agree with q, {tuple(q.shape)}, in batch and head dim")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"q: has {q.shape[1]} heads, must be a multiple of the {k.shape[1]} heads of k and v")


def _offset(q_offset: int) -> int:
    if not (math.isfinite(q_offset) and int(q_offset) == q_offset):
        raise ValueError(f"q_offset = {q_offset}: must be a whole number, the position of the first query")
    return int(q_offset)


def _documents(cu_seqlens: torch.Tensor, n: int, m: int, offset: int) -> np.ndarray | None:
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        raise ValueError(
            f"cu_seqlens: is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, must be one row of int32 or int64"
        )
    if n != m or offset != 0:
        raise ValueError(f"cu_seqlens: needs n = m and q_offset = 0, got n = {n}, m = {m}, q_offset = {offset}")
    documents = cu_seqlens.cpu().numpy().astype(np.int64)
    if documents[0] != 0 or documents[-1] != n or (np.diff(documents) < 0).any():
        raise ValueError(f"cu_seqlens = {documents.tolist()[:9]}: must ascend from 0 to n = {n}")
    return np.unique(documents) if n else None


def _check_keep(keep: torch.Tensor, q: torch.Tensor, m: int) -> None:
    wanted = (q.shape[0], m)
    if keep.dtype != torch.bool or tuple(keep.shape) != wanted or keep.device != q.device:
        raise ValueError(
            f"key_padding_mask: is {keep.dtype} of shape {tuple(keep.shape)} on {keep.device}, "
            f"must be bool of shape {wanted} on {q.device}, True for keys that count"
        )
