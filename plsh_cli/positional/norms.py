"""Norms of bias matrices and of their differences: dense where small, matrix-free with a certificate where large.

Every norm is of the full symmetric matrix. M~ - L* is indefinite, with extreme eigenvalues of both signs and close to
each other, so plain power iteration would report values far too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigvalsh, svdvals
from scipy.optimize import brentq

from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.products import Product, kernel_product

# Lanczos vectors kept at most: 24 vectors need 2 % more products than 48 on M~ - L*, and half the memory.
BASIS = 24
MAX_PRODUCTS = 5000
# The second start of `spectral_norm` gets as many products as the first took, and at least this many.
SECOND_PRODUCTS = 24
# Entries (rows x draws) of the block ends held at a time by `block_max_norm`.
CHUNK_ENTRIES = 1 << 20


class SpectralNorm(NamedTuple):
    """value = |lambda| of the approximate eigenpair (lambda, x), ||x||_2 = 1; residual = ||A x - lambda x||_2: some
    eigenvalue of A lies within it of lambda, which does not prove that it is the extreme one. products: how often A was
    applied."""

    value: float
    residual: float
    products: int


class Eigenpair(NamedTuple):
    """An approximate eigenvector of unit length (n,), the absolute value of its Rayleigh quotient, its residual, and
    the
    products used."""

    value: float
    residual: float
    products: int
    vector: np.ndarray


def dense_spectral_norm(matrix: np.ndarray) -> float:
    """Return the largest singular value of a real square matrix; by eigenvalues where it equals its transpose.

    0.0 for a zero matrix. Raises ValueError for another shape, or naming the first entry that is not finite.
    """
    _check_matrix(matrix)
    if np.array_equal(matrix, matrix.T):
        values = eigvalsh(matrix, check_finite=False)
        return float(max(-values[0], values[-1]))
    return float(svdvals(matrix, check_finite=False)[0])


def dense_max_norm(matrix: np.ndarray) -> float:
    """Return the largest absolute entry of a real square matrix; ValueError as for `dense_spectral_norm`."""
    _check_matrix(matrix)
    return float(max(matrix.max(), -matrix.min()))


def kernel_norm(kernel: Kernel, n: int) -> float:
    """Return ||L*||_2 for n positions: exact for ALiBi (it tends to coth(1 / (2 sigma)) from below), else to 1e-6."""
    if n < 1:
        raise ValueError(f"n = {n}: must be at least 1")
    if kernel.family == "alibi":
        return _kac_murdock_szego_norm(1.0 / kernel.parameters[0], n)
    # The top eigenvector is positive and symmetric; for kernels short against n it is nearly this half-wave.
    start = np.sin(np.pi * (np.arange(n) + 1.0) / (n + 1.0))
    return extreme_eigenpair(kernel_product(kernel, n), start, 1e-6).value


def spectral_norm(product: Product, n: int, *, tol: float = 1e-4, generator: np.random.Generator) -> SpectralNorm:
    """Return the spectral norm of the symmetric (n, n) matrix A behind `product` = (x -> A x), with its certificate.

    Lanczos from a random start until the residual is at most tol * value; the error of that eigenvalue is then of the
    order of residual^2 / gap. The residual says that an eigenvalue is near, not that it is the extreme one.
    What guards against a miss is a second start: an independent random vector, deflated by the pair found, gets as many
    products as the first run (at least `SECOND_PRODUCTS`) and replaces it where it finds more. That makes a miss
    unlikely, not impossible: of 8,362 differences M~ - L* of n = 260 to 600, at tol = 1e-4, none was off by more than
    1e-4 of its dense norm (at 95 % confidence a rate below 4e-4); the first start alone missed 7 by that much.
    Without convergence in `MAX_PRODUCTS` products the best pair is returned, and its residual says so. The zero
    operator gives 0.0. Raises ValueError when a product is not finite.
    """
    if n < 1:
        raise ValueError(f"n = {n}: must be at least 1")
    first = extreme_eigenpair(product, generator.standard_normal(n), tol)
    x = first.vector

    def deflated(z: np.ndarray) -> np.ndarray:
        y = product(z - (x @ z) * x)
        return y - (x @ y) * x

    budget = min(MAX_PRODUCTS, max(SECOND_PRODUCTS, first.products))
    other = extreme_eigenpair(deflated, generator.standard_normal(n), tol, budget)
    products = first.products + other.products
    if other.value > first.value:
        found = extreme_eigenpair(product, other.vector, tol)
        products += found.products
        if found.value > first.value:
            first = found
    return SpectralNorm(first.value, first.residual, products)


def certify(product: Product, x: np.ndarray) -> tuple[float, float]:
    """Return (|lambda|, ||A x - lambda x||_2) for the unit vector x and its Rayleigh quotient lambda."""
    y = product(x)
    quotient = float(x @ y)
    return abs(quotient), float(np.linalg.norm(y - quotient * x))


def extreme_eigenpair(product: Product, start: np.ndarray, tol: float, max_products: int = MAX_PRODUCTS) -> Eigenpair:
    """Return the eigenpair of largest absolute value of the symmetric matrix behind `product`.

    Lanczos with full orthogonalisation, restarted with the Ritz vectors of largest absolute value (Wu & Simon 2000),
    until the residual is at most tol * value and no other Ritz value, of either sign, reaches beyond with its own
    residual, or `max_products` are spent. An eigenvector almost orthogonal to `start` can still be missed: see
    `spectral_norm`.
    """
    n = start.size
    size = min(BASIS, n)
    vectors = np.empty((size + 1, n))
    vectors[0] = start / np.linalg.norm(start)
    projected = np.zeros((size, size))
    values, ritz = np.zeros(size), np.eye(size)
    products = filled = 0
    while products < max_products:
        if filled == size:
            filled = size // 2
            kept = np.argsort(-np.abs(values))[:filled]
            vectors[:filled] = ritz[:, kept].T @ vectors[:size]
            vectors[filled] = vectors[size]
            projected[:filled, :filled] = np.diag(values[kept])
        w = np.array(product(vectors[filled]), dtype=np.float64)
        if not np.isfinite(w).all():
            raise ValueError("product: returned values that are not finite")
        products += 1
        filled += 1
        projected[filled - 1, :filled] = projected[:filled, filled - 1] = _orthogonalise(w, vectors[:filled])
        beta = float(np.linalg.norm(w))
        values, ritz = np.linalg.eigh(projected[:filled, :filled])
        best = int(np.argmax(np.abs(values)))
        # In exact arithmetic beta |last component| is the residual; half the tolerance leaves room for rounding.
        # No other Ritz value may reach beyond the best one within its own residual: it could be the larger in the end.
        reach = np.abs(values) + beta * np.abs(ritz[-1])
        settled = reach.max() <= (1.0 + 0.5 * tol) * abs(values[best])
        if settled or filled == n or beta <= 1e-14 * abs(values[best]):
            break
        vectors[filled] = w / beta
    x = ritz[:, best] @ vectors[: ritz.shape[0]]
    x /= np.linalg.norm(x)
    return Eigenpair(*certify(product, x), products + 1, x)


def block_max_norm(
    parts: PartitionSet, kernel: Kernel, head: int = 0, sizes: Sequence[int] | None = None
) -> list[float]:
    """Return max |M~ - L*| over all pairs, exactly, for the first `size` draws, each size (default: all draws).

    Along a row to the right, M~ is a step function that falls at the block ends of the draws while phi falls in
    between: on a step, M~ - L* is largest at its last position and smallest at its first. Time O(N s log s), memory
    O(blocks + N). Sizes below the number of draws need i.i.d. draws (ValueError).
    """
    kernel.check(parts.capacity)
    sizes = [parts.num_draws] if sizes is None else sizes
    single = parts.head(head)
    return [_steps_max(single if size == parts.num_draws else single.take(size), kernel) for size in sizes]


def _check_matrix(matrix: np.ndarray) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0 or np.iscomplexobj(matrix):
        raise ValueError(f"matrix of shape {matrix.shape}, {matrix.dtype}: must be real, square and not empty")
    finite = np.isfinite(matrix)
    if not finite.all():
        row, column = divmod(int(np.argmin(finite)), matrix.shape[1])
        raise ValueError(f"matrix[{row}, {column}] = {matrix[row, column]}: must be finite")


def _kac_murdock_szego_norm(slope: float, n: int) -> float:
    """Largest eigenvalue of exp(-slope |i - j|) (Kac, Murdock & Szego 1953).

    lambda = sinh(slope) / (cosh(slope) - cos theta) with the smallest theta > 0 that solves
    tan(n theta / 2) tan(theta / 2) = tanh(slope / 2), here in x = ln(n theta / 2), where the left side is monotone.
    """
    if slope * n < 1e-16:
        return float(n)  # all but n (1 - slope n / 3)
    if slope > 40.0:
        return 1.0 + 2.0 * math.exp(-slope) * math.cos(math.pi / (n + 1.0))
    target = math.log(math.tanh(slope / 2.0))

    def excess(x: float) -> float:
        return math.log(math.tan(math.exp(x))) + math.log(math.tan(math.exp(x) / n)) - target

    # tan(y) tan(y / n) > y^2 / n below pi / 2 puts the root under sqrt(n tanh), and slope n >= 1e-16 puts it above
    # 1e-9: far over the lower end.
    half_angle = math.exp(brentq(excess, -60.0, math.log(math.pi / 2.0), xtol=1e-15, rtol=1e-15)) / n
    return math.sinh(slope) / (2.0 * (math.sinh(slope / 2.0) ** 2 + math.sin(half_angle) ** 2))


def _orthogonalise(w: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Take the components along the rows of `basis` out of w, in place, and return them.

    In exact arithmetic the last two rows hold almost all of them, so these go first: what they leave is small enough
    for one pass over the whole basis, and a second one where that cancels too.
    """
    components = np.zeros(basis.shape[0])
    components[-2:] = basis[-2:] @ w
    w -= components[-2:] @ basis[-2:]
    for _ in range(2):
        before = np.linalg.norm(w)
        correction = basis @ w
        w -= correction @ basis
        components += correction
        if np.linalg.norm(w) >= 0.7 * before:
            break
    return components


def _steps_max(parts: PartitionSet, kernel: Kernel) -> float:
    """Return max |M~ - L*| of a set of one head."""
    n, weights = parts.capacity, parts.weights[0]
    live = parts.widths[0] >= 1.0
    phi = kernel.phi(np.arange(n))
    # All draws of width below 1 together are one that cuts after every token.
    largest = max(0.0, float(phi[1] - weights[live].sum())) if n > 1 and not live.all() else 0.0
    if not live.any():
        return largest
    shares = parts.weights[:, live] / weights[live].sum()
    kept = PartitionSet(parts.widths[:, live], parts.shifts[:, live], shares, parts.groups[:, live], n, parts.pitch)
    steps = _equal_steps_max if parts.equal_weights() else _weighted_steps_max
    for top, ahead in _distances_to_ends(kept, max(1, CHUNK_ENTRIES // kept.num_draws)):
        room = n - np.arange(top, top + ahead.shape[0], dtype=ahead.dtype)
        largest = max(largest, steps(ahead, weights[live], room, phi))
    return largest


def _distances_to_ends(parts: PartitionSet, rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first row, distances (rows, s) from each row to the end of its block in each draw), chunk by chunk."""
    n = parts.capacity
    dtype = np.int32 if n < 2**31 else np.int64
    chunks = [(b.draw * n + b.start, b.start.astype(dtype), b.end.astype(dtype)) for b in parts.blocks()]
    keys, start, end = (np.concatenate(column) for column in zip(*chunks, strict=True))
    origins = np.arange(parts.num_draws) * n
    for top in range(0, n, rows):
        bottom = min(n, top + rows)
        first = np.searchsorted(keys, origins + top, side="right") - 1
        stop = np.searchsorted(keys, origins + bottom, side="left")
        pieces = list(zip(first.tolist(), stop.tolist(), strict=True))
        ends = np.concatenate([end[lo:hi] for lo, hi in pieces])
        starts = np.concatenate([start[lo:hi] for lo, hi in pieces])
        lengths = np.minimum(ends, bottom) - np.maximum(starts, top)
        per_draw = np.repeat(ends, lengths).reshape(parts.num_draws, bottom - top)
        per_draw -= np.arange(top, bottom, dtype=dtype)
        yield top, np.ascontiguousarray(per_draw.T)


def _equal_steps_max(ahead: np.ndarray, weights: np.ndarray, room: np.ndarray, phi: np.ndarray) -> float:
    """Return the largest error of rows whose draws weigh the same; `room` is each row's distance to the end of the
    matrix.

    The height of the r-th step is the same in every row, so of all rows only the longest and the shortest r-th step
    matter. Of equal ends all but the outermost give a smaller value than the matrix holds, so ties need no care.
    """
    heights = weights[0] * np.arange(weights.size, -1, -1)
    ahead.sort(axis=1)
    last_positions = ahead.max(axis=0) - 1
    largest = float((heights[:-1] - phi[last_positions]).max())
    np.putmask(ahead, ahead == room[:, None], phi.size)  # a block that ends with the matrix has no position after it
    next_positions = ahead.min(axis=0)
    inside = next_positions < phi.size
    return max(largest, float((phi[next_positions[inside]] - heights[1:][inside]).max(initial=0.0)))


def _weighted_steps_max(ahead: np.ndarray, weights: np.ndarray, room: np.ndarray, phi: np.ndarray) -> float:
    """The same for draws of unequal weight, where every row has its own heights."""
    # Distance and draw in one integer: sorting these is several times faster than sorting indices.
    bits = int(weights.size).bit_length()
    keys = (ahead.astype(np.int64) << bits) | np.arange(weights.size)
    keys.sort(axis=1)
    ahead, order = keys >> bits, keys & ((1 << bits) - 1)
    heights = np.cumsum(weights[order][:, ::-1], axis=1)[:, ::-1]
    largest = float((heights - phi[ahead - 1]).max())
    after = np.concatenate([heights[:, 1:], np.zeros((heights.shape[0], 1))], axis=1)
    inside = ahead < room[:, None]
    return max(largest, float((phi[ahead[inside]] - after[inside]).max(initial=0.0)))
