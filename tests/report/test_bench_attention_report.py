"""Tables and figures of `plsh bench attention` from made-up times, and the targets that its claims are held to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.test_report import check_files, printed, write

from plsh_cli import report
from plsh_cli.config.compose import compose
from plsh_cli.experiments.bench_attention_claims import claims
from plsh_cli.experiments.bench_attention_plan import grids
from plsh_cli.experiments.bench_attention_rows import Timed, case_rows, exponents

SECONDS = {"fused": 1e-6, "augmented": 5e-5, "blocks": 2e-5, "sdpa_mask": 3e-5, "flex": 4e-6}  # per token


def made_up(config, factor, skip):
    """Rows of every grid: seconds in proportion to n, but n^2 for exact ALiBi; factor: that of positional LSH."""
    rows, rounds = [], []
    for number, grid in enumerate(grids(config)):
        for case in grid.cases:
            timed = []
            for method in grid.methods:
                seconds = SECONDS[method.backend] * case.n * (case.n / 1000 if method.exact else 1.0)
                seconds *= factor if method.bias == "plsh" else 1.0
                one = Timed(method, method.backend, rounds=[seconds * change for change in (1.0, 1.2, 0.9)])
                error = method.eps or (1e-7 if method.exact else (method.num_samples or 1) ** -0.5)
                timed.append(replace(one, error=error, pairs=9 * case.n, pairs_scored=9 * case.n, useful_flops=1e5))
                timed[-1].extra_bytes = 4000 * case.n if grid.with_memory(case) else None
            timed[-1] = Timed(timed[-1].method, skipped="no [reason] at all") if skip else timed[-1]
            rows += case_rows(number, case, 2, timed, 1e11)
            rounds += [one.rounds for one in timed]
    return rows, rounds


def bench_run(folder, overrides, factor=1.0, skip=False):
    config = compose("bench_attention", overrides)
    rows, rounds = made_up(config, factor, skip)
    fits = exponents(rows, rounds)
    summary = {"claims": claims(config, "cpu", rows, fits), "exponents": fits}
    return write(folder, "bench_attention", rows, summary, {})


def test_tables_and_figures_of_the_default(tmp_path):
    result = bench_run(tmp_path, [], skip=True)
    check_files(report.draw(tmp_path), {"time", "error_time_1024", "error_time_4096"})
    lines = printed(result, 140)
    row = next(row for row in result["rows"] if row["method"] == "fused plsh s=20" and row["n"] == 4096)
    assert row["faster_than_sdpa_mask"] == pytest.approx(30 * 4.096)
    assert "123" in next(line for line in lines.splitlines() if "4,096   fused plsh s=20" in line)
    assert "no [reason] at all" in lines
    assert "growth of the time" not in lines, "two lengths have no fit"


@pytest.mark.parametrize("width", [60, 100, 140])
def test_nothing_is_cut_on_a_narrow_terminal(tmp_path, width):
    result = bench_run(tmp_path, ["experiment=attention_targets"])
    assert "…  " not in printed(result, width)
    assert all(len(line) <= width for line in printed(result, width).splitlines())


def test_error_against_time_has_a_figure_per_length(tmp_path):
    bench_run(tmp_path, ["experiment=attention_honest"])
    check_files(report.draw(tmp_path), {"time", "error_time_4096", "error_time_16384"})


def test_one_length_has_no_figure_of_growth(tmp_path):
    bench_run(tmp_path, ["bench.n=[64]", "bench.biases=[plsh]", "bench.backends=[fused]"])
    check_files(report.draw(tmp_path), set())


def test_the_targets_preset_has_the_sizes_of_every_claim(tmp_path):
    result = bench_run(tmp_path, ["experiment=attention_targets"])
    found = result["summary"]["claims"]
    assert len(found) == 9 + 5
    sizes = {(claim["n"], claim["unit"]) for claim in found}
    assert {(262_144, "s"), (16_384, "of torch.mm"), (None, "exponent"), (262_144, "KB per token")} <= sizes
    growth = next(claim for claim in found if claim["unit"] == "exponent")
    assert growth["measured"] == pytest.approx(1.0)
    assert growth["met"]
    assert "targets" in printed(result, 140)


@pytest.mark.parametrize(("factor", "met"), [(0.5, True), (2.0, False)])
def test_a_target_is_met_or_not(tmp_path, factor, met):
    result = bench_run(tmp_path, ["experiment=attention_targets"], factor)
    window = [claim for claim in result["summary"]["claims"] if "ALiBi cut" in claim["claim"]]
    assert [(claim["n"], claim["met"]) for claim in window] == [(4096, met), (16_384, met)]
    assert [claim["measured"] for claim in window] == pytest.approx([factor, factor])
    assert ("NO" in printed(result, 140)) or met


@pytest.mark.parametrize("override", ["bench.heads=4", "bench.head_dim=32", "bias.sigma=[3.0]", "bench.batch=2"])
def test_targets_belong_to_their_shape(tmp_path, override):
    assert bench_run(tmp_path, ["experiment=attention_targets", override])["summary"]["claims"] == []
