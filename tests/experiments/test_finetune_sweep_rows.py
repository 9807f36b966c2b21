"""The rows of a sweep over s: means, intervals and paired differences, and what is not there."""

from __future__ import annotations

import pytest
from finetune_cases import AFTER, BASELINES, BEFORE, cell, run_rows, sweep_cells

from plsh_cli.experiments.finetune_sweep_rows import own_rows, setting_text, table


def by(rows, bias, n=256, s=None, setting=""):
    (row,) = (
        row for row in rows if (row["bias"], row["n"], row["num_samples"], row["setting"]) == (bias, n, s, setting)
    )
    return row


def test_means_have_t_intervals_over_seeds():
    row = by(table([cell("plsh", seed, value, 5) for seed, value in enumerate((21.0, 22.0, 26.0))]), "plsh", s=5)
    assert row["perplexity"] == pytest.approx(23.0)
    # t(2) = 4.302653, sd = sqrt(7)
    assert row["perplexity_ci95"] == pytest.approx(4.302653 * 7**0.5 / 3**0.5, rel=1e-6)
    assert (row["jobs"], row["seeds"], row["seed_first"]) == (3, 3, 0)


def test_differences_are_paired_by_seed():
    """Seeds differ by 100, the difference to exact ALiBi by 1: only pairs see it."""
    cells = [cell("plsh", seed, value, 5) for seed, value in enumerate((103.0, 202.0, 304.0))]
    cells += [cell("alibi", seed, value) for seed, value in enumerate((100.0, 200.0, 300.0))]
    row = by(table(cells), "plsh", s=5)
    assert row["over_alibi"] == pytest.approx(3.0)
    assert row["over_alibi_ci95"] == pytest.approx(4.302653 * 1.0 / 3**0.5, rel=1e-6)
    assert row["over_alibi_seeds"] == 3
    assert row["perplexity_ci95"] > 100
    assert (row["over_fixed_blocks"], row["over_fixed_blocks_ci95"], row["over_fixed_blocks_seeds"]) == (None, None, 0)
    assert by(table(cells), "alibi")["over_alibi"] is None


def test_a_failed_job_is_missing_and_leaves_its_pair_out():
    cells = sweep_cells(samples=(5,))
    cells[1] = cell("plsh", 1, None, 5)
    row = by(table(cells), "plsh", s=5)
    assert (row["jobs"], row["seeds"], row["over_alibi_seeds"]) == (3, 2, 2)
    assert row["perplexity"] == pytest.approx((28.25 + 30.125) / 2)
    every = [cell("plsh", seed, None, 5) for seed in range(3)]
    row = by(table([*every, *sweep_cells(samples=())]), "plsh", s=5, n=512)
    assert (row["seeds"], row["seed_first"], row["perplexity"], row["perplexity_ci95"]) == (0, None, None, None)
    assert row["over_alibi"] is None


def test_settings_are_lines_with_the_baseline_that_has_their_keys():
    cells = [
        cell("plsh", 0, 30.0, 5, "bias.sigma=64 bias.sampler=iid"),
        cell("plsh", 0, 40.0, 5, "bias.sigma=256 bias.sampler=iid"),
        cell("alibi", 0, 20.0, None, "bias.sigma=64"),
        cell("alibi", 0, 25.0, None, "bias.sigma=256"),
        cell("fixed_blocks", 0, 28.0),
    ]
    rows = table(cells)
    near, far = (by(rows, "plsh", s=5, setting=f"sigma={sigma}, sampler=iid") for sigma in (64, 256))
    assert (near["over_alibi"], far["over_alibi"]) == (10.0, 15.0)
    assert (near["over_fixed_blocks"], far["over_fixed_blocks"]) == (2.0, 12.0)
    assert near["over_alibi_ci95"] is None


def test_own_rows_are_those_after_training_under_the_runs_bias():
    rows = run_rows(*BEFORE, *AFTER)
    found = own_rows(rows, "plsh")
    assert sorted(found) == [256, 512]
    assert {(row["stage"], row["bias"]) for row in found.values()} == {("after", "plsh")}
    assert own_rows(run_rows(*BEFORE), "plsh") == {}
    infinite = [{**row, "perplexity": None} for row in rows if row["n"] == 256]
    assert sorted(own_rows([*infinite, *(row for row in rows if row["n"] == 512)], "plsh")) == [512]


def test_own_rows_leave_out_the_runs_of_baselines():
    rows = run_rows(*AFTER[:1], *BASELINES)
    for bias in ("plsh", "alibi", "fixed_blocks"):
        assert {row["adapter"] for row in own_rows(rows, bias).values()} == {bias}


def test_a_setting_is_named_by_the_end_of_its_keys():
    assert setting_text((("bias.sampler", "iid"), ("train.learning_rate", "0.001"))) == (
        "sampler=iid, learning_rate=0.001"
    )
    assert setting_text(()) == ""
