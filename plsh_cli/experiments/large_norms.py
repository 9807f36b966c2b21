"""The norms of M~ - L* at a large n in a process of their own, so that its peak memory is theirs alone.

Run as `python -m plsh_cli.experiments.large_norms N SIGMA NUM_SAMPLES SEED` it prints its findings as one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from plsh_cli.errors import PlshError
from plsh_cli.experiments.memory import peak_bytes


@dataclass(frozen=True)
class LargeNorms:
    """Seconds for both norms together, and the bytes the process held at its peak, imports included."""

    seconds: float
    peak_bytes: int
    spectral_error: float
    spectral_residual: float
    max_error: float
    products: int


def large_norms(n: int, sigma: float, num_samples: int, seed: int) -> LargeNorms:
    """Draw s i.i.d. real-width partitions of n tokens and measure both norms in a new process. PlshError if it dies."""
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    command = [
        sys.executable,
        "-m",
        "plsh_cli.experiments.large_norms",
        str(n),
        repr(sigma),
        str(num_samples),
        str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise PlshError(f"the norms at n={n:,} failed in their own process (exit code {done.returncode}): {last[0]}")
    return LargeNorms(**json.loads(done.stdout))


def measure_here(n: int, sigma: float, num_samples: int, seed: int) -> LargeNorms:
    """The same in this process."""
    from plsh_cli.positional.kernels import alibi
    from plsh_cli.positional.measure import measure
    from plsh_cli.positional.samplers import draw
    from plsh_cli.positional.streams import generator

    kernel = alibi(sigma)
    parts = draw(kernel, n, num_samples, generator(seed, "partitions", kernel.label, "real"))
    started = time.perf_counter()
    (found,) = measure(parts, kernel, [num_samples], method="blocks", seed=seed)
    seconds = time.perf_counter() - started
    return LargeNorms(
        seconds, peak_bytes(), found.spectral_error, found.spectral_residual, found.max_error, found.products
    )


if __name__ == "__main__":
    size, scale, draws, first = sys.argv[1:]
    print(json.dumps(asdict(measure_here(int(size), float(scale), int(draws), int(first)))))
