"""`plsh bench matrix` at toy size: that it runs and says what it measured. Speeds are its output, not tested here."""

from __future__ import annotations

import json

import pytest

from plsh_cli.config.compose import compose
from plsh_cli.errors import UserError
from plsh_cli.experiments import bench_matrix
from plsh_cli.experiments.harness import Run
from plsh_cli.experiments.large_norms import large_norms
from plsh_cli.rundir import RunFolder
from plsh_cli.tracking import Tracker

TOY = [
    "bench.n=113",
    "bench.sigma=5",
    "bench.num_samples=40",
    "bench.comparison_draws=7",
    "bench.slice_draws=90",
    "bench.large_n=3001",
    "bench.large_num_samples=3",
    "bench.norm_n=307",
    "bench.norm_num_samples=4",
    "bench.repeats=1",
]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("bench"))
    return bench_matrix.run(compose("bench_matrix", TOY), Run(folder, Tracker(folder, None, "disabled"), print))


def test_every_claim_has_a_row(result):
    assert {row["claim"] for row in result.rows} == set(bench_matrix.TARGETS)
    json.dumps([result.rows, result.summary], allow_nan=False)
    assert all(row["measured"] >= 0 for row in result.rows)


def test_targets_belong_to_their_sizes(result):
    assert all(row["target"] is row["met"] is None for row in result.rows)
    row = bench_matrix.claim_row("M~ against adding slices", (4500, 16.0, 10_000), 3, 59.0, 1.0)
    assert (row["target"], row["met"]) == (60.0, False)
    row = bench_matrix.claim_row("both norms, seconds", (1_048_576, 16.0, 20), 3, 9.0, 9.0)
    assert (row["target"], row["met"]) == (10.0, True)


def test_scaling_is_said(result):
    scaled = {row["claim"]: row["scaled_from_draws"] for row in result.rows}
    assert scaled["M~ against comparing bins"] == 7
    assert scaled["M~ against adding slices"] is None  # 90 draws were offered, all 40 were timed


def test_the_forms_of_m_tilde_and_the_norms_agree(result):
    assert result.summary["m_tilde_forms_differ_by"] < 1e-12
    (difference,) = [row["measured"] for row in result.rows if row["unit"] == "relative"]
    assert difference < 1e-3


def test_large_norms_repeat_and_report_their_own_memory():
    first, second = (large_norms(2003, 5.0, 3, seed=1) for _ in range(2))
    assert (first.spectral_error, first.max_error) == (second.spectral_error, second.max_error)
    assert 10 * 2**20 < first.peak_bytes < 2**30


@pytest.mark.parametrize(("override", "field"), [("bench.norm_n=10000000", "bench.norm_n"), ("device=cuda", "device")])
def test_plan_refuses(override, field):
    with pytest.raises(UserError) as caught:
        bench_matrix.plan(compose("bench_matrix", [override]))
    assert caught.value.field == field


def test_plan_of_the_default():
    assert bench_matrix.plan(compose("bench_matrix", []))["repeats"] == 3
