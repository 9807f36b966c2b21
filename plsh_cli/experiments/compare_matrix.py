"""Errors of bias matrices W - L* at one length, per setting: the level `matrix` of `plsh compare`.

Relative spectral error ||W - L*||_2 / ||L*||_2 and largest entry of |W - L*|, the mean over heads. A unit is a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import matmul_toeplitz

from plsh_cli.experiments.compare_costs import Draws, reaches
from plsh_cli.experiments.compare_settings import Setting
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.measure import measure
from plsh_cli.positional.norms import kernel_norm, spectral_norm
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.streams import generator

MEASURES = ("spectral_error_relative", "max_error")


def errors(settings: Sequence[Setting], draws: Draws, done: Callable[[int], None]) -> dict[Setting, np.ndarray]:
    """Per setting (MEASURES, 1, seeds), one seed for what has no draws; done(number of settings measured)."""
    norms = [kernel_norm(kernel, draws.n) for kernel in draws.kernels]
    found = {}
    for setting in settings:
        seeds = range(len(draws.units) if setting.drawn else 1)
        every = np.array([_of_heads(setting, draws, seed) for seed in seeds])  # (seeds, heads, 2)
        every[..., 0] /= np.array(norms)
        found[setting] = every.mean(axis=1).T[:, None]
        done(1)
    return found


def _of_heads(setting: Setting, draws: Draws, unit: int) -> list[tuple[float, float]]:
    sigmas = [float(kernel.sigma or 0.0) for kernel in draws.kernels]
    if setting.num_samples is not None:
        parts = draws.parts(unit, setting.num_samples)
        return [_of_parts(parts.head(head), kernel, draws.units[unit][0]) for head, kernel in enumerate(draws.kernels)]
    if setting.lengths is not None:
        return [
            _of_parts(_blocks(length, draws.n), kernel, 0)
            for length, kernel in zip(setting.lengths, draws.kernels, strict=True)
        ]
    if setting.eps is not None:
        kept = reaches(setting.eps, sigmas, draws.n)
        return [_of_window(reach, kernel, draws.n) for reach, kernel in zip(kept, draws.kernels, strict=True)]
    if setting.bias == "none":
        return [_of_ones(kernel, draws.n) for kernel in draws.kernels]
    return [(0.0, 0.0)] * len(draws.kernels)  # exact ALiBi


def _of_parts(parts: PartitionSet, kernel: Kernel, seed: int) -> tuple[float, float]:
    one = measure(parts, kernel, [parts.num_draws], seed=seed)[0]
    return one.spectral_error, one.max_error


def _blocks(length: int, n: int) -> PartitionSet:
    one = np.ones((1, 1))
    return PartitionSet(one * length, 0.0 * one, one, np.zeros((1, 1), dtype=np.int64), n, "real")


def _of_window(reach: int, kernel: Kernel, n: int) -> tuple[float, float]:
    distance = np.arange(n)
    return _toeplitz(np.where(distance > reach, kernel.phi(distance), 0.0))


def _of_ones(kernel: Kernel, n: int) -> tuple[float, float]:
    return _toeplitz(1.0 - kernel.phi(np.arange(n)))


def _toeplitz(column: np.ndarray) -> tuple[float, float]:
    """Spectral norm and largest entry of the symmetric Toeplitz matrix of this column, no entry below 0."""
    n = column.size
    start = generator(0, "toeplitz", n)
    return spectral_norm(lambda x: matmul_toeplitz(column, x, workers=1), n, generator=start).value, float(column.max())
