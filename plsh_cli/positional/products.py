"""Products of L*, M~ and M~ - L* with a vector, without any matrix of n x n.

Symbols: with P the prefix sums of x (P[0] = 0), a block [a, e) of weight w adds w (P[e] - P[a]) to rows a..e-1 of M~ x.
As differences between neighbouring rows that is +w (P[e] - P[a]) at row a and the same taken away at row e: minus the
Laplacian of the graph that joins the ends of every block. So M~ x is a prefix sum, one sparse product over the distinct
blocks of all draws, and another prefix sum: O(n + blocks), and equal blocks of different draws cost once.

`device` is "cpu" for NumPy, anything else names a torch device; vectors go in and come out as NumPy float64 either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.linalg.lapack import dpttrs
from scipy.sparse import csr_array

from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.partitions import PartitionSet

Product = Callable[[np.ndarray], np.ndarray]


def kernel_product(kernel: Kernel, n: int, device: str = "cpu") -> Product:
    """Return the function x -> L* x for (n,) float64 vectors; O(n) for ALiBi, else O(n log n)."""
    kernel.check(n)
    if device != "cpu":
        from plsh_cli.positional import products_torch

        return products_torch.kernel_product(kernel, n, device)
    return _alibi_product(kernel, n) if kernel.family == "alibi" else _toeplitz_product(kernel, n)


def partition_product(parts: PartitionSet, head: int = 0, device: str = "cpu") -> Product:
    """Return the function x -> M~ x of one head for (N,) float64 vectors; O(N + blocks)."""
    return graph_product(block_graph(parts, head), device)


def difference_product(parts: PartitionSet, kernel: Kernel, head: int = 0, device: str = "cpu") -> Product:
    """Return the function x -> (M~ - L*) x of one head for (N,) float64 vectors."""
    return _minus(partition_product(parts, head, device), kernel_product(kernel, parts.capacity, device))


def graph_difference_product(graph: BlockGraph, kernel: Kernel, device: str = "cpu") -> Product:
    """Return the function x -> (M~ - L*) x for the M~ of a block graph."""
    return _minus(graph_product(graph, device), kernel_product(kernel, graph.n, device))


class BlockGraph(NamedTuple):
    """M~ as a weighted graph. joined[a, e], (n + 1, n + 1) float64, is the total weight of the blocks [a, e) of all
    draws of width
    >= 1; single_weight is the total weight of the other draws, which leave every token alone."""

    joined: csr_array
    single_weight: float

    @property
    def n(self) -> int:
        return self.joined.shape[0] - 1

    def clip(self, top: int, bottom: int, max_block: int) -> BlockGraph:
        """Return the graph of rows and columns top..bottom-1 of M~; no block may exceed `max_block` tokens."""
        first = max(0, top - max_block)
        rows = self.joined.indptr[first : bottom + 1]
        inside = slice(rows[0], rows[-1])
        start, end = np.repeat(np.arange(first, bottom), np.diff(rows)), self.joined.indices[inside]
        kept = end > top
        pairs = (np.maximum(start[kept], top) - top, np.minimum(end[kept], bottom) - top)
        size = bottom - top + 1
        return BlockGraph(csr_array((self.joined.data[inside][kept], pairs), shape=(size, size)), self.single_weight)


def block_graph(parts: PartitionSet, head: int = 0) -> BlockGraph:
    """Return the graph of one head's M~."""
    n, weights = parts.capacity, parts.weights[head]
    index = np.int32 if n < 2**31 - 1 else np.int64
    # One empty block, so that there is something to join when every draw is single tokens.
    starts, ends, masses = [np.zeros(1, index)], [np.zeros(1, index)], [np.zeros(1)]
    for draws, edges in parts.start_tables(head):
        start, end = edges[:, :-1], edges[:, 1:]
        kept = end > start
        starts.append(start[kept].astype(index))
        ends.append(end[kept].astype(index))
        masses.append(np.repeat(weights[draws], kept.sum(axis=1)))
    pairs = (np.concatenate(starts), np.concatenate(ends))
    joined = csr_array((np.concatenate(masses), pairs), shape=(n + 1, n + 1))
    return BlockGraph(joined, float(weights[parts.widths[head] < 1.0].sum()))


def graph_product(graph: BlockGraph, device: str = "cpu") -> Product:
    """Return the function x -> M~ x for the M~ of a block graph."""
    if device != "cpu":
        from plsh_cli.positional import products_torch

        return products_torch.graph_product(graph, device)
    forward, backward = graph.joined, graph.joined.T
    degree = forward.sum(axis=0) + forward.sum(axis=1)
    prefix = np.zeros(graph.n + 1)

    def product(x: np.ndarray) -> np.ndarray:
        np.cumsum(x, out=prefix[1:])
        steps = forward @ prefix
        steps += backward @ prefix
        steps -= degree * prefix
        out = np.cumsum(steps[:-1])
        if graph.single_weight:
            out += graph.single_weight * x
        return out

    return product


def _minus(first: Product, second: Product) -> Product:
    return lambda x: first(x) - second(x)


def _alibi_product(kernel: Kernel, n: int) -> Product:
    """L* of ALiBi is the covariance of a first-order autoregression: its inverse is tridiagonal with known L D L^T
    factors,
    so L* x is one pair of two-term recursions (LAPACK's solver for factored tridiagonals)."""
    step = 1.0 / kernel.parameters[0]
    innovations = np.full(n, -1.0 / np.expm1(-2.0 * step))
    innovations[-1] = 1.0
    factors = np.full(max(1, n - 1), -np.exp(-step))[: n - 1]
    if n == 1:
        return lambda x: np.array(x, dtype=np.float64)
    return lambda x: dpttrs(innovations, factors, x)[0]


def _toeplitz_product(kernel: Kernel, n: int) -> Product:
    """Multiply by the circulant that holds L* in its corner."""
    size = next_fast_len(2 * n - 1, real=True)
    column = np.zeros(size)
    column[:n] = kernel.phi(np.arange(n))
    column[size - n + 1 :] = column[n - 1 : 0 : -1]
    spectrum = rfft(column).real  # the circulant is symmetric

    def product(x: np.ndarray) -> np.ndarray:
        return irfft(spectrum * rfft(x, size), size)[:n]

    return product
