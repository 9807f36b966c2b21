"""Figures and tables from run folders: every command, every awkward shape, deterministic and small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from plsh_cli import report
from plsh_cli.config.compose import compose
from plsh_cli.experiments import approx
from plsh_cli.experiments.bench_matrix import TARGETS, claim_row
from plsh_cli.experiments.harness import Run
from plsh_cli.report import style, text
from plsh_cli.rundir import RunFolder
from plsh_cli.tracking import Tracker

SMALL = ["approx.n=[61]", "approx.heads=4", "approx.num_samples=[3,9]", "approx.seeds=3", "approx.bootstrap=50"]
SHAPES = {
    "samplers": ["approx.samplers=[iid,stratified,importance]", "bias.pitch=integer"],
    "one": ["approx.seeds=1", "approx.num_samples=[5]", "bias.sigma=[2.5]"],
    "zero": ["approx.n=[1]"],
    "one_at_ten": ["approx.seeds=1", "approx.num_samples=[10]", "bias.sigma=[2.0]"],
    "identity": ["bias.sigma=[1e-6]"],
    "ones": ["bias.sigma=[1e9]", "approx.num_samples=[10]"],
    "mixed": ["bias.sigma=[1e-6,2.0,1e9]"],
    "smallest": ["approx.n=[1]", "approx.seeds=1", "approx.num_samples=[10]", "approx.samplers=[iid,stratified]"],
    "lengths": ["approx.n=[61,31]", "approx.samplers=[iid,stratified]"],
    "log": ["bias.kernel=log", "bias.a=[0.00390625,1.0]", "approx.samplers=[stratified,iid]"],
}


def approx_run(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """result.json of a small `plsh approx` in `folder`, written as the harness writes it."""
    given = {line.partition("=")[0] for line in overrides}
    target = RunFolder(folder)
    run = Run(target, Tracker(target, None, "disabled"), print)
    result = approx.run(
        compose("approx", [*(line for line in SMALL if line.partition("=")[0] not in given), *overrides]), run
    )
    return write(folder, "approx", result.rows, result.summary, result.timing)


def write(folder: Path, command: str, rows: list, summary: dict, timing: dict) -> dict[str, Any]:
    """The record as it is read back from result.json."""
    RunFolder(folder).write_json(
        "result.json", {"schema": 1, "command": command, "rows": rows, "summary": summary, "timing": timing}
    )
    return json.loads((folder / "result.json").read_text())


def bench_run(folder: Path) -> dict[str, Any]:
    """result.json of `plsh bench matrix` with made-up speeds."""
    values = {"times faster": 123.4, "s": 12.0, "GiB": 0.7, "relative": 1e-6}
    rows = [
        claim_row(claim, target.size, 3, values[target.unit], 0.41, 400.0)
        | {"scaled_from_draws": 20 if claim.startswith("M~") else None}
        for claim, target in TARGETS.items()
    ]
    timing = {"m_tilde_seconds": 0.41, "m_tilde_boundaries_seconds": 0.2, "m_tilde_sums_seconds": 0.21}
    return write(folder, "bench_matrix", rows, {}, timing)


def printed(result: dict[str, Any], width: int = 100) -> str:
    """The tables as they look on a terminal of this many columns."""
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        for table in report.tables(result):
            console.print(table)
    return capture.get()


def check_files(files: list[Path], names: set[str]) -> None:
    """PNG and SVG of each name, small, with nothing but finite numbers in the SVG."""
    assert {file.name for file in files} == {f"{name}.{ending}" for name in names for ending in ("png", "svg")}
    for file in files:
        if file.suffix == ".svg":
            content = file.read_text(encoding="utf-8")
            assert len(content.encode()) < 150_000, file.name
            assert "<dc:date>" not in content
        else:
            with Image.open(file) as image:
                assert image.width == style.WIDTH * style.PNG_DPI


@pytest.mark.parametrize("shape", SHAPES)
def test_approx(tmp_path, shape):
    result = approx_run(tmp_path, SHAPES[shape])
    errors = {"error_n61", "error_n31"} if shape == "lengths" else {"error"}
    gains = {"gain"} if any(gain["gain_spectral"] for gain in result["summary"]["gains"]) else set()
    check_files(report.draw(tmp_path), errors | {"picture", "block_sizes"} | gains)
    lines = printed(result)
    assert "…" not in lines
    assert "nan" not in lines
    assert "could be violated" in " ".join(lines.split())
    assert ("one seed, so no interval" in " ".join(lines.split())) == (shape in ("one", "one_at_ten", "smallest"))


def test_the_same_run_gives_the_same_svg_and_leaves_nothing_else(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    approx_run(tmp_path, [])
    first = {file.name: file.read_bytes() for file in report.draw(tmp_path)}
    assert {file.name: file.read_bytes() for file in report.draw(tmp_path)} == first
    assert sorted(file.name for file in (tmp_path / "figures").iterdir()) == sorted(first)
    assert dict(matplotlib.rcParams) == before


def test_approx_tables_show_means_with_intervals(tmp_path):
    result = approx_run(tmp_path, [])
    row = result["rows"][0]
    assert f"{row['max_error']:.3f} ±{row['max_error_ci95']:.3f}" in printed(result)
    assert "n=61" in printed(result)
    assert "3 seeds (0-2)" in printed(result)


def test_many_kernels_are_thinned_and_it_says_so(tmp_path):
    lines = " ".join(
        printed(
            approx_run(tmp_path, ["approx.heads=12", "approx.num_samples=[1,2,3,5,7,9,11,13]", "approx.seeds=2"])
        ).split()
    )
    assert "6 of 12 kernels shown, rows.csv has all" in lines


def test_flagged_bounds_are_listed(tmp_path):
    result = approx_run(tmp_path, [])
    result["summary"]["flagged"] = [
        {
            "n": 61,
            "kernel": "alibi(sigma=4)",
            "sampler": "iid",
            "num_samples": 3,
            "seed": 1,
            "bound": "max",
            "measured": 0.9,
            "limit": 0.8,
            "allowed_probability": 0.013,
        }
    ]
    lines = printed(result)
    assert "1 violated, listed below" in " ".join(lines.split())
    assert "0.013" in lines


def test_columns_that_hold_only_for_alibi_disappear_elsewhere(tmp_path):
    assert "of its" in printed(approx_run(tmp_path, []))
    lines = printed(approx_run(tmp_path, ["bias.kernel=log", "bias.a=[0.5]"]))
    assert "of its" not in lines
    assert "log(a=0.5, b=1)" in lines


def test_bench_matrix(tmp_path):
    result = bench_run(tmp_path)
    check_files(report.draw(tmp_path), {"ratios"})
    lines = printed(result)
    assert "…" not in lines
    assert "≥ 800" in lines
    assert "NO" in lines
    assert "slices from 20 draws" in " ".join(lines.split())


def test_a_foreign_command_has_no_figures(tmp_path):
    assert report.tables(write(tmp_path, "other", [], {}, {})) == []
    assert report.draw(tmp_path) == []


def test_labels_are_spread_without_overlap_and_stay_close():
    moved = style.spread([0.1, 0.11, 0.12, 0.9], 0.1)
    assert np.diff(moved).min() >= 0.1 - 1e-12
    assert moved == pytest.approx([0.01, 0.11, 0.21, 0.9])
    assert style.spread([0.2, 0.8], 0.1) == [0.2, 0.8]


@pytest.mark.parametrize(
    ("value", "half", "shown"),
    [
        (0.18341, 0.0123, "0.183 ±0.012"),
        (24.56, 1.234, "24.6 ±1.2"),
        (1234.5, 20.4, "1,234 ±20"),
        (0.0, 0.0, "0 ±0"),
        (0.25, None, "0.250"),
        (None, None, "-"),
        (3.2e-7, 1e-8, "3.20e-07 ±1e-08"),
    ],
)
def test_means_as_text(value, half, shown):
    assert text.mean_ci(value, half) == shown


def test_counts_as_axis_text():
    assert [style.count_text(value) for value in (1, 1.4142, 40, 4500, 1e5)] == ["1", "1.41", "40", "4,500", "$10^5$"]


def test_evenly_keeps_both_ends():
    assert text.evenly(list(range(32)), 4) == [0, 10, 21, 31]
    assert text.evenly([1, 2], 4) == [1, 2]
