"""Device functions of the Triton kernels: which query-key pairs of a tile count, and with what bias.

Positions are those of keys: 0..m-1 for keys, i + q_offset for query i. A tile's positions come as a column for one side
and a row for the other, so that the same functions serve scores and transposed scores. `sizes` is m, the capacity of
the tables, the number of draws and the words of a draw.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Pairs(NamedTuple):
    """Which pairs count, as tensors on the device; None where a part is not asked for.

    Draws: the fields of triton_draws.Tables. Band: slopes (h,) float32, widths (h,) int32. Documents: document_first
    and document_end (n,) int32 per position. keep (b, m) uint8.
    """

    blocks: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    unit: torch.Tensor | None = None
    first: torch.Tensor | None = None
    end: torch.Tensor | None = None
    slopes: torch.Tensor | None = None
    widths: torch.Tensor | None = None
    document_first: torch.Tensor | None = None
    document_end: torch.Tensor | None = None
    keep: torch.Tensor | None = None


@triton.jit
def reach(pairs, table, begin, last, sizes):
    """[low, high) around all positions that positions begin..last may share weight with, documents considered."""
    capacity = sizes[1]
    inner, outer = tl.maximum(begin, 0), tl.maximum(tl.minimum(last, capacity - 1), 0)
    if pairs.blocks is not None:
        low = tl.load(pairs.first + table * capacity + tl.minimum(inner, capacity - 1))
        high = tl.load(pairs.end + table * capacity + outer)
    else:
        width = tl.load(pairs.widths + table)
        low, high = begin - width, last + width + 1
    if pairs.document_first is not None:
        low = tl.maximum(low, tl.load(pairs.document_first + inner))
        high = tl.minimum(high, tl.load(pairs.document_end + outer))
    return low, high


@triton.jit
def block_of(blocks, position):
    """Number of the block that holds each position, of one draw."""
    entry = blocks + (position >> 5) * 2
    marks = tl.load(entry).to(tl.uint32, bitcast=True) << (31 - (position & 31))
    marks = marks - ((marks >> 1) & 0x55555555)
    marks = (marks & 0x33333333) + ((marks >> 2) & 0x33333333)
    marks = (marks + (marks >> 4)) & 0x0F0F0F0F
    marks = marks + (marks >> 8)
    marks = (marks + (marks >> 16)) & 0x3F
    return tl.load(entry + 1) + marks.to(tl.int32)


@triton.jit
def joint_weight(pairs, table, at_q, at_k, begin_q, last_q, begin_k, last_k, sizes):
    """Total weight of the draws in which query and key share a block; exactly 0 where none does.

    A draw costs work per pair only where one of its boundaries passes through the tile.
    """
    num_draws, words = sizes[2], sizes[3]
    lanes = tl.arange(0, 32)
    total = tl.zeros_like((at_q + at_k).to(tl.float32))
    for begin in range(0, num_draws, 32):
        draws = table * num_draws + tl.minimum(begin + lanes, num_draws - 1)
        weight = tl.where(begin + lanes < num_draws, tl.load(pairs.weights + draws), 0.0)
        blocks = pairs.blocks + draws * words * 2
        from_q, to_q = block_of(blocks, begin_q), block_of(blocks, last_q)
        from_k, to_k = block_of(blocks, begin_k), block_of(blocks, last_k)
        whole = tl.minimum(from_q, from_k) == tl.maximum(to_q, to_k)
        total += tl.sum(tl.where(whole, weight, 0.0), 0)
        some = (tl.maximum(from_q, from_k) <= tl.minimum(to_q, to_k)) & (weight > 0)
        cut = tl.sum(tl.where(some & (whole == 0), tl.full([32], 1, tl.int64) << lanes, 0), 0)
        for lane in range(tl.minimum(32, num_draws - begin)):
            if (cut >> lane) & 1 != 0:
                draw = table * num_draws + begin + lane
                blocks_of_draw = pairs.blocks + draw * words * 2
                same = block_of(blocks_of_draw, at_q) == block_of(blocks_of_draw, at_k)
                total += tl.where(same, tl.load(pairs.weights + draw), 0.0)
    return total * tl.load(pairs.unit + table)


@triton.jit
def seen_and_bias(
    pairs, table, batch, at_q, at_k, begin_q, last_q, begin_k, last_k, sizes, CAUSAL: tl.constexpr
):  # fmt: skip
    """Return for each pair whether query sees key, and what its logit gains (0 where it does not).

    begin_q..last_q and begin_k..last_k are the positions in the tile that exist.
    """
    if pairs.blocks is not None:
        top = sizes[1] - 1
        inside_q, inside_k = tl.minimum(tl.maximum(at_q, 0), top), tl.minimum(at_k, top)
        begin_q, last_q = tl.minimum(tl.maximum(begin_q, 0), top), tl.minimum(tl.maximum(last_q, 0), top)
        weight = joint_weight(pairs, table, inside_q, inside_k, begin_q, last_q, begin_k, last_k, sizes)
        seen = weight > 0
        bias = tl.log(tl.where(seen, weight, 1.0))
    else:
        distance = tl.abs(at_q - at_k)
        seen = distance <= tl.load(pairs.widths + table)
        bias = -distance.to(tl.float32) * tl.load(pairs.slopes + table)
    seen = seen & (at_q <= last_q) & (at_k <= last_k)
    if CAUSAL:
        seen = seen & (at_k <= at_q)
    if pairs.document_first is not None:
        document_q = tl.load(pairs.document_first + at_q, mask=at_q <= last_q, other=0)
        seen = seen & (document_q == tl.load(pairs.document_first + at_k, mask=at_k <= last_k, other=0))
    if pairs.keep is not None:
        seen = seen & (tl.load(pairs.keep + batch * sizes[0] + at_k, mask=at_k <= last_k, other=0) != 0)
    return seen, bias
