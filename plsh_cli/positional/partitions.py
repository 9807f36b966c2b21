"""Sets of random partitions of token positions: widths and shifts in, block boundaries out.

Paper symbols (Wolfson & Wagner 2026): a draw's width is `w`, its shift `u`, the number of draws `s`.

The rule for boundaries, evaluated in float64 exactly as written: the block starts of a draw are {0} U {ceil(shift + k *
width), k = 0, 1, ...} within [1, N - 1], without repetition; the last block ends at N. A width below 1 makes every
token a block. A token's block start therefore never depends on the capacity N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

PITCHES = ("real", "integer")


class Blocks(NamedTuple):
    """Blocks [start, end) of token positions and the draw each belongs to; int64 arrays, by draw, then by start."""

    draw: np.ndarray
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True, eq=False)
class PartitionSet:
    """`s` weighted random partitions of positions 0..capacity-1 for each of `h` heads.

    widths, shifts, weights: (h, s) float64, in tokens and tokens; a width may be inf; weights sum to 1 per head.
    groups: (h, s) int64, equal for the draws of a head that share one width (i.i.d. draws: all different). pitch:
    "real" or "integer" widths. With integer widths a draw at least as wide as the capacity has at most one boundary,
    which its shift holds (0 for none); its width is then only reported. Raises ValueError for anything else.
    """

    widths: np.ndarray
    shifts: np.ndarray
    weights: np.ndarray
    groups: np.ndarray
    capacity: int
    pitch: str

    def __post_init__(self) -> None:
        shape = self.widths.shape
        if len(shape) != 2 or 0 in shape or any(x.shape != shape for x in (self.shifts, self.weights, self.groups)):
            raise ValueError(
                f"widths of shape {shape}: widths, shifts, weights and groups must all be (heads, draws), not empty"
            )
        if self.capacity < 1:
            raise ValueError(f"capacity = {self.capacity}: must be at least 1")
        if self.pitch not in PITCHES:
            raise ValueError(f"pitch = {self.pitch!r}: must be one of {', '.join(PITCHES)}")
        if not (self.widths >= 0.0).all():
            raise ValueError(f"widths: must be >= 0, got {self.widths[~(self.widths >= 0.0)][0]}")
        if not (np.isfinite(self.shifts) & (self.shifts >= 0.0)).all():
            raise ValueError("shifts: must be finite and >= 0")
        if not ((self.weights >= 0.0).all() and np.allclose(self.weights.sum(axis=1), 1.0, rtol=0.0, atol=1e-9)):
            raise ValueError("weights: must be >= 0 and sum to 1 for each head")

    @property
    def num_heads(self) -> int:
        return self.widths.shape[0]

    @property
    def num_draws(self) -> int:
        return self.widths.shape[1]

    def equal_weights(self, head: int = 0) -> bool:
        """Whether all draws of the head weigh the same."""
        return bool((self.weights[head] == self.weights[head, 0]).all())

    def prefix(self, m: int) -> PartitionSet:
        """Return the same draws on positions 0..m-1, the last block clipped; ValueError unless 1 <= m <= capacity."""
        if not 1 <= m <= self.capacity:
            raise ValueError(
                f"m = {m}: must be between 1 and the capacity {self.capacity} that the partitions were drawn for"
            )
        return replace(self, capacity=int(m))

    def take(self, m: int) -> PartitionSet:
        """Return the first m draws of each head with weights 1/m; ValueError unless the draws are i.i.d."""
        if not 1 <= m <= self.num_draws:
            raise ValueError(f"m = {m}: must be between 1 and the number of draws {self.num_draws}")
        for head in range(self.num_heads):
            if not self.equal_weights(head) or np.unique(self.groups[head]).size != self.num_draws:
                raise ValueError(
                    f"m = {m}: only i.i.d. draws can be cut short, head {head} has weighted or grouped draws"
                )
        weights = np.full((self.num_heads, m), 1.0 / m)
        return replace(
            self, widths=self.widths[:, :m], shifts=self.shifts[:, :m], weights=weights, groups=self.groups[:, :m]
        )

    def head(self, i: int) -> PartitionSet:
        """Return head i as a set of one head."""
        if not 0 <= i < self.num_heads:
            raise ValueError(f"head = {i}: must be between 0 and {self.num_heads - 1}")
        rows = slice(i, i + 1)
        return replace(
            self,
            widths=self.widths[rows],
            shifts=self.shifts[rows],
            weights=self.weights[rows],
            groups=self.groups[rows],
        )

    def blocks(
        self, head: int = 0, first: int = 0, stop: int | None = None, chunk_blocks: int = 2_000_000
    ) -> Iterator[Blocks]:
        """Yield the blocks of draws first..stop-1 of a head, whole draws at a time and about `chunk_blocks` blocks
        each.

        Every position lies in exactly one block of each draw, and no block is empty.
        """
        widths, shifts = self._lattice(head, first, stop)
        counts = _interior_starts(widths, shifts, self.capacity)[1] + 1
        edges = np.cumsum(counts)
        lo = 0
        while lo < counts.size:
            done = edges[lo - 1] if lo else 0
            hi = max(lo + 1, int(np.searchsorted(edges, done + chunk_blocks, side="right")))
            chunk = _enumerate(widths[lo:hi], shifts[lo:hi], self.capacity)
            yield Blocks(chunk.draw + (first + lo), chunk.start, chunk.end)
            lo = hi

    def start_tables(
        self, head: int = 0, first: int = 0, stop: int | None = None, tile_entries: int = 1 << 17
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (draws (c,), edges (c, K) float64): block edges per draw, ascending from 0 to the capacity.

        Edges repeat where a draw has fewer than K - 1 blocks, so that a table is rectangular: consecutive edges are a
        block or an empty one. Draws of width below 1 are left out (all of their blocks are single tokens); the others
        come in order of width. For the loops that see 10^8 blocks: less than half the time of `blocks`.
        """
        widths, shifts = self._lattice(head, first, stop)
        order = np.argsort(widths, kind="stable")
        order = order[self.widths[head, first:stop][order] >= 1.0]
        live, widths, shifts = first + order, widths[order], shifts[order]
        lo = 0
        while lo < live.size:
            columns = int((self.capacity - 1) / widths[lo]) + 2  # k = 0..columns-1 reaches the capacity
            tile = max(1, tile_entries // columns)
            hi = lo + min(tile, int(np.searchsorted(widths[lo:], 2.0 * widths[lo], side="right")))
            edges = np.empty((hi - lo, columns + 2))
            inner = edges[:, 1:-1]
            np.multiply.outer(widths[lo:hi], np.arange(columns, dtype=np.float64), out=inner)
            inner += shifts[lo:hi, None]
            np.ceil(inner, out=inner)
            np.minimum(inner, float(self.capacity), out=inner)
            edges[:, 0], edges[:, -1] = 0.0, self.capacity
            yield live[lo:hi], edges
            lo = hi

    def block_starts_per_token(self, head: int = 0) -> np.ndarray:
        """Return the start of the block that holds each position, (s, capacity) int64: s * capacity entries."""
        starts = np.empty((self.num_draws, self.capacity), dtype=np.int64)
        for blocks in self.blocks(head):
            first, last = blocks.draw[0], blocks.draw[-1]
            starts[first : last + 1] = np.repeat(blocks.start, blocks.end - blocks.start).reshape(-1, self.capacity)
        return starts

    def _lattice(self, head: int, first: int, stop: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return widths and shifts in [0, capacity] that give the same boundaries.

        Single tokens are blocks of width 1; from the capacity on, a width or shift puts no boundary inside.
        """
        widths, shifts = self.widths[head, first:stop], self.shifts[head, first:stop]
        shifts = np.minimum(np.where(widths < 1.0, 0.0, shifts), self.capacity)
        return np.clip(widths, 1.0, self.capacity), shifts


def stack(parts: Sequence[PartitionSet]) -> PartitionSet:
    """Return the heads of several sets as one set; they must agree in capacity, pitch and number of draws."""
    if not parts:
        raise ValueError("parts: must hold at least one set")
    kinds = {(p.capacity, p.pitch, p.num_draws) for p in parts}
    if len(kinds) > 1:
        raise ValueError(f"parts: must agree in capacity, pitch and number of draws, got {sorted(kinds)}")
    columns = ("widths", "shifts", "weights", "groups")
    return replace(parts[0], **{name: np.concatenate([getattr(p, name) for p in parts]) for name in columns})


def _interior_starts(widths: np.ndarray, shifts: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (k, count), int64: the first k with a boundary in [1, capacity - 1] and how many there are, per draw."""
    last_position = float(capacity - 1)
    first = (shifts == 0.0).astype(np.int64)
    last = np.floor((last_position - shifts) / widths)
    # The quotient may be one off; the rule in the module's docstring decides.
    last += shifts + (last + 1.0) * widths <= last_position
    last -= shifts + last * widths > last_position
    return first, np.maximum(last.astype(np.int64) - first + 1, 0)


def _enumerate(widths: np.ndarray, shifts: np.ndarray, capacity: int) -> Blocks:
    """Return all blocks of draws with widths in [1, capacity]."""
    first, interior = _interior_starts(widths, shifts, capacity)
    counts = interior + 1
    offsets = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum()), dtype=np.float64)
    place += np.repeat((first - 1 - offsets).astype(np.float64), counts)
    place *= np.repeat(widths, counts)
    place += np.repeat(shifts, counts)
    start = np.ceil(place, out=place).astype(np.int64)
    start[offsets] = 0
    end = np.empty_like(start)
    end[:-1] = start[1:]
    end[offsets + interior] = capacity
    draw = np.repeat(np.arange(widths.size), counts)
    if (kept := end > start).all():
        return Blocks(draw, start, end)
    # Rounding can put two boundaries of a width within one ulp of 1 on the same token.
    return Blocks(draw[kept], start[kept], end[kept])
