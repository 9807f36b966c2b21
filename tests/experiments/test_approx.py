"""`plsh approx` at toy size: rows, theory columns, nesting, refusals, summary."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from plsh_cli.config.compose import compose
from plsh_cli.errors import UserError
from plsh_cli.experiments import approx
from plsh_cli.experiments.approx_arrays import clipped_size_law
from plsh_cli.experiments.approx_summary import summary
from plsh_cli.experiments.harness import Run
from plsh_cli.experiments.result import Result
from plsh_cli.positional import kernels
from plsh_cli.positional.matrices import l_star, m_tilde_by_comparison
from plsh_cli.positional.measure import Measurement
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator
from plsh_cli.rundir import RunFolder
from plsh_cli.tracking import Tracker

TOY = ["approx.n=[61]", "bias.sigma=[2.0,11.0]", "approx.num_samples=[5,3,13]", "approx.seeds=3", "approx.bootstrap=50"]


def measured(folder: Path, *overrides: str) -> Result:
    """The result of a run in `folder` with the toy settings and these overrides."""
    target = RunFolder(folder)
    given = {line.partition("=")[0] for line in overrides}
    toy = [line for line in TOY if line.partition("=")[0] not in given]
    run = Run(target, Tracker(target, None, "disabled"), print)
    return approx.run(compose("approx", [*toy, *overrides]), run)


def pick(result: Result, **values: object) -> dict:
    """The only row with these values."""
    (row,) = [row for row in result.rows if all(row[key] == value for key, value in values.items())]
    return row


def test_rows_are_means_of_dense_norms_over_seeds(tmp_path):
    result = measured(tmp_path)
    assert [row["num_samples"] for row in result.rows] == [3, 5, 13] * 2
    row, kernel = pick(result, sigma=11.0, num_samples=5), kernels.alibi(11.0)
    errors = []
    for seed in range(3):
        parts = draw(kernel, 61, 13, generator(seed, "partitions", kernel.label, "real")).take(5)
        errors.append(m_tilde_by_comparison(parts) - l_star(kernel, 61))
    spectral = [np.abs(np.linalg.eigvalsh(error)).max() for error in errors]
    assert row["spectral_error"] == pytest.approx(np.mean(spectral), rel=1e-10)
    assert row["spectral_error_ci95"] == pytest.approx(
        4.30265272991615 * np.std(spectral, ddof=1) / math.sqrt(3), rel=1e-9
    )
    assert row["max_error"] == pytest.approx(np.mean([np.abs(error).max() for error in errors]), rel=1e-12)
    assert row["spectral_error_relative"] == pytest.approx(
        row["spectral_error"] / np.linalg.norm(l_star(kernel, 61), 2), rel=1e-9
    )
    assert (
        row["pairs_per_token_draws"] == row["pairs_per_token_draws_causal"] < row["pairs_per_token_draws_bidirectional"]
    )
    assert row["pairs_per_token_union"] <= row["pairs_per_token_draws"]
    assert row["blocks_per_draw"] == row["num_blocks"] / 5
    with np.load(tmp_path / "errors.npz") as saved:
        assert saved["spectral_error"].shape == (6, 3)
        assert saved["spectral_error"][4] == pytest.approx(spectral, rel=1e-10)


def test_every_value_is_flat_and_strict_json(tmp_path):
    result = measured(tmp_path, "approx.samplers=[iid,stratified]")
    for row in result.rows:
        assert all(value is None or isinstance(value, (str, int, float)) for value in row.values())
    json.dumps([result.rows, result.summary, result.timing], allow_nan=False)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["spectral_error"] for line in lines] == [row["spectral_error"] for row in result.rows]


def test_the_same_seed_gives_the_same_rows_whatever_else_is_asked(tmp_path):
    alone = measured(tmp_path, "bias.sigma=[11.0]", "approx.num_samples=[5]", "approx.nested=false")
    beside = measured(tmp_path, "approx.nested=false", "approx.samplers=[stratified,iid]")
    assert pick(alone, num_samples=5) == pick(beside, num_samples=5, sigma=11.0, sampler="iid")
    nested = measured(tmp_path, "bias.sigma=[11.0]", "approx.num_samples=[5,13]")
    assert pick(nested, num_samples=5) == pick(measured(tmp_path), sigma=11.0, num_samples=5)
    assert pick(nested, num_samples=5)["spectral_error"] != pick(alone, num_samples=5)["spectral_error"]


@pytest.mark.parametrize("norm", ["dense", "banded", "blocks"])
def test_methods_agree_and_are_named(tmp_path, norm):
    exact, row = (
        pick(measured(tmp_path, "approx.norm=dense"), sigma=11.0, num_samples=13),
        pick(measured(tmp_path, f"approx.norm={norm}"), sigma=11.0, num_samples=13),
    )
    assert row["norm_method"] == norm
    assert row["max_error"] == pytest.approx(exact["max_error"], rel=1e-12)
    assert abs(row["spectral_error"] / exact["spectral_error"] - 1) <= max(row["norm_residual_relative"], 1e-12) + 1e-12
    assert row["norm_residual_relative"] <= 1e-3


def test_theory_stands_only_where_it_holds(tmp_path):
    result = measured(tmp_path, "approx.samplers=[iid,importance]", "bias.sigma=[11.0]")
    iid_only = [
        "bound_expectation",
        "bound_expectation_ratio",
        "tail_probability",
        "bound_max",
        "rule_of_thumb_samples",
        "max_width_median",
        "max_width_upper_1pct",
    ]
    iid, other = pick(result, sampler="iid", num_samples=5), pick(result, sampler="importance", num_samples=5)
    assert all(other[key] is None for key in iid_only)
    assert all(iid[key] > 0 for key in iid_only)
    assert iid["max_width_median"] < iid["max_width_upper_1pct"]
    assert iid["bound_expectation_ratio"] == iid["spectral_error"] / iid["bound_expectation"]
    log = measured(tmp_path, "bias.kernel=log", "bias.sigma=null", "bias.a=[1.0,2.0]", "bias.b=[0.5]")
    row = pick(log, kernel="log(a=2, b=0.5)", num_samples=5)
    assert row["sigma"] is row["bound_expectation"] is row["tail_probability"] is row["rule_of_thumb_samples"] is None
    assert row["bound_max"] > 0
    assert row["max_width_median"] > 0


def test_one_seed_has_no_interval(tmp_path):
    row = measured(tmp_path, "approx.seeds=1", "seed=7").rows[0]
    assert (row["seeds"], row["seed_first"]) == (1, 7)
    assert row["spectral_error_ci95"] is row["max_error_ci95"] is row["spectral_error_relative_ci95"] is None


@pytest.mark.parametrize(
    "overrides",
    [
        ["approx.n=[1]"],
        ["bias.sigma=[1e-6]"],
        ["bias.sigma=[1e9]"],
        ["approx.num_samples=[1]"],
        ["approx.n=[2]", "bias.pitch=integer"],
        ["bias.sigma=[0.2]", "approx.samplers=[stratified]"],
    ],
)
def test_extremes_are_legal(tmp_path, overrides):
    result = measured(tmp_path, *overrides)
    for row in result.rows:
        assert row["spectral_error"] >= 0.0
        assert 0.0 <= row["max_error"] <= 1.0 + 1e-12
    json.dumps(result.summary, allow_nan=False)
    if "approx.n=[1]" in overrides or "bias.sigma=[1e-6]" in overrides:
        assert all(row["spectral_error"] < 1e-12 and row["max_block"] == 1 for row in result.rows)
        assert {slope["note"] for slope in result.summary["slopes"]} == {"error at rounding level"}


def test_slopes_are_fitted_per_seed(tmp_path):
    result = measured(tmp_path, "bias.sigma=[11.0]", "approx.num_samples=[4,16,64]")
    with np.load(tmp_path / "errors.npz") as saved:
        by_seed = [np.polyfit(np.log([4, 16, 64]), np.log(saved["max_error"][:, seed]), 1)[0] for seed in range(3)]
    (slope,) = [one for one in result.summary["slopes"] if one["norm"] == "max"]
    assert slope["slope"] == pytest.approx(np.mean(by_seed), rel=1e-9)
    assert slope["slope_ci95"] == pytest.approx(4.30265272991615 * np.std(by_seed, ddof=1) / math.sqrt(3), rel=1e-9)
    assert slope["theory"] == -0.5
    assert slope["note"] == ""
    (one_s, _) = measured(tmp_path, "bias.sigma=[11.0]", "approx.num_samples=[4]").summary["slopes"]
    assert one_s["slope"] is None
    assert "two values" in one_s["note"]


def test_violated_bounds_are_flagged_with_what_they_allowed():
    cfg = compose(
        "approx", ["approx.n=[100]", "bias.sigma=[2.0]", "approx.num_samples=[1000]", "approx.seeds=2", "seed=5"]
    )
    kernel = kernels.alibi(2.0)
    wild, tame = (
        Measurement(1000, spectral, 0.0, largest, "dense", 0, 1, 1.0, 1, 1.0, 1.0, 1.0, 1.0)
        for spectral, largest in ((4.0, 0.5), (0.01, 0.01))
    )
    theory = approx.Theory.of(kernel, 100, 1000, 0.05, "iid", "real")
    rows = [approx.row(kernel, 100, "iid", "real", [5, 6], [wild, tame], theory)]
    found = summary(cfg, rows, [[wild, tame]])
    assert [(one["seed"], one["bound"]) for one in found["flagged"]] == [(5, "tail"), (5, "max")]
    assert all(0 <= one["allowed_probability"] < 0.05 for one in found["flagged"])
    assert (found["bounds_checked"], found["bounds_vacuous"]) == (4, 1)


def test_bounds_at_their_trivial_value_are_counted(tmp_path):
    # At n=61 and delta=0.05 the max bound is 1.09 for s=5 and 0.68 for s=13; the tail bound is 1 at every error here.
    counted = measured(tmp_path, "bias.sigma=[11.0]", "approx.num_samples=[5,13]").summary
    assert (counted["bounds_checked"], counted["bounds_vacuous"]) == (12, 9)


def test_errors_at_rounding_level_have_no_slope(tmp_path):
    slopes = measured(tmp_path, "bias.sigma=[1e9,11.0]").summary["slopes"]
    assert [one["note"] for one in slopes] == ["error at rounding level"] * 2 + [""] * 2
    assert [one["slope"] is None for one in slopes] == [True, True, False, False]


def test_gains_compare_samplers_at_the_same_s(tmp_path):
    result = measured(
        tmp_path,
        "bias.sigma=[11.0]",
        "approx.samplers=[stratified,iid]",
        "approx.num_samples=[10,40]",
        "approx.seeds=8",
    )
    gains = result.summary["gains"]
    assert [(one["sampler"], one["num_samples"]) for one in gains] == [("stratified", 10), ("stratified", 40)]
    for one in gains:
        size = {"num_samples": one["num_samples"]}
        iid, other = pick(result, sampler="iid", **size), pick(result, sampler="stratified", **size)
        assert one["gain_spectral"] == pytest.approx(iid["spectral_error"] / other["spectral_error"], rel=1e-12)
        assert one["gain_spectral_low"] < one["gain_spectral"] < one["gain_spectral_high"]
        assert one["cost_ratio_draws"] == other["pairs_per_token_draws"] / iid["pairs_per_token_draws"]
        assert one["samples_for_same_error"] > one["num_samples"]
        assert "fitted" in one["samples_basis"]
    (alone,) = measured(
        tmp_path, "approx.samplers=[stratified,iid]", "bias.sigma=[11.0]", "approx.num_samples=[40]"
    ).summary["gains"]
    assert "s^-1/2" in alone["samples_basis"]
    assert alone["samples_for_same_error"] == pytest.approx(40 * alone["gain_spectral"] ** 2, rel=1e-12)
    assert measured(tmp_path, "approx.samplers=[stratified]").summary["gains"] == []


@pytest.mark.parametrize(
    "kernel",
    [kernels.alibi(7.0), kernels.log(1.0, 0.3), kernels.power(0.5, 0.5), kernels.table(np.linspace(1, 0.5, 31))],
    ids=lambda kernel: kernel.family,
)
def test_block_size_law_matches_the_draws(kernel):
    # Largest gap of two distribution functions over 31 sizes: below 0.02 for 20,000 draws except with probability 1e-6
    # (Hoeffding per size for a mean of [0, 1] values, union over 31).
    pitch = "integer" if kernel.family == "table" else "real"
    parts = draw(kernel, 31, 20_000, np.random.default_rng(3), "iid", pitch)
    counts = np.zeros(32)
    for blocks in parts.blocks():
        sizes = blocks.end - blocks.start
        counts += np.bincount(sizes, weights=sizes, minlength=32)
    law = clipped_size_law(kernel, 31)
    assert law.min() >= -1e-15
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.abs(np.cumsum(counts[1:]) / counts.sum() - np.cumsum(law)).max() < 0.02


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["approx.n=[300000]", "approx.norm=dense"], "approx.norm"),
        (["approx.n=[1000000000000]", "approx.norm=dense"], "approx.n"),
        (["approx.n=[1000000000000000]"], "approx.n"),
        (["approx.n=[64]", "approx.num_samples=[1000000000000000]"], "approx.num_samples"),
        (["bias.kernel=log", "bias.a=[1,2,3]", "bias.b=[1,2]"], "bias.a"),
        (["bias.kernel=log", "bias.a=[1,1]", "bias.b=[1]"], "bias.a"),
        (["bias.kernel=table", "bias.pitch=integer", "bias.table=[1,0.5]"], "bias.table"),
        (["bias.kernel=table", "bias.pitch=integer", "bias.table=no-such-file.npy"], "bias.table"),
        (["device=mps"], "device"),
        (["device=cuda:99"], "device"),
    ],
)
def test_plan_refuses_and_names_the_field(overrides, field):
    with pytest.raises(UserError) as caught:
        approx.plan(compose("approx", overrides))
    assert caught.value.field == field


def test_what_does_not_fit_is_refused_with_what_would():
    with pytest.raises(
        UserError, match=r"approx.norm = dense: needs about .* GiB at n=300,000, s=40, norm=dense; .* use auto"
    ):
        approx.plan(compose("approx", ["approx.n=[300000]", "approx.norm=dense"]))
    with pytest.raises(UserError, match=r"use at most about [0-9,]+"):
        approx.plan(compose("approx", ["approx.n=[1000000000000]"]))


def test_a_kernel_that_is_not_convex_is_refused_at_its_first_fault(tmp_path):
    values = np.exp(-np.arange(40) / 5.0)
    values[17] += 0.01
    np.savetxt(tmp_path / "phi.txt", values)
    with pytest.raises(UserError, match=r"distance 1[678]"):
        approx.plan(
            compose(
                "approx",
                ["bias.kernel=table", "bias.pitch=integer", f"bias.table={tmp_path / 'phi.txt'}", "approx.n=[40]"],
            )
        )


def test_plan_counts_the_work():
    planned = approx.plan(compose("approx", []))
    assert planned["cells"] == 40
    assert planned["rows"] == 24
    assert planned["measurements"] == 120
    assert planned["kernels"][0] == "alibi(sigma=2)"
    assert planned["kernels"][-1] == "alibi(sigma=256)"


def test_every_experiment_composes():
    paper = compose("approx", ["experiment=paper_matrix"])
    assert (paper.approx.n, paper.approx.heads, paper.approx.num_samples[-1]) == ([4500], 32, 100_000)
    gain = compose("approx", ["experiment=stratified_gain"])
    assert (gain.bias.sigma, gain.bias.pitch, gain.approx.seeds) == ([16.0], "integer", 100)
