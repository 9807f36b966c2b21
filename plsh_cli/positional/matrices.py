"""Dense and banded bias matrices: L* = E[M~] and M~ = sum_k weight_k M_k.

Code names and paper symbols: `l_star` is L*, `m_tilde` is M~ (the weighted mean of the draws' block-diagonal 0/1
masks). All are symmetric, over both triangles; nothing here is causal.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import toeplitz

from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.tally import Tally

# Block keys collected before they are counted, at least: a histogram pass costs its whole size.
FLUSH_ENTRIES = 1 << 20


def l_star(kernel: Kernel, n: int) -> np.ndarray:
    """Return L*[i, j] = phi(|i - j|), (n, n) float64."""
    kernel.check(n)
    return toeplitz(kernel.phi(np.arange(n)))


def m_tilde(parts: PartitionSet, head: int = 0) -> np.ndarray:
    """Return M~ of one head, (N, N) float64, in O(blocks + N * widest block + N^2) time: see `Band`."""
    return Band(parts, head).add(parts.num_draws).dense()


def m_tilde_by_comparison(parts: PartitionSet, head: int = 0) -> np.ndarray:
    """Return M~ by comparing the block of every pair of positions in every draw: the specification, O(s N^2)."""
    total = np.zeros((parts.capacity, parts.capacity))
    for starts, weight in zip(parts.block_starts_per_token(head), parts.weights[head], strict=True):
        total += weight * (starts[:, None] == starts[None, :])
    return total


def m_tilde_by_slices(parts: PartitionSet, head: int = 0) -> np.ndarray:
    """Return M~ by adding each block's weight to its square: the usual way, for comparison of speed."""
    total = np.zeros((parts.capacity, parts.capacity))
    for blocks in parts.blocks(head):
        weights = parts.weights[head, blocks.draw].tolist()
        for start, end, weight in zip(blocks.start.tolist(), blocks.end.tolist(), weights, strict=True):
            total[start:end, start:end] += weight
    return total


class Band:
    """The diagonals of M~ from the main one to number width - 1, for a growing number of draws of one head.

    A block [a, e) is one entry of a histogram over (start, length). Summed over longer lengths, and then from row to
    row along M[i, k] += M[i-1, k+1] (the same column of M~), it is the band: a difference array over block corners, in
    band storage. Time O(blocks + N * width). `width` exceeds every block of the set, so M~ is 0 beyond.

    sums: (N, width), `sums[i, k] = M~[i, i + k]` times the number of draws, as int64, when all weigh the same; else M~
    itself. Entries past the last column of M~ are 0. tally: the counts of the draws added.
    """

    def __init__(self, parts: PartitionSet, head: int = 0) -> None:
        self.parts, self.head, self.n = parts, head, parts.capacity
        self.width = band_width(parts, head)
        self.counted = parts.equal_weights(head)
        self.sums = np.zeros((self.n, self.width), dtype=np.int64 if self.counted else np.float64)
        self.num_draws = 0
        self.tally = Tally(self.n)

    def add(self, stop: int) -> Band:
        """Add the draws up to number `stop` of the set, and return the band."""
        if not self.num_draws <= stop <= self.parts.num_draws:
            raise ValueError(f"stop = {stop}: must be between {self.num_draws} and {self.parts.num_draws}")
        new = slice(self.num_draws, stop)
        singles = self.parts.widths[self.head, new] < 1.0
        counts = self._histogram(stop, weighted=False)
        blocks_of_length = counts.sum(axis=0)
        sums = _sum_longer(counts)
        furthest_end = np.arange(self.n) + np.count_nonzero(sums, axis=1)
        self.tally.add(blocks_of_length, furthest_end, int(singles.sum()))
        if not self.counted:
            sums = _sum_longer(self._histogram(stop, weighted=True))
        for row in range(1, self.n):
            sums[row, :-1] += sums[row - 1, 1:]
        self.sums += sums
        self.sums[:, 0] += singles.sum() if self.counted else self.parts.weights[self.head, new][singles].sum()
        self.num_draws = stop
        return self

    def values(self) -> np.ndarray:
        """Return M~[i, i + k] of the draws added so far, (N, width) float64."""
        return self.sums / (self.num_draws if self.counted else 1.0)

    def dense(self) -> np.ndarray:
        """Return M~ of the draws added so far, (N, N) float64."""
        out = np.zeros((self.n, self.n))
        for row, values in enumerate(self.values()):
            out[row, row : row + self.width] = values[: self.n - row]
        tile = 512
        for top in range(0, self.n, tile):
            rows = slice(top, top + tile)
            out[rows, rows] += np.triu(out[rows, rows], 1).T
            for left in range(top + tile, min(self.n, top + tile + self.width), tile):
                columns = slice(left, left + tile)
                out[columns, rows] = out[rows, columns].T
        return out

    def max_error(self, kernel: Kernel) -> float:
        """Return max |M~ - L*| over all pairs, of the draws added so far."""
        whole = self.n - self.width + 1
        lowest = self.sums[:whole].min(axis=0)
        for row in range(whole, self.n):
            np.minimum(lowest[: self.n - row], self.sums[row, : self.n - row], out=lowest[: self.n - row])
        scale = self.num_draws if self.counted else 1.0
        phi = kernel.phi(np.arange(self.width))
        beyond = kernel.phi(self.width) if self.width < self.n else 0.0
        return float(max((self.sums.max(axis=0) / scale - phi).max(), (phi - lowest / scale).max(), beyond))

    def _histogram(self, stop: int, weighted: bool) -> np.ndarray:
        """Return the number or weight of new blocks by (start, length), (N, width + 1); length 0 holds no blocks."""
        size = (self.n + 1) * (self.width + 1)
        total = np.zeros(size, dtype=np.float64 if weighted else np.int64)
        keys: list[np.ndarray] = []
        masses: list[np.ndarray] = []
        held = 0
        for draws, edges in self.parts.start_tables(self.head, self.num_draws, stop):
            key = edges[:, :-1] * self.width  # start * (width + 1) + length = start * width + end
            key += edges[:, 1:]
            keys.append(key.astype(np.int64).ravel())
            if weighted:
                masses.append(np.repeat(self.parts.weights[self.head, draws], key.shape[1]))
            held += key.size
            if held > max(size // 2, FLUSH_ENTRIES):
                total += _bincount(keys, masses, size)
                held = 0
        total += _bincount(keys, masses, size)
        return total.reshape(self.n + 1, self.width + 1)[: self.n]


def band_width(parts: PartitionSet, head: int = 0) -> int:
    """Return a number of diagonals that holds every block: the widest rounded up, one more for rounding, at most N."""
    return int(min(parts.capacity, np.floor(parts.widths[head].max()) + 2.0))


def _bincount(keys: list[np.ndarray], masses: list[np.ndarray], size: int) -> np.ndarray:
    """Return the histogram of the collected keys and empty the lists."""
    counts = np.bincount(
        np.concatenate(keys) if keys else np.zeros(0, np.int64),
        weights=np.concatenate(masses) if masses else None,
        minlength=size,
    )
    keys.clear()
    masses.clear()
    return counts


def _sum_longer(histogram: np.ndarray) -> np.ndarray:
    """Sum a (start, length) histogram over lengths > k, in place: (N, width + 1) -> (N, width)."""
    backwards = histogram[:, :0:-1]
    np.cumsum(backwards, axis=1, out=backwards)
    return histogram[:, 1:]
