"""The norms of M~ - L* at a large n in a process of their own, so that its peak memory is theirs alone."""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from plsh_cli.positional.kernels import alibi
from plsh_cli.positional.measure import measure
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator


@dataclass(frozen=True)
class LargeNorms:
    """What the process reports: seconds for both norms together, and the bytes it held at its peak, imports included."""

    seconds: float
    peak_bytes: int
    spectral_error: float
    spectral_residual: float
    max_error: float
    products: int


def large_norms(n: int, sigma: float, num_samples: int, seed: int) -> LargeNorms:
    """Draw s i.i.d. real-width partitions of n tokens and measure both norms in a new process."""
    # "spawn": a forked child would share the parent's memory and report the parent's peak as its own.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure_here, n, sigma, num_samples, seed).result()


def _measure_here(n: int, sigma: float, num_samples: int, seed: int) -> LargeNorms:
    kernel = alibi(sigma)
    parts = draw(kernel, n, num_samples, generator(seed, "partitions", kernel.label, "real"))
    started = time.perf_counter()
    (found,) = measure(parts, kernel, [num_samples], method="blocks", seed=seed)
    seconds = time.perf_counter() - started
    return LargeNorms(seconds, _peak_bytes(), found.spectral_error, found.spectral_residual, found.max_error, found.products)


def _peak_bytes() -> int:
    """The largest resident memory this process has had."""
    try:
        # Linux: unlike getrusage, this starts anew with exec, so it leaves out what the parent held.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
