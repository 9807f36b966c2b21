"""Partitions as compact tables on a device: what the Triton kernels read in place of masks.

Shapes: h heads, s draws, N positions (the capacity of the set). Per head the tables take 0.25 s + 8 bytes per position:
at s = 20 that is 13 bytes per token and head, 0.4 KB per token with 32 heads. Building them on the device takes about
three times as much for a moment, and 100 bytes per block of the draws listed at once (2^20 blocks, or one draw).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

POSITIONS_PER_WORD = 32
STARTS_AT_A_TIME = 1 << 20


class Tables(NamedTuple):
    """All draws of all heads on one device.

    blocks (h, s, ceil(N / 32), 2) int32: a word with one bit per position, set where a block starts, and the number of
    starts in all words before; the number of starts up to a position names its block. weights (h, s) float32: 1 per
    draw where all draws of a head weigh the same, so that their sums are exact counts; unit (h,) float32 takes sums to
    weights. first, end (h, N) int32: where the widest block around each position starts and ends.
    """

    blocks: torch.Tensor
    weights: torch.Tensor
    unit: torch.Tensor
    first: torch.Tensor
    end: torch.Tensor


class Draws:
    """The draws of a PartitionSet, for the kernels; reuse the object for all calls with the same draws.

    parts: anything with widths, shifts, weights (h, s) and a capacity, the number of positions. The tables are built at
    the first call on each device.
    """

    def __init__(self, parts):
        self.num_heads, self.num_draws = parts.widths.shape
        self.capacity = int(parts.capacity)
        self._parts = parts
        self._tables: dict[torch.device, Tables] = {}

    def on(self, device: torch.device) -> Tables:
        """Return the tables on the device."""
        if device not in self._tables:
            self._tables[device] = _tables(self._parts, device)
        return self._tables[device]


def _tables(parts, device: torch.device) -> Tables:
    (h, s), capacity = parts.widths.shape, int(parts.capacity)
    words = -(-capacity // POSITIONS_PER_WORD)
    marks = torch.zeros(h, s, words, dtype=torch.int32, device=device)
    single = torch.from_numpy(parts.widths < 1.0).to(device)
    marks.masked_fill_(single[..., None], -1)
    first = torch.arange(capacity, dtype=torch.int32, device=device).repeat(h, 1)
    end = first + 1
    draws = np.flatnonzero(parts.widths.reshape(-1) >= 1.0)
    widths = np.minimum(parts.widths.reshape(-1)[draws], capacity)
    shifts = np.minimum(parts.shifts.reshape(-1)[draws], capacity)
    # At least as many candidates as there are starts: position 0, then k = 0, 1, ... until the capacity is reached.
    counts = (np.maximum(capacity - 1 - shifts, 0.0) / widths).astype(np.int64) + 3
    edges = np.cumsum(counts)
    lo = 0
    while lo < draws.size:
        done = edges[lo - 1] if lo else 0
        hi = max(lo + 1, int(np.searchsorted(edges, done + STARTS_AT_A_TIME, side="right")))
        chunk = (draws[lo:hi], counts[lo:hi], widths[lo:hi], shifts[lo:hi])
        chunk = tuple(torch.from_numpy(x).to(device) for x in chunk)
        weighs = torch.from_numpy(parts.weights.reshape(-1)[draws[lo:hi]] > 0.0).to(device)
        _enter(marks, first, end, chunk, weighs, total=int(counts[lo:hi].sum()))
        lo = hi
    first = first.flip(-1).cummin(-1).values.flip(-1).contiguous()
    end = end.cummax(-1).values
    ones = _count_ones(marks)
    before = ones.cumsum(-1, dtype=torch.int32) - ones
    equal = (parts.weights == parts.weights[:, :1]).all(axis=1, keepdims=True)
    weights = np.where(equal, 1.0, parts.weights).astype(np.float32)
    unit = np.where(equal, parts.weights[:, :1], 1.0)[:, 0].astype(np.float32)
    blocks = torch.stack((marks, before), dim=-1)
    return Tables(blocks, torch.from_numpy(weights).to(device), torch.from_numpy(unit).to(device), first, end)


def _enter(marks, first, end, chunk, weighs, total: int) -> None:
    """Mark the block starts of some draws and widen `first` and `end` to the blocks of draws that weigh anything."""
    draws, counts, widths, shifts = chunk
    (_, s, words), capacity = marks.shape, first.shape[1]
    owner = torch.repeat_interleave(torch.arange(len(draws), device=draws.device), counts, output_size=total)
    begins = counts.cumsum(0) - counts
    place = torch.arange(total, device=draws.device) - begins[owner] - 1
    # The rule for boundaries as PartitionSet states it, in float64: product, sum and ceil are rounded one by one.
    start = place.double().mul_(widths[owner]).add_(shifts[owner]).ceil_().clamp_(0, capacity).to(torch.int64)
    start.masked_fill_(place < 0, 0)
    stop = torch.full_like(start, capacity)
    stop[:-1] = start[1:]
    stop[begins[1:] - 1] = capacity
    real = stop > start
    at = start.clamp(max=capacity - 1)
    word = draws[owner] * words + at // POSITIONS_PER_WORD
    bit = torch.where(real, 1 << (at % POSITIONS_PER_WORD), 0).to(torch.int32)
    # Starts of a draw are distinct, so a sum of their bits is their union.
    marks.view(-1).index_add_(0, word, bit)
    real &= weighs[owner]
    row = torch.div(draws, s, rounding_mode="floor")[owner] * capacity
    reach = torch.where(real, stop, 0).to(torch.int32)
    end.view(-1).scatter_reduce_(0, row + at, reach, "amax")
    reach = torch.where(real, start, capacity).to(torch.int32)
    first.view(-1).scatter_reduce_(0, row + (stop - 1).clamp_(min=0), reach, "amin")


def _count_ones(words: torch.Tensor) -> torch.Tensor:
    """Return the number of set bits of each int32."""
    pairs = words - ((words >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    eights = (fours + (fours >> 4)) & 0x0F0F0F0F
    sums = eights + (eights >> 8)
    return (sums + (sums >> 16)) & 0x3F
