"""Random draws of partitions whose mean mask is a bias kernel: i.i.d., stratified, importance-stratified.

All are unbiased: the weighted mean of P[same block at distance d] over the draws is phi(d) at every distance d < n.
Paper symbols (Wolfson & Wagner 2026): width `w`, shift `u`, number of draws `s`. The stratified samplers and the
integer widths are this project's extension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.partitions import PITCHES, PartitionSet

# Points of the survival axis on which the importance sampler finds its stratum edges. Any edges leave it unbiased.
EDGE_GRID = 1 << 12


class _Law(NamedTuple):
    """The width law of a kernel on n positions: `widths(v)` inverts its survival function; `place(v, widths, t)` gives
    (reported widths, shifts) for the fraction t in [0, 1) of a period."""

    widths: Callable[[np.ndarray], np.ndarray]
    place: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def draw(
    kernel: Kernel, n: int, num_samples: int, generator: np.random.Generator, sampler: str = "iid", pitch: str = "real"
) -> PartitionSet:
    """Return `num_samples` random partitions of n positions for one head, with mean mask phi.

    sampler: "iid" (the paper's; a smaller number of draws from the same generator state is a prefix of a larger one),
    "stratified" (about s^(3/5) strata of widths; the draws of a stratum share one width and take equispaced shifts) or
    "importance" (the same with more draws, of less weight each, where widths are large: 1.25 times the pairs). pitch:
    "real" or "integer" widths. Raises ValueError for an unknown choice, n or num_samples below 1, or a table that is no
    kernel on n.
    """
    if n < 1 or num_samples < 1:
        raise ValueError(f"n = {n}, num_samples = {num_samples}: both must be at least 1")
    if pitch not in PITCHES:
        raise ValueError(f"pitch = {pitch!r}: must be one of {', '.join(PITCHES)}")
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler = {sampler!r}: must be one of {', '.join(SAMPLERS)}")
    if kernel.family == "table" and pitch == "real":
        raise ValueError("pitch = 'real': a table kernel has integer widths only, set pitch to integer")
    kernel.check(n)
    widths, shifts, weights, groups = SAMPLERS[sampler](kernel, n, num_samples, generator, pitch)
    return PartitionSet(widths[None], shifts[None], weights[None], groups[None].astype(np.int64), int(n), pitch)


def _iid(kernel: Kernel, n: int, s: int, generator: np.random.Generator, pitch: str) -> tuple[np.ndarray, ...]:
    """Independent draws, one row of uniforms each, so that fewer draws are a prefix of more."""
    law = _law(kernel, n, pitch)
    if kernel.family == "alibi" and pitch == "real":
        # The paper's Gamma(2, sigma) as a sum of two exponentials; NumPy's own gamma sampler uses a varying number of
        # random words per draw.
        u = generator.random((s, 3))
        widths = -kernel.parameters[0] * (np.log1p(-u[:, 0]) + np.log1p(-u[:, 1]))
        v, t = np.ones(s), u[:, 2]
    else:
        u = generator.random((s, 2))
        v, t = 1.0 - u[:, 0], u[:, 1]
        widths = law.widths(v)
    widths, shifts = law.place(v, widths, t)
    return widths, shifts, np.full(s, 1.0 / s), np.arange(s)


def _stratified(kernel: Kernel, n: int, s: int, generator: np.random.Generator, pitch: str) -> tuple[np.ndarray, ...]:
    """Strata of probability (their number of draws) / s; every draw weighs 1 / s."""
    sizes = _stratum_sizes(s, generator)
    edges = np.concatenate([[0.0], np.cumsum(sizes) / s])
    widths, shifts, groups = _in_strata(_law(kernel, n, pitch), edges, sizes, generator)
    return widths, shifts, np.full(s, 1.0 / s), groups


def _importance(kernel: Kernel, n: int, s: int, generator: np.random.Generator, pitch: str) -> tuple[np.ndarray, ...]:
    """Stratum edges at equal steps of the width law tilted by sqrt(min(width, n)): Gamma(2.5) for real ALiBi widths.

    Widths still follow the true law within their stratum and a stratum's draws share its true probability, so the
    weights sum to 1 and the mean is exact; density-ratio weights would do neither.
    """
    law = _law(kernel, n, pitch)
    sizes = _stratum_sizes(s, generator)
    middles = (np.arange(EDGE_GRID) + 0.5) / EDGE_GRID
    tilted = np.concatenate([[0.0], np.cumsum(np.sqrt(np.minimum(law.widths(middles), n)))])
    steps = np.concatenate([[0.0], np.cumsum(sizes) / s])
    edges = np.interp(steps, tilted / tilted[-1], np.arange(EDGE_GRID + 1) / EDGE_GRID)
    widths, shifts, groups = _in_strata(law, edges, sizes, generator)
    return widths, shifts, (np.diff(edges) / sizes)[groups], groups


SAMPLERS: dict[str, Callable[[Kernel, int, int, np.random.Generator, str], tuple[np.ndarray, ...]]] = {
    "iid": _iid,
    "stratified": _stratified,
    "importance": _importance,
}


def _stratum_sizes(s: int, generator: np.random.Generator) -> np.ndarray:
    """Draws per stratum, widest widths first; they sum to s.

    About s^(3/5) sizes that differ by at most 1, the larger ones at random places; then the first is halved, again and
    again, down to 2 or 3 draws: the unbounded widths of the outermost stratum are most of the error.
    """
    strata = max(1, round(s**0.6))
    sizes = (s // strata + generator.permutation(np.arange(strata) < s % strata)).tolist()
    while sizes[0] >= 4:
        sizes[:1] = [sizes[0] // 2, sizes[0] - sizes[0] // 2]
    return np.array(sizes)


def _in_strata(
    law: _Law, edges: np.ndarray, sizes: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (widths, shifts, groups): one width per stratum (edges[g], edges[g + 1]] of survival probability, used
    sizes[g] times with equispaced shifts.

    Neighbouring strata take their widths antithetically, in pairs: one high where the other is low in its stratum. Each
    alone is uniform, so nothing is biased, and the first-order error of a pair cancels.
    """
    u = generator.random((sizes.size, 2))
    paired = sizes.size - sizes.size % 2
    u[1:paired:2, 0] = 1.0 - u[0:paired:2, 0]
    v = edges[1:] - np.diff(edges) * u[:, 0]
    groups = np.repeat(np.arange(sizes.size), sizes)
    within = np.arange(groups.size) - (np.cumsum(sizes) - sizes)[groups]
    t = (u[groups, 1] + within / sizes[groups]) % 1.0
    widths, shifts = law.place(v[groups], law.widths(v)[groups], t)
    return widths, shifts, groups


def _law(kernel: Kernel, n: int, pitch: str) -> _Law:
    return _Law(kernel.real_width, _place_real) if pitch == "real" else _integer_law(kernel, n)


def _place_real(v: np.ndarray, widths: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # An infinite width has no boundary at any finite position: shift 0 says so.
    return widths, np.where(np.isfinite(widths), widths, 0.0) * t


def _integer_law(kernel: Kernel, n: int) -> _Law:
    """Exact integer widths by inverse survival in the table S(0..n-2).

    Widths of n - 1 or more ("wide", probability S(n-2)) leave at most one boundary among n positions, so their size
    does not matter: given a wide draw, positions d apart are separated with probability d drop(n-2) / S(n-2). That sum
    telescopes with the others' to phi(d) exactly, for widths far beyond n and beyond 64-bit integers alike.
    """
    survival = kernel.survival(n)
    wide_mass = float(survival[-1]) if n > 1 else 1.0
    wide_drop = float(kernel.drop(n - 2)) if n > 1 else 0.0
    # Ascending S(n-2), ..., S(1); S(0) = 1 would only say that a width is at least 1.
    ascending = survival[:0:-1]

    def widths(v: np.ndarray) -> np.ndarray:
        return 1.0 + ascending.size - np.searchsorted(ascending, v, side="left")

    def place(v: np.ndarray, widths: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wide = v <= wide_mass
        boundary = np.floor(t * min(wide_mass / wide_drop, 1e300)) + 1.0 if wide_drop > 0.0 else np.full_like(t, n)
        shifts = np.where(wide, np.where(boundary < n, boundary, 0.0), np.floor(widths * t))
        reported = widths.copy()
        reported[wide] = np.maximum(kernel.integer_width(v[wide]), n)
        return reported, shifts

    return _Law(widths, place)
