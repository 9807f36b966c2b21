"""The rows of `plsh bench attention` from what was timed, and the growth exponents.

Fields of a row:
grid (number of the grid, from 0), method (label), backend (asked for), ran (backend that ran), bias, num_samples,
sampler, pitch, eps, n (tokens), dtype, causal, passes ("forward" | "forward+backward"), heads, head_dim, batch,
threads;
skipped (why it was not timed; then all below are null);
seconds (median over the rounds), seconds_min, seconds_max, repeats;
faster_than_sdpa_mask, _flex, _window, _fixed_blocks, _dense: another method's seconds divided by these, within the same
case: SDPA with the ALiBi mask, the fastest FlexAttention (exact or cut at 1e-3 or below), plsh's own fastest exact
ALiBi cut at 1e-3, the fastest fixed blocks, and exact ALiBi by the backend that ran; null where that was not timed;
output_error_relative (||a - b|| / ||b|| against exact ALiBi in float64, see bench_attention_error);
pairs (query-key pairs of nonzero weight over all heads, of draws their union), pairs_scored (what the backend scores:
differs for draws on backend blocks), useful_gflop (of pairs), gflops (useful, per second), matmul_gflops (torch.mm of
2048 x 2048 in the case's type, in the same rounds; not in float16 on the CPU), matmul_share (gflops / matmul_gflops);
extra_bytes_per_token (peak beside inputs and gradients, in another process, see bench_attention_memory; null: not
measured); prepare_seconds (once, outside the timing: draws and their table, mask, compilation); exact_heads (numbers of
the heads that exact_when_cheaper gave exact ALiBi, separated by blanks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from plsh_cli import stats
from plsh_cli.experiments.bench_attention_plan import Case, Method

Row = dict[str, object]

CUT = 1e-3
MEASURED = (
    "seconds",
    "seconds_min",
    "seconds_max",
    "repeats",
    "faster_than_sdpa_mask",
    "faster_than_flex",
    "faster_than_window",
    "faster_than_fixed_blocks",
    "faster_than_dense",
    "output_error_relative",
    "pairs",
    "pairs_scored",
    "useful_gflop",
    "gflops",
    "matmul_gflops",
    "matmul_share",
    "extra_bytes_per_token",
    "prepare_seconds",
    "exact_heads",
)


@dataclass
class Timed:
    """What was found out about a method in one case; `skipped` alone where it was not timed."""

    method: Method
    ran: str | None = None
    skipped: str | None = None
    rounds: list[float] = field(default_factory=list)
    error: float | None = None
    pairs: int = 0
    pairs_scored: int = 0
    useful_flops: float = 0.0
    extra_bytes: int | None = None
    prepare_seconds: float = 0.0
    exact_heads: list[int] = field(default_factory=list)


def case_rows(grid: int, case: Case, threads: int, timed: Sequence[Timed], matmul_rate: float | None) -> list[Row]:
    """One row per method of a case, in order. matmul_rate: floating point operations per second."""
    rows = []
    for one in timed:
        row: Row = {"grid": grid, "method": one.method.label, "backend": one.method.backend, "ran": one.ran}
        row |= {key: value for key, value in asdict(one.method).items() if key != "backend"}
        row |= {**asdict(case), "threads": threads, "skipped": one.skipped}
        rows.append(row | dict.fromkeys(MEASURED))
        if one.skipped is None:
            rows[-1] |= _measured(one, case, matmul_rate)
    for row in rows:
        if row["skipped"] is None:
            row |= _ratios(row, rows)
    return rows


def exponents(rows: Sequence[Row], rounds: Sequence[Sequence[float]]) -> list[Row]:
    """For each method with three lengths or more: the exponent p of seconds ~ n^p between the shortest and longest.

    A line is fitted to each round (its i-th time at every length); the interval is a 95 % t interval over rounds.
    """
    series: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if row["skipped"] is None:
            series.setdefault(tuple(row[key] for key in ("grid", "method", "dtype", "causal", "passes")), []).append(
                index
            )
    fits = []
    for (grid, method, dtype, causal, passes), members in series.items():
        lengths = [int(rows[index]["n"]) for index in members]
        if len(set(lengths)) < 3:
            continue
        slopes = [stats.loglog_slope(lengths, times) for times in zip(*(rounds[i] for i in members), strict=True)]
        mean, half = stats.t_interval(slopes)
        fit = {"grid": grid, "method": method, "dtype": dtype, "causal": causal, "passes": passes}
        fit |= {"n_first": min(lengths), "n_last": max(lengths), "lengths": len(lengths), "rounds": len(slopes)}
        fits.append(fit | {"exponent": mean, "exponent_ci95": half})
    return fits


def _measured(one: Timed, case: Case, matmul_rate: float | None) -> Row:
    seconds = median(one.rounds)
    rate = one.useful_flops / seconds
    return {
        "seconds": seconds,
        "seconds_min": min(one.rounds),
        "seconds_max": max(one.rounds),
        "repeats": len(one.rounds),
        "output_error_relative": one.error,
        "pairs": one.pairs,
        "pairs_scored": one.pairs_scored,
        "useful_gflop": one.useful_flops / 1e9,
        "gflops": rate / 1e9,
        "matmul_gflops": matmul_rate / 1e9 if matmul_rate else None,
        "matmul_share": rate / matmul_rate if matmul_rate else None,
        "extra_bytes_per_token": one.extra_bytes / (case.batch * case.n) if one.extra_bytes is not None else None,
        "prepare_seconds": one.prepare_seconds,
        "exact_heads": " ".join(map(str, one.exact_heads)) or None,
    }


def _ratios(row: Row, rows: Sequence[Row]) -> Row:
    """How many times faster than each of the methods to compare with; rows are those of one case."""
    windows = [other for other in rows if other["bias"] == "window"]
    others = {
        "sdpa_mask": [other for other in rows if other["backend"] == "sdpa_mask"],
        "flex": [other for other in rows if other["backend"] == "flex" and (other["eps"] or 0.0) <= CUT],
        "window": [other for other in windows if other["eps"] == CUT and other["backend"] != "flex"],
        "fixed_blocks": [other for other in rows if other["bias"] == "fixed_blocks"],
        "dense": [other for other in rows if other["bias"] == "alibi" and other["ran"] == row["ran"]],
    }
    found: Row = {}
    for name, candidates in others.items():
        seconds = [float(other["seconds"]) for other in candidates if other["seconds"] is not None]
        found[f"faster_than_{name}"] = min(seconds) / float(row["seconds"]) if seconds else None
    return found
