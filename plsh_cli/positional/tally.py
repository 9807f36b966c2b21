"""How many blocks and token pairs a set of draws has: the cost of attention with it."""

from __future__ import annotations

import numpy as np

from plsh_cli.positional.partitions import PartitionSet


class Tally:
    """Counts over a growing number of draws on n positions.

    num_blocks; max_block, tokens; pairs_causal and pairs_bidirectional, the pairs that all block attentions score
    (causal pairs include the token itself); reach (n,) int64, the largest end of a block that holds each position.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.num_blocks = self.max_block = 0
        self.pairs_causal = self.pairs_bidirectional = 0.0
        self.reach = np.arange(1, n + 1)

    def add(self, blocks_of_length: np.ndarray, furthest_end: np.ndarray, single_draws: int) -> None:
        """Add blocks: their number by length (index 0: empty, ignored), the largest end among those that start at each
        position (n,), 0 for none, and how many draws besides leave every token alone."""
        counts = np.asarray(blocks_of_length, dtype=np.float64)
        lengths = np.arange(counts.size, dtype=np.float64)
        counts[0] = 0.0
        singles = single_draws * self.n
        self.num_blocks += int(counts.sum()) + singles
        self.max_block = max(self.max_block, int(lengths[counts > 0.0].max(initial=0.0)), int(single_draws > 0))
        self.pairs_causal += float(counts @ (lengths * (lengths + 1.0))) / 2.0 + singles
        self.pairs_bidirectional += float(counts @ lengths**2) + singles
        np.maximum(self.reach, np.maximum.accumulate(furthest_end), out=self.reach)

    def union_pairs_causal(self) -> int:
        """Distinct pairs (query, key <= query) that share a block in some draw: for every token, an interval."""
        return int((self.reach - np.arange(self.n)).sum())

    def union_pairs_bidirectional(self) -> int:
        """Distinct ordered pairs that share a block in some draw."""
        return 2 * self.union_pairs_causal() - self.n


def tally_blocks(parts: PartitionSet, head: int = 0) -> Tally:
    """Return the counts of one head's draws, O(blocks + n)."""
    tally = Tally(parts.capacity)
    blocks_of_length = np.zeros(parts.capacity + 1, dtype=np.int64)
    furthest_end = np.zeros(parts.capacity, dtype=np.int64)
    for _, edges in parts.start_tables(head):
        lengths = np.diff(edges, axis=1)
        kept = lengths > 0.0
        found = np.bincount(lengths[kept].astype(np.int64))
        blocks_of_length[: found.size] += found
        np.maximum.at(furthest_end, edges[:, :-1][kept].astype(np.int64), edges[:, 1:][kept].astype(np.int64))
    tally.add(blocks_of_length, furthest_end, int((parts.widths[head] < 1.0).sum()))
    return tally
