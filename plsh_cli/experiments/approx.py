"""`plsh approx`: how far M~ is from L*, for every n, kernel, sampler and s, beside what the theory allows.

Code name to the paper's symbol: num_samples s, l_star L*, m_tilde M~, max_norm_bound eps(s, n, delta).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from threadpoolctl import threadpool_limits

from plsh_cli.config.schema.lab import ApproxCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import biases
from plsh_cli.experiments.approx_arrays import save_arrays
from plsh_cli.experiments.approx_rows import Theory, row
from plsh_cli.experiments.approx_summary import summary
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.result import Result
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.measure import Measurement, estimate_bytes, measure
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator

BYTES_PER_DRAW = 100  # the draws themselves and what drawing them holds for a moment


@dataclass(frozen=True)
class Cell:
    """What is repeated over seeds: one n, kernel and sampler, at all s."""

    n: int
    kernel: Kernel
    sampler: str


def plan(cfg: ApproxCommand) -> dict[str, object]:
    """What a run would do, without drawing anything. Raises UserError for what cannot run on this machine."""
    _device(cfg)
    work = _cells(cfg)
    bytes_needed = _refuse_what_does_not_fit(cfg, work)
    rows = len(work) * len(cfg.approx.num_samples)
    return {
        "n": list(cfg.approx.n),
        "kernels": list(dict.fromkeys(cell.kernel.label for cell in work)),
        "samplers": _samplers(cfg),
        "num_samples": sorted(cfg.approx.num_samples),
        "seeds": _seeds(cfg),
        "draws": "nested for iid: smaller s are the first draws of the largest"
        if cfg.approx.nested
        else "fresh for every s",
        "cells": len(work) * cfg.approx.seeds,
        "rows": rows,
        "measurements": rows * cfg.approx.seeds,
        "estimated_peak_memory": gibibytes(bytes_needed),
    }


def run(cfg: ApproxCommand, run: object) -> Result:
    """Measure every cell. `run` gives progress, metrics and the folder for arrays (see `experiments.harness.Run`)."""
    started = time.perf_counter()
    device, sizes, seeds = _device(cfg), sorted(cfg.approx.num_samples), _seeds(cfg)
    work = _cells(cfg)
    rows: list[dict[str, object]] = []
    measured: list[list[Measurement]] = []
    # Many small products: BLAS threads gain nothing, and those of two runs side by side fight for the cores.
    with threadpool_limits(1, user_api="blas"), run.progress(len(work) * len(seeds), "plsh approx") as bar:
        for cell in work:
            by_seed = []
            for seed in seeds:
                by_seed.append(_measure_all(cfg, cell, seed, device))
                bar.advance()
            for index, size in enumerate(sizes):
                measured.append([measurements[index] for measurements in by_seed])
                theory = Theory.of(cell.kernel, cell.n, size, cfg.approx.delta, cell.sampler, cfg.bias.pitch)
                rows.append(row(cell.kernel, cell.n, cell.sampler, cfg.bias.pitch, seeds, measured[-1], theory))
                run.log({key: value for key, value in rows[-1].items() if value is not None})
    save_arrays(
        run, cfg, rows, measured, lambda n, kernel, seed: _first_draws(cfg, Cell(n, kernel, _samplers(cfg)[0]), seed)
    )
    seconds = time.perf_counter() - started
    return Result(rows, summary(cfg, rows, measured), {"seconds": seconds, "cells": len(work) * len(seeds)})


def partitions(cfg: ApproxCommand, cell: Cell, seed: int) -> Iterator[tuple[PartitionSet, list[int]]]:
    """The draws of one cell and seed, each set with the s that are measured on it.

    Nested i.i.d. draws are one set of the largest s, keyed by seed, kernel and pitch only, so that the boundaries do
    not depend on what else was asked for. Any other draws are a set of their own for every s, keyed by s and the
    sampler too.
    """
    kernel, pitch, sizes = cell.kernel, cfg.bias.pitch, sorted(cfg.approx.num_samples)
    if cell.sampler == "iid" and cfg.approx.nested:
        stream = generator(seed, "partitions", kernel.label, pitch)
        yield draw(kernel, cell.n, sizes[-1], stream, "iid", pitch), sizes
        return
    for size in sizes:
        stream = generator(seed, "partitions", kernel.label, pitch, cell.sampler, size)
        yield draw(kernel, cell.n, size, stream, cell.sampler, pitch), [size]


def _first_draws(cfg: ApproxCommand, cell: Cell, seed: int) -> PartitionSet:
    """The set that holds the largest s."""
    return list(partitions(cfg, cell, seed))[-1][0]


def _measure_all(cfg: ApproxCommand, cell: Cell, seed: int, device: str) -> list[Measurement]:
    return [
        measurement
        for parts, sizes in partitions(cfg, cell, seed)
        for measurement in measure(parts, cell.kernel, sizes, method=cfg.approx.norm, seed=seed, device=device)
    ]


def _cells(cfg: ApproxCommand) -> list[Cell]:
    return [
        Cell(n, kernel, sampler)
        for n in cfg.approx.n
        for kernel in biases.kernels(cfg.bias, cfg.approx.heads, n)
        for sampler in _samplers(cfg)
    ]


def _samplers(cfg: ApproxCommand) -> list[str]:
    return list(cfg.approx.samplers) if cfg.approx.samplers is not None else [cfg.bias.sampler]


def _seeds(cfg: ApproxCommand) -> list[int]:
    return list(range(cfg.seed, cfg.seed + cfg.approx.seeds))


def _device(cfg: ApproxCommand) -> str:
    """The torch device of the matrix-free products, "cpu" for NumPy: what auto means here."""
    return "cpu" if cfg.device == "auto" else chosen_device(cfg.device, "which the norms need")


def _refuse_what_does_not_fit(cfg: ApproxCommand, work: list[Cell]) -> int:
    """The largest estimate of the bytes that a cell needs; UserError names the setting that makes it too large."""
    available, worst = available_bytes(), 0
    for cell in work:
        needed = _bytes(cfg, cell, max(cfg.approx.num_samples), cfg.approx.norm)
        worst = max(worst, needed)
        if available is not None and needed > available:
            raise _too_large(cfg, cell, needed, available)
    return worst


def _too_large(cfg: ApproxCommand, cell: Cell, needed: int, available: int) -> UserError:
    largest, norm = max(cfg.approx.num_samples), cfg.approx.norm
    trouble = (
        f"needs about {gibibytes(needed)} at n={cell.n:,}, s={largest:,}, norm={norm}; "
        f"{gibibytes(available)} are available"
    )
    if norm != "auto" and _bytes(cfg, cell, largest, "auto") <= available:
        return UserError("approx.norm", norm, f"{trouble}; use auto, which fits", "approx.norm=auto")
    if _bytes(cfg, cell, 1, norm) <= available:
        most = _most(largest, lambda size: _bytes(cfg, cell, size, norm) <= available)
        return UserError("approx.num_samples", largest, f"{trouble}; use at most about {most:,}", "--s")
    most = _most(cell.n, lambda n: _bytes(cfg, replace(cell, n=n), largest, norm) <= available)
    return UserError("approx.n", cell.n, f"{trouble}; use at most about {most:,}", "--n")


def _most(too_large: int, fits: Callable[[int], bool]) -> int:
    """The largest count below `too_large` that fits, to two digits."""
    low, high = 0, too_large
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return int(float(f"{low:.1e}")) if float(f"{low:.1e}") <= low else low * 95 // 100


def _bytes(cfg: ApproxCommand, cell: Cell, num_samples: int, method: str) -> int:
    return BYTES_PER_DRAW * num_samples + estimate_bytes(cell.kernel, cell.n, num_samples, method, cfg.bias.pitch)
