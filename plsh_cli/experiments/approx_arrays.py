"""The arrays that `plsh approx` saves for its figures and for later statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from plsh_cli.config.schema.lab import ApproxCommand
from plsh_cli.experiments import biases
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import l_star, m_tilde
from plsh_cli.positional.measure import Measurement
from plsh_cli.positional.partitions import PartitionSet

PICTURE_TOKENS = 192  # keeps the SVG small
HISTOGRAM_BINS = 40
HISTOGRAM_BLOCKS = 4_000_000  # blocks per kernel and seed that are counted at most
SAVED_WIDTHS = 60
LAW_SIZES = 1 << 22  # block sizes whose probability is computed at most

#: The set of draws that holds the largest s, given n, kernel and seed.
Draws = Callable[[int, Kernel, int], PartitionSet]


def save_arrays(
    run: object, cfg: ApproxCommand, rows: Sequence[object], measured: Sequence[Sequence[Measurement]], draws: Draws
) -> None:
    """Save errors.npz ((rows, seeds), in the rows' order), picture.npz and block_sizes.npz through `run.save_arrays`.

    The picture is of the middle kernel, the block sizes of the first, middle and last, all at the first n and the
    largest s.
    """
    run.save_arrays(
        "errors",
        **{
            field: np.array([[getattr(one, field) for one in by_seed] for by_seed in measured])
            for field in ("spectral_error", "max_error")
        },
    )
    n = cfg.approx.n[0]
    found = biases.kernels(cfg.bias, cfg.approx.heads, n)
    middle = (len(found) - 1) // 2
    run.save_arrays("picture", **_picture(found[middle], draws(n, found[middle], cfg.seed)))
    arrays: dict[str, object] = {
        "labels": np.array([found[index].label for index in sorted({0, middle, len(found) - 1})])
    }
    for position, index in enumerate(sorted({0, middle, len(found) - 1})):
        sets = (draws(n, found[index], cfg.seed + offset) for offset in range(cfg.approx.seeds))
        arrays |= {f"{name}_{position}": values for name, values in _block_sizes(found[index], n, sets).items()}
    run.save_arrays("block_sizes", n=n, num_samples=max(cfg.approx.num_samples), **arrays)


def _picture(kernel: Kernel, parts: PartitionSet) -> dict[str, object]:
    """The upper left corner of L*, M~ and M~ - L* (taken before rounding), float32, at most PICTURE_TOKENS square."""
    corner = parts.prefix(min(parts.capacity, PICTURE_TOKENS))
    exact, approximate = l_star(kernel, corner.capacity), m_tilde(corner)
    return {
        "l_star": exact.astype(np.float32),
        "m_tilde": approximate.astype(np.float32),
        "difference": (approximate - exact).astype(np.float32),
        "label": kernel.label,
        "n": parts.capacity,
        "num_samples": parts.num_draws,
    }


def _block_sizes(kernel: Kernel, n: int, sets: Sequence[PartitionSet]) -> dict[str, np.ndarray]:
    """A histogram over tokens of the size of the token's block, pooled over seeds, beside its law.

    edges (B + 1,) in tokens: bin b counts sizes edges[b] <= size < edges[b + 1]. measured and exact (B,): probability
    per token of size (mass over bin length), where exact is `clipped_size_law`. grid, gamma (200,): the Gamma(2, sigma)
    density of the real widths (ALiBi; empty elsewhere). widths: of the first seed's first draws.
    """
    law = clipped_size_law(kernel, n)
    reach = int(np.searchsorted(np.cumsum(law), 0.995)) + 1
    step = max(1, -(-reach // HISTOGRAM_BINS))
    edges = np.arange(1, min(reach, n) + step + 1, step)
    counts, widths = np.zeros(edges.size - 1), None
    seeds = 0
    for parts in sets:
        counts += _size_mass(parts, edges)
        widths = parts.widths[0, :SAVED_WIDTHS] if widths is None else widths
        seeds += 1
    below = np.append(0.0, np.cumsum(law))
    exact = np.diff(below[np.minimum(edges - 1, law.size)])
    grid = np.linspace(0.0, float(edges[-1]), 200)
    gamma = stats.gamma.pdf(grid, 2, scale=kernel.sigma) if kernel.sigma is not None else np.zeros(0)
    return {
        "edges": edges,
        "measured": counts / seeds / step,
        "exact": exact / step,
        "grid": grid,
        "gamma": gamma,
        "widths": widths,
    }


def _size_mass(parts: PartitionSet, edges: np.ndarray) -> np.ndarray:
    """The share of tokens, weighted by the draws' weights, whose block has a size in each bin. Shape (edges.size - 1,).

    Draws of equal weight without shared widths are counted only as far as HISTOGRAM_BLOCKS allows.
    """
    weights = parts.weights[0]
    exchangeable = np.ptp(weights) == 0.0 and np.array_equal(parts.groups[0], np.arange(weights.size))
    stop = min(weights.size, max(1, HISTOGRAM_BLOCKS // parts.capacity)) if exchangeable else weights.size
    mass = np.zeros(edges.size - 1)
    for blocks in parts.blocks(0, 0, stop):
        sizes = blocks.end - blocks.start
        mass += np.histogram(sizes, edges - 0.5, weights=sizes * weights[blocks.draw])[0]
    return mass / (weights[:stop].sum() * parts.capacity)


def clipped_size_law(kernel: Kernel, n: int) -> np.ndarray:
    """P[a random token's block has size c] for c = 1 .. min(n, LAW_SIZES): exact for every kernel and both pitches.

    A block that covers [a, a + c) and no more has probability phi(c-1) - 2 phi(c) + phi(c+1) inside the sequence,
    phi(c-1) - phi(c) at one of its ends, and phi(n-1) where it is the whole sequence.
    """
    sizes = np.arange(1, min(n, LAW_SIZES + 1))
    drops = kernel.drop(sizes - 1)
    # The last size before n only occurs at the ends; a table may end there too.
    curvature = np.append(drops[:-1] - drops[1:], 0.0) if n <= LAW_SIZES + 1 else drops - kernel.drop(sizes)
    partial = sizes * ((n - sizes - 1) * curvature + 2.0 * drops) / n
    return partial if n > LAW_SIZES else np.append(partial, kernel.phi(np.array([n - 1]))[0])
