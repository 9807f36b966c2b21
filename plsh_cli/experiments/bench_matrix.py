"""`plsh bench matrix`: the speed and memory of M~ and of the norms, as ratios of medians within one run.

Repetitions of what is compared are interleaved, so that a machine that slows down slows both sides; the fast side is
called once before, untimed. Targets belong to the sizes that they were set for; at other sizes `target` and `met` are
null.

Fields of a row: claim, n (tokens), sigma (tokens), num_samples, measured, unit ("times faster" | "s" | "GiB" |
"relative"), comparison (">=" | "<="), target, met, seconds (median of the faster side), seconds_other (median of the
slower side, scaled where `scaled_from_draws` says from how many draws), scaled_from_draws, repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from plsh_cli.config.schema.lab import BenchMatrixCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments.large_norms import large_norms
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.result import Result
from plsh_cli.positional import matrices, norms, products
from plsh_cli.positional.kernels import Kernel, alibi
from plsh_cli.positional.measure import estimate_bytes
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator

Found = TypeVar("Found")

Rows = list[dict[str, object]]
Facts = dict[str, object]


@dataclass(frozen=True)
class Target:
    """A claim's unit and target, and the sizes (n, sigma, num_samples) that the target was set for."""

    size: tuple[int, float, int]
    comparison: str
    value: float
    unit: str


TARGETS = {
    "M~ against comparing bins": Target((4500, 16.0, 10_000), ">=", 800.0, "times faster"),
    "M~ against adding slices": Target((4500, 16.0, 10_000), ">=", 60.0, "times faster"),
    "both norms, seconds": Target((1_048_576, 16.0, 20), "<=", 10.0, "s"),
    "both norms, peak memory": Target((1_048_576, 16.0, 20), "<=", 4.0, "GiB"),
    "certified norm against eigvalsh": Target((4096, 16.0, 20), ">=", 60.0, "times faster"),
    "certified norm, difference": Target((4096, 16.0, 20), "<=", 1e-3, "relative"),
}


def plan(cfg: BenchMatrixCommand) -> dict[str, object]:
    """What a run would time. Raises UserError for what cannot run on this machine."""
    bench = cfg.bench
    if cfg.device not in ("auto", "cpu"):
        raise UserError("device", cfg.device, "must be cpu or auto: these ratios are of the CPU code", "--device")
    needs = {
        "bench.n": 4 * 8 * bench.n**2,
        "bench.large_n": estimate_bytes(alibi(bench.sigma), bench.large_n, bench.large_num_samples, "blocks"),
        "bench.norm_n": 4 * 8 * bench.norm_n**2,
    }
    available = available_bytes()
    for field, needed in needs.items():
        if available is not None and needed > available:
            allowed = f"needs about {gibibytes(needed)}, {gibibytes(available)} are available; use a smaller one"
            raise UserError(field, getattr(bench, field.removeprefix("bench.")), allowed, f"{field}=...")
    return {"claims": list(TARGETS), "repeats": bench.repeats, "estimated_peak_memory": gibibytes(max(needs.values()))}


def run(cfg: BenchMatrixCommand, run: object) -> Result:
    """Time everything. `run` gives progress and metrics (see `experiments.harness.Run`)."""
    bench, kernel = cfg.bench, alibi(cfg.bench.sigma)
    with run.progress(3 * bench.repeats, "plsh bench matrix") as bar:
        forming, forming_facts = _forming(cfg, kernel, bar.advance)
        norm_rows, norm_facts = _certified(cfg, kernel, bar.advance)
        large, large_facts = _large(cfg, bar.advance)
    rows = forming + large + norm_rows
    for row in rows:
        run.log({key: value for key, value in row.items() if value is not None})
    timed = {key: value for key, value in forming_facts.items() if key.endswith("_seconds")}
    facts = {key: value for key, value in forming_facts.items() if key not in timed}
    return Result(rows, facts | large_facts | norm_facts, timed)


def _forming(cfg: BenchMatrixCommand, kernel: Kernel, advance: Callable[[], None]) -> tuple[Rows, Facts]:
    """M~ against its two slow forms, which are timed on fewer draws; their time grows in proportion to the draws."""
    bench = cfg.bench
    parts = draw(kernel, bench.n, bench.num_samples, generator(cfg.seed, "partitions", kernel.label, "real"))
    few, some = (parts.take(min(draws, bench.num_samples)) for draws in (bench.comparison_draws, bench.slice_draws))
    matrices.m_tilde(parts)  # the first call also pays for fresh memory from the system
    times: dict[str, list[float]] = {"all": [], "boundaries": [], "comparison": [], "slices": []}
    for _ in range(bench.repeats):
        times["all"].append(_timed(lambda: matrices.m_tilde(parts))[0])
        times["boundaries"].append(_timed(lambda: _list_blocks(parts))[0])
        taken, by_comparison = _timed(lambda: matrices.m_tilde_by_comparison(few))
        times["comparison"].append(taken * bench.num_samples / few.num_draws)
        taken, by_slices = _timed(lambda: matrices.m_tilde_by_slices(some))
        times["slices"].append(taken * bench.num_samples / some.num_draws)
        advance()
    apart = [
        np.abs(matrices.m_tilde(sample) - slow).max() for sample, slow in ((few, by_comparison), (some, by_slices))
    ]
    size, rows = (bench.n, bench.sigma, bench.num_samples), []
    middle = {name: median(values) for name, values in times.items()}
    for claim, slow, sample in (("comparing bins", "comparison", few), ("adding slices", "slices", some)):
        ratio, draws = middle[slow] / middle["all"], sample.num_draws
        row = claim_row(f"M~ against {claim}", size, bench.repeats, ratio, middle["all"], middle[slow])
        rows.append(row | {"scaled_from_draws": draws if draws < bench.num_samples else None})
    return rows, {
        "m_tilde_seconds": middle["all"],
        "m_tilde_boundaries_seconds": middle["boundaries"],
        "m_tilde_sums_seconds": middle["all"] - middle["boundaries"],
        "m_tilde_forms_differ_by": float(max(apart)),
    }


def _large(cfg: BenchMatrixCommand, advance: Callable[[], None]) -> tuple[Rows, Facts]:
    """Both norms at a large n: their seconds, and the peak memory of a process that does nothing else."""
    bench, found = cfg.bench, []
    for _ in range(bench.repeats):
        found.append(large_norms(bench.large_n, bench.sigma, bench.large_num_samples, cfg.seed))
        advance()
    size, seconds = (bench.large_n, bench.sigma, bench.large_num_samples), median(one.seconds for one in found)
    peak = max(one.peak_bytes for one in found) / 2**30
    rows = [
        claim_row("both norms, seconds", size, bench.repeats, seconds, seconds),
        claim_row("both norms, peak memory", size, bench.repeats, peak, seconds),
    ]
    return rows, {
        "large_spectral_error": found[0].spectral_error,
        "large_spectral_residual": found[0].spectral_residual,
        "large_max_error": found[0].max_error,
        "large_products": found[0].products,
    }


def _certified(cfg: BenchMatrixCommand, kernel: Kernel, advance: Callable[[], None]) -> tuple[Rows, Facts]:
    """The certified iterative norm against eigvalsh of the dense difference, whose forming is not counted."""
    bench = cfg.bench
    parts = draw(kernel, bench.norm_n, bench.norm_num_samples, generator(cfg.seed, "partitions", kernel.label, "real"))
    difference = matrices.m_tilde(parts) - matrices.l_star(kernel, bench.norm_n)

    def iterate() -> tuple[float, float, int]:
        product = products.difference_product(parts, kernel)
        return norms.spectral_norm(product, bench.norm_n, generator=generator(cfg.seed, "start"))

    iterate()
    quick, long = [], []
    for _ in range(bench.repeats):
        taken, (found, residual, count) = _timed(iterate)
        quick.append(taken)
        taken, exact = _timed(lambda: norms.dense_spectral_norm(difference))
        long.append(taken)
        advance()
    size, fast, slow = (bench.norm_n, bench.sigma, bench.norm_num_samples), median(quick), median(long)
    apart = abs(found - exact) / (exact or 1.0)
    rows = [
        claim_row("certified norm against eigvalsh", size, bench.repeats, slow / fast, fast, slow),
        claim_row("certified norm, difference", size, bench.repeats, apart, fast, slow),
    ]
    return rows, {
        "norm_spectral_error": found,
        "norm_spectral_residual": residual,
        "norm_products": count,
        "norm_eigvalsh": exact,
    }


def claim_row(
    claim: str,
    size: tuple[int, float, int],
    repeats: int,
    measured: float,
    seconds: float,
    seconds_other: float | None = None,
) -> dict[str, object]:
    """The record of one claim at these sizes (n, sigma, num_samples); see the fields at the head of this file."""
    target = TARGETS[claim]
    applies = size == target.size
    met = measured >= target.value if target.comparison == ">=" else measured <= target.value
    return {
        "claim": claim,
        "n": size[0],
        "sigma": size[1],
        "num_samples": size[2],
        "measured": measured,
        "unit": target.unit,
        "comparison": target.comparison,
        "target": target.value if applies else None,
        "met": met if applies else None,
        "seconds": seconds,
        "seconds_other": seconds_other,
        "scaled_from_draws": None,
        "repeats": repeats,
    }


def _list_blocks(parts: PartitionSet) -> None:
    """Work out every block boundary and keep none."""
    for _ in parts.start_tables():
        pass


def _timed(work: Callable[[], Found]) -> tuple[float, Found]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found
