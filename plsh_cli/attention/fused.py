"""Attention in one pass over the pairs that the bias lets see each other, on the CPU: the operator of backend `fused`.

Each score is computed once and weighted: by exp(-distance / sigma) inside a band, or by the total weight of the draws
in which query and key share a block. Nothing of size n x m is stored, forward or backward; sums are float32 in a
fixed order.
Shapes: b batch, h query heads, g key/value heads (h is a multiple of g), n queries, m keys, d head dim, s draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from plsh_cli.attention import native
from plsh_cli.attention.inputs import Layout, check, check_structure

PAD_TO = 16  # the kernels read rows in whole vectors


@dataclass(frozen=True, eq=False)
class Band:
    """Per head: logit - distance / sigma, for distances up to `width` tokens.

    sigma, width: one number per head, > 0 and >= 0; inf for no decay and for no cut. Exact ALiBi: width = inf.
    """

    sigma: Sequence[float]
    width: Sequence[float]
    capacity = None  # serves any number of positions

    def __post_init__(self) -> None:
        if len(self.sigma) != len(self.width) or len(self.sigma) == 0:
            raise ValueError(f"sigma and width: one of each per head, got {len(self.sigma)} and {len(self.width)}")
        if not all(x > 0 for x in self.sigma):
            raise ValueError(f"sigma: must be > 0, got {list(self.sigma)}")
        if not all(x >= 0 for x in self.width):
            raise ValueError(f"width: must be >= 0 tokens, got {list(self.width)}")

    @property
    def num_heads(self) -> int:
        return len(self.sigma)


class Draws:
    """The draws of a PartitionSet, prepared for the kernels; reuse the object for all calls with the same draws.

    parts: anything with widths, shifts, weights (h, s) and a capacity, the number of positions.
    """

    def __init__(self, parts, num_threads: int | None = None):
        self.num_heads, self.num_draws = parts.widths.shape
        self.capacity = int(parts.capacity)
        threads = torch.get_num_threads() if num_threads is None else num_threads
        self.table = native.BlockTable(parts.widths, parts.shifts, parts.weights, self.capacity, threads)


def fused_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    structure: Band | Draws,
    *,
    causal: bool,
    scale: float | None = None,
    q_offset: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
    num_threads: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (b, h, n, d) in q's dtype and lse (b, h, n), float32, natural logarithm; differentiable in q, k, v.

    q (b, h, n, d), k and v (b, g, m, d): float32, bfloat16 or float16 on the CPU, any strides. Query i is at position
    i + q_offset (default m - n: the last query at the last key) and under `causal` sees keys up to there. scale:
    default d ** -0.5. cu_seqlens: offsets of packed documents (int32 or int64, ascending from 0 to n = m): queries see
    their own document only. key_padding_mask (b, m) bool: True for keys that count. A row without keys gives 0 and
    -inf, gradient 0. A number that is not finite reaches only the rows that see it. Raises ValueError for what does
    not fit.
    """
    layout, scale = check(
        q, k, v, causal=causal, scale=scale, q_offset=q_offset, cu_seqlens=cu_seqlens, key_padding_mask=key_padding_mask
    )
    if q.dtype not in native.DTYPES or q.device.type != "cpu":
        raise ValueError(f"q: is {q.dtype} on {q.device}, must be float32, bfloat16 or float16 on the CPU")
    check_structure(structure.num_heads, structure.capacity, q.shape[1], layout)
    threads = torch.get_num_threads() if num_threads is None else int(num_threads)
    if threads < 1:
        raise ValueError(f"num_threads = {num_threads}: must be at least 1")
    dim = q.shape[-1]
    if dim % PAD_TO:
        q, k, v = (torch.nn.functional.pad(x, (0, -dim % PAD_TO)) for x in (q, k, v))
    keep = None if layout.keep is None else layout.keep.contiguous()
    task = _Task(structure, replace(layout, keep=keep), scale, threads)
    out, lse = _Fused.apply(q, k, v, task)
    return out[..., :dim], lse


@dataclass(frozen=True, eq=False)
class _Task:
    structure: Band | Draws
    layout: Layout
    scale: float
    threads: int

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> native.Call:
        call = native.Call()
        (call.batch, call.heads, call.queries, call.dim), (call.key_heads, call.keys) = q.shape, k.shape[1:3]
        layout = self.layout
        call.query_offset, call.causal, call.scale, call.threads = (
            layout.offset,
            layout.causal,
            self.scale,
            self.threads,
        )
        call.type = native.DTYPES[q.dtype]
        call.q, call.k, call.v = native.Array.of(q), native.Array.of(k), native.Array.of(v)
        if layout.documents is not None:
            call.documents, call.document_starts = len(layout.documents) - 1, layout.documents.ctypes.data
        if layout.keep is not None:
            call.keep = layout.keep.data_ptr()
        if isinstance(self.structure, Draws):
            call.partitions = self.structure.table.pointer
        else:
            slopes = np.array([1.0 / x for x in self.structure.sigma], dtype=np.float32)
            widths = np.array([min(float(x), 2.0**30) for x in self.structure.width]).astype(np.int64)
            call.slopes, call.widths, call.kept = slopes.ctypes.data, widths.ctypes.data, (slopes, widths)
        return call


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, task):
        q, k, v = (_readable(x) for x in (q, k, v))
        out = torch.empty(q.shape, dtype=q.dtype)
        lse = torch.empty(q.shape[:3], dtype=torch.float32)
        call = task.call(q, k, v)
        call.out, call.lse = native.Array.of(out), lse.data_ptr()
        native.run("forward", call)
        ctx.task = task
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, out, lse = ctx.saved_tensors
        if d_out is None:
            if d_lse is None:
                return None, None, None, None
            d_out = torch.zeros_like(out)
        d_out = _readable(d_out)
        d_lse = None if d_lse is None else d_lse.float().contiguous()
        d_q = torch.empty(q.shape, dtype=q.dtype)
        d_k, d_v = (torch.zeros(x.shape, dtype=torch.float32) for x in (k, v))
        call = ctx.task.call(q, k, v)
        call.out, call.d_out, call.lse = native.Array.of(out), native.Array.of(d_out), lse.data_ptr()
        call.d_lse = None if d_lse is None else d_lse.data_ptr()
        call.d_q, call.d_k, call.d_v = native.Array.of(d_q), native.Array.of(d_k), native.Array.of(d_v)
        native.run("backward", call)
        return d_q, d_k.to(k.dtype), d_v.to(v.dtype), None


def _readable(x: torch.Tensor) -> torch.Tensor:
    """Return x in a layout that the kernels read in place: unit last stride, 16-bit rows on even offsets."""
    x = x.detach()
    in_place = x.stride(-1) == 1 and (x.element_size() == 4 or all(s % 2 == 0 for s in x.stride()[:3]))
    return x if in_place else x.clone(memory_format=torch.contiguous_format)
