"""`plsh bench matrix`: the speed and memory of M~ and of the norms, as ratios of medians within one run.

Repetitions of what is compared are interleaved, so that a machine that slows down slows both sides. Targets belong to the
sizes that they were set for; at other sizes `target` and `met` are null.

Fields of a row: claim, n (tokens), sigma (tokens), num_samples, measured, unit ("times faster" | "s" | "GiB" | "relative"),
comparison (">=" | "<="), target, met, seconds (median of the faster side), seconds_other (median of the slower side, scaled
where `scaled_from_draws` says from how many draws), scaled_from_draws, repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from plsh_cli.config.schema import BenchMatrixCommand
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

#: claim -> (n, sigma, num_samples) that the target was set for, comparison, target.
TARGETS = {
    "M~ against comparing bins": ((4500, 16.0, 10_000), ">=", 800.0),
    "M~ against adding slices": ((4500, 16.0, 10_000), ">=", 60.0),
    "both norms, seconds": ((1_048_576, 16.0, 20), "<=", 10.0),
    "both norms, peak memory": ((1_048_576, 16.0, 20), "<=", 4.0),
    "certified norm against eigvalsh": ((4096, 16.0, 20), ">=", 60.0),
    "certified norm, difference": ((4096, 16.0, 20), "<=", 1e-3),
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


def _forming(cfg: BenchMatrixCommand, kernel: Kernel, advance: Callable[[], None]) -> tuple[list[dict], dict[str, object]]:
    """M~ against its two slow forms, which are timed on fewer draws; their time grows in proportion to the draws."""
    bench = cfg.bench
    parts = draw(kernel, bench.n, bench.num_samples, generator(cfg.seed, "partitions", kernel.label, "real"))
    few, some = (parts.take(min(draws, bench.num_samples)) for draws in (bench.comparison_draws, bench.slice_draws))
    seconds: dict[str, list[float]] = {"all": [], "boundaries": [], "comparison": [], "slices": []}
    for _ in range(bench.repeats):
        seconds["all"].append(_seconds(lambda: matrices.m_tilde(parts)))
        seconds["boundaries"].append(_seconds(lambda: _enumerate(parts)))
        seconds["comparison"].append(_seconds(lambda: matrices.m_tilde_by_comparison(few)) * bench.num_samples / few.num_draws)
        seconds["slices"].append(_seconds(lambda: matrices.m_tilde_by_slices(some)) * bench.num_samples / some.num_draws)
        advance()
    fast = matrices.m_tilde(few)
    apart = max(float(np.abs(fast - slow(few)).max()) for slow in (matrices.m_tilde_by_comparison, matrices.m_tilde_by_slices))
    size, middle = (bench.n, bench.sigma, bench.num_samples), {name: median(values) for name, values in seconds.items()}
    rows = [
        _row(claim, size, bench.repeats, middle[slow] / middle["all"], "times faster", seconds=middle["all"],
             seconds_other=middle[slow], scaled_from_draws=sample.num_draws if sample.num_draws < bench.num_samples else None)
        for claim, slow, sample in (("M~ against comparing bins", "comparison", few), ("M~ against adding slices", "slices", some))
    ]
    facts = {"m_tilde_seconds": middle["all"], "m_tilde_boundaries_seconds": middle["boundaries"],
             "m_tilde_sums_seconds": middle["all"] - middle["boundaries"], "m_tilde_forms_differ_by": apart}
    return rows, facts


def _large(cfg: BenchMatrixCommand, advance: Callable[[], None]) -> tuple[list[dict], dict[str, object]]:
    """Both norms at a large n: their seconds, and the peak memory of a process that does nothing else."""
    bench = cfg.bench
    found = []
    for _ in range(bench.repeats):
        found.append(large_norms(bench.large_n, bench.sigma, bench.large_num_samples, cfg.seed))
        advance()
    size, seconds = (bench.large_n, bench.sigma, bench.large_num_samples), median(one.seconds for one in found)
    peak = max(one.peak_bytes for one in found) / 2**30
    rows = [_row("both norms, seconds", size, bench.repeats, seconds, "s", seconds=seconds),
            _row("both norms, peak memory", size, bench.repeats, peak, "GiB", seconds=seconds)]
    return rows, {"large_spectral_error": found[0].spectral_error, "large_spectral_residual": found[0].spectral_residual,
                  "large_max_error": found[0].max_error, "large_products": found[0].products}


def _certified(cfg: BenchMatrixCommand, kernel: Kernel, advance: Callable[[], None]) -> tuple[list[dict], dict[str, object]]:
    """The certified iterative norm against eigvalsh of the dense difference, whose forming is not counted."""
    bench = cfg.bench
    parts = draw(kernel, bench.norm_n, bench.norm_num_samples, generator(cfg.seed, "partitions", kernel.label, "real"))
    difference = matrices.m_tilde(parts) - matrices.l_star(kernel, bench.norm_n)

    def iterate() -> tuple[float, float, int]:
        product = products.difference_product(parts, kernel)
        return norms.spectral_norm(product, bench.norm_n, generator=generator(cfg.seed, "start"))

    seconds: dict[str, list[float]] = {"iterative": [], "eigvalsh": []}
    for _ in range(bench.repeats):
        seconds["iterative"].append(_seconds(iterate))
        seconds["eigvalsh"].append(_seconds(lambda: norms.dense_spectral_norm(difference)))
        advance()
    (found, residual, count), exact = iterate(), norms.dense_spectral_norm(difference)
    size, fast, slow = (bench.norm_n, bench.sigma, bench.norm_num_samples), *(median(values) for values in seconds.values())
    rows = [
        _row("certified norm against eigvalsh", size, bench.repeats, slow / fast, "times faster", seconds=fast, seconds_other=slow),
        _row("certified norm, difference", size, bench.repeats, abs(found - exact) / (exact or 1.0), "relative", seconds=fast,
             seconds_other=slow),
    ]
    return rows, {"norm_spectral_error": found, "norm_spectral_residual": residual, "norm_products": count, "norm_eigvalsh": exact}


def _row(claim: str, size: tuple[int, float, int], repeats: int, measured: float, unit: str, *, seconds: float,
         seconds_other: float | None = None, scaled_from_draws: int | None = None) -> dict[str, object]:
    set_for, comparison, target = TARGETS[claim]
    applies = size == set_for
    met = (measured >= target if comparison == ">=" else measured <= target) if applies else None
    return {"claim": claim, "n": size[0], "sigma": size[1], "num_samples": size[2], "measured": measured, "unit": unit,
            "comparison": comparison, "target": target if applies else None, "met": met, "seconds": seconds,
            "seconds_other": seconds_other, "scaled_from_draws": scaled_from_draws, "repeats": repeats}


def _enumerate(parts: PartitionSet) -> None:
    for _ in parts.blocks():
        pass


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
