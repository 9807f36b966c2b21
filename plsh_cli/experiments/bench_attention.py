"""`plsh bench attention`: time, memory and error of attention under each bias and backend, as ratios within one run.

All methods of one case (n, dtype, causal, pass) are called once, untimed, and their outputs checked against exact ALiBi
in float64; then they are timed in turn, round after round, with a matrix product among them, so that a machine that
slows down slows all alike. What cannot run in a case is a row that says why. Rows: see bench_attention_rows; the claims
in the summary: bench_attention_claims.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from plsh_cli.config.schema.lab import BenchAttentionCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments.bench_attention_claims import claims
from plsh_cli.experiments.bench_attention_memory import extra_bytes
from plsh_cli.experiments.bench_attention_plan import Case, Grid, grids, sigmas, too_large
from plsh_cli.experiments.bench_attention_rows import Timed, case_rows, exponents
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.result import Result

if TYPE_CHECKING:
    from plsh_cli.experiments.bench_attention_calls import Inputs, Ready, Setup
    from plsh_cli.experiments.bench_attention_error import Exact

MATMUL_SIZE = 2048
REST_SECONDS = 0.03
INPUTS = "normal, mean 0, standard deviation 1"
#: Estimated: the program itself and its memory process, and tensors of q's size that both hold at once (inputs, output,
#: gradients, scratch).
_FIXED_BYTES, _TENSORS = 1.2 * 2**30, {"forward": 8, "forward+backward": 14}


def plan(cfg: BenchAttentionCommand) -> dict[str, object]:
    """What a run would time. Raises UserError for what cannot run."""
    if cfg.bias.kernel != "alibi":
        allowed = "must be alibi: all methods are compared with exact ALiBi"
        raise UserError("bias.kernel", cfg.bias.kernel, allowed, "bias.kernel=alibi")
    sigmas(cfg)
    every = grids(cfg)
    needed, largest = max(
        (_bytes_needed(grid, case, cfg.bench.dense_gib), case.n) for grid in every for case in grid.cases
    )
    available = available_bytes()
    if available is not None and needed > available:
        allowed = f"needs about {gibibytes(needed)}, {gibibytes(available)} are available; use a smaller one"
        raise UserError("bench.n", largest, allowed, "--n")
    pairs = [(method, case) for grid in every for case in grid.cases for method in grid.methods]
    too_big = [(method, case, too_large(method, case, cfg.bench.dense_gib)) for method, case in pairs]
    return {
        "cases": list(dict.fromkeys(case.label for _, case in pairs)),
        "methods": list(dict.fromkeys(method.label for method, _ in pairs)),
        "timed": len([reason for _, _, reason in too_big if not reason]),
        "skipped": [f"{method.label} at {case.label}: {reason}" for method, case, reason in too_big if reason],
        "estimated_peak_memory": gibibytes(needed),
    }


def run(cfg: BenchAttentionCommand, run: object) -> Result:
    """Time everything. `run` gives progress, plain lines and metrics (see `experiments.harness.Run`)."""
    import torch

    from plsh_cli.experiments.bench_attention_calls import Setup

    device = chosen_device(cfg.device, "in which errors are measured")
    bench, threads = cfg.bench, torch.get_num_threads()
    setup = Setup(cfg.bias, sigmas(cfg), cfg.seed, device, bench.dense_gib, bench.exact_when_cheaper)
    every = grids(cfg)
    rows, rounds = [], []
    with run.progress(sum(map(_steps, every)), "plsh bench attention") as bar:
        for number, grid in enumerate(every):
            for case, timed, rate in _measure(grid, setup, bar.advance):
                made = case_rows(number, case, threads, timed, rate)
                for row, one in zip(made, timed, strict=True):
                    rows.append(row)
                    rounds.append(one.rounds)
                    run.log({key: value for key, value in row.items() if value is not None})
                    if one.skipped is not None:
                        run.say(f"skipped: {row['method']} at {case.label}: {one.skipped}")
    longest = max(map(len, rounds))
    table = np.array([[*times, *[np.nan] * (longest - len(times))] for times in rounds]).reshape(len(rows), longest)
    run.save_arrays("rounds", seconds=table)
    fits = exponents(rows, rounds)
    summary = {
        "claims": claims(cfg, device, rows, fits),
        "exponents": fits,
        "exact_heads": [_replaced(row) for row in rows if row["exact_heads"]],
        "matmul_gflops": _rates(rows),
        "inputs": INPUTS,
        "sigma": setup.sigma,
        "device": device,
        "threads": threads,
    }
    return Result(rows, summary)


def _measure(grid: Grid, setup: Setup, advance: Callable[[float], None]):
    """Yield every case of a grid with what was found about its methods and the rate of matrix products."""
    from plsh_cli.experiments import bench_attention_calls as calls
    from plsh_cli.experiments.bench_attention_competitors import forget_compiled
    from plsh_cli.experiments.bench_attention_error import exact_alibi

    exact, of = None, None
    for case in grid.cases:
        inputs = calls.make_inputs(case, setup)
        if of != (of := (case.n, case.dtype, case.causal)):
            exact = exact_alibi(inputs, setup.sigma, case.causal)
        found = [_warm_up(method, case, setup, inputs, exact, advance) for method in grid.methods]
        timed = [one for one, _ in found]
        rate = _time_rounds(case, inputs, [pair for pair in found if pair[1]], grid.repeats, advance)
        del found
        if any(method.backend == "flex" for method in grid.methods):
            forget_compiled()
        gc.collect()
        if grid.with_memory(case):
            able = [one for one in timed if one.skipped is None]
            for one, used in zip(able, extra_bytes([one.method for one in able], case, setup), strict=True):
                one.extra_bytes = used
            advance(len(grid.methods))
        yield case, timed, rate


def _warm_up(method, case: Case, setup: Setup, inputs: Inputs, exact: Exact, advance) -> tuple[Timed, Ready | None]:
    """Prepare a method, call it once and check its output; without a second part where it cannot run."""
    from plsh_cli.experiments import bench_attention_calls as calls
    from plsh_cli.experiments.bench_attention_counts import pairs, useful_flops
    from plsh_cli.experiments.bench_attention_error import fault, relative_error

    advance(1)
    try:
        ready = calls.prepare(method, case, setup, inputs)
        out = calls.one_pass(ready, case, inputs)
    except calls.CannotRun as reason:
        return Timed(method, skipped=str(reason)), None
    error = relative_error(out, exact)
    if wrong := fault(method, out, error):
        return Timed(method, ran=ready.ran, skipped=wrong), None
    seen = pairs(ready.bias, case, case.heads)
    scored = pairs(ready.bias, case, case.heads, "blocks") if ready.ran == "blocks" else seen
    timed = Timed(method, ready.ran, error=error, pairs=seen, pairs_scored=scored)
    timed.useful_flops = useful_flops(seen, case)
    timed.prepare_seconds, timed.exact_heads = ready.prepare_seconds, ready.exact_heads
    return timed, ready


def _time_rounds(case: Case, inputs: Inputs, entries: Sequence[tuple[Timed, Ready]], repeats: int, advance):
    """Time all methods in turn, in rounds that each begin with another one, with a rest before each.

    Without the rest, worker threads that still spin after one method's work (OpenMP's do) would slow the next one.

    The rate of matrix products, in FLOP/s; None in float16 on the CPU, where torch takes minutes for one.
    """
    import torch

    from plsh_cli.experiments import bench_attention_calls as calls

    square = torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=inputs.q.device).to(inputs.q.dtype)
    products: list[float] = []

    def multiply() -> None:
        square @ square
        calls.wait(square.device.type)

    works = []
    if inputs.q.device.type != "cpu" or inputs.q.dtype != torch.float16:
        multiply()
        works.append((products, multiply))
    works += [(timed.rounds, lambda ready=ready: calls.one_pass(ready, case, inputs)) for timed, ready in entries]
    for number in range(repeats):
        first = number % len(works)
        for times, work in works[first:] + works[:first]:
            time.sleep(REST_SECONDS)
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
            advance(1)
    return 2 * MATMUL_SIZE**3 / median(products) if products else None


def _steps(grid: Grid) -> int:
    """How often `_measure` advances, where nothing is skipped: warm-ups, rounds with their product, memory."""
    in_each = len(grid.methods) * (grid.repeats + 1) + grid.repeats
    return len(grid.cases) * in_each + len(grid.methods) * sum(map(grid.with_memory, grid.cases))


def _bytes_needed(grid: Grid, case: Case, dense_gib: float) -> float:
    fits = [method for method in grid.methods if not too_large(method, case, dense_gib)]
    dense = dense_gib * 2**30 if any(method.backend in ("sdpa_mask", "reference") for method in fits) else 0.0
    return _FIXED_BYTES + _TENSORS[case.passes] * max(case.tensor_bytes, 4 * case.batch * case.n) + dense


def _replaced(row: dict[str, object]) -> dict[str, object]:
    heads = [int(head) for head in str(row["exact_heads"]).split()]
    return {**{key: row[key] for key in ("method", "n", "dtype", "causal", "passes")}, "heads": heads}


def _rates(rows: list[dict[str, object]]) -> dict[str, float]:
    """The median rate of torch.mm per type."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["matmul_gflops"] is not None:
            found.setdefault(str(row["dtype"]), []).append(float(row["matmul_gflops"]))
    return {dtype: median(values) for dtype, values in found.items()}
