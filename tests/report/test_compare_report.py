"""Tables and Pareto figures of `plsh compare` from made-up rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from plsh_cli import report
from plsh_cli.experiments.compare import UNITS
from plsh_cli.experiments.compare_costs import NAMES
from plsh_cli.experiments.compare_match import Pair
from plsh_cli.experiments.compare_rows import Facts, first_line, row
from plsh_cli.experiments.compare_settings import Setting
from plsh_cli.report import style
from plsh_cli.report.compare_figures import Point, frontier, pareto, points_of
from plsh_cli.rundir import RunFolder

BLOCKS = Setting("fixed_blocks", lengths=(7, 90))


def result(level="attention", baseline=BLOCKS, note="", sizes=(10, 20, 40), seeds=3, lengths=(1024,), scale=1.0):
    generator = np.random.default_rng(0)
    pairs, errors = [], {}
    for size in sizes:
        for method in (Setting("plsh", num_samples=size), Setting("window", eps=1.0 / size, pairs_of=size)):
            pairs.append(Pair(method, baseline, 10.0 * size, 10.1 * size if not note else 512.0, note))
            texts = 5 if level == "attention" else 1
            errors[method] = scale * size**-0.5 * generator.uniform(0.9, 1.1, (texts, seeds if method.drawn else 1))
    errors[baseline] = scale * np.full((5 if level == "attention" else 1, 1), 0.0 if baseline.bias == "alibi" else 0.6)
    measures = {"attention": ("output_error_relative",), "matrix": ("max_error",), "training": ("bits_per_byte",)}
    facts = Facts(level, "union", UNITS[level], seeds, 0, by_seed=level == "training")
    rows = [
        row(facts, measure, n, pair, (errors[pair.method], errors[pair.baseline]))
        for measure in measures[level]
        for n in lengths
        for pair in pairs
    ]
    summary = {
        "first_line": first_line(pairs, "union"),
        "level": level,
        "cost_name": NAMES["union"],
        "sigma": [2.0, 16.0],
        "subject": "a model on a text",
        "sampler": "iid",
    }
    return {"schema": 1, "command": "compare", "rows": rows, "summary": summary, "timing": {}}


SHAPES = {
    "plain": {},
    "exact baseline": {"baseline": Setting("alibi"), "note": "it has no knob"},
    "one size": {"sizes": (10,)},
    "one seed": {"seeds": 1},
    "matrix": {"level": "matrix"},
    "training": {"level": "training", "lengths": (256, 512, 1024)},
    "all exact": {"scale": 0.0},
}


def printed(made, width=100):
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        for table in report.tables(made):
            console.print(table)
    return capture.get()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_draws_and_prints(tmp_path, shape):
    made = result(**SHAPES[shape])
    RunFolder(tmp_path).write_json("result.json", made)
    files = report.draw(tmp_path)
    assert not (tmp_path / "figures" / "failed.txt").exists()
    assert "pareto.png" in {file.name for file in files}
    assert len(files) == 2 * len(SHAPES[shape].get("lengths", (1,)))
    with Image.open(tmp_path / "figures" / "pareto.png") as image:
        assert image.width == style.WIDTH * style.PNG_DPI
    lines = printed(json.loads((tmp_path / "result.json").read_text()))
    assert "nan" not in lines
    assert "…" not in lines
    assert max(map(len, lines.splitlines())) <= 100


def test_the_first_line_says_whether_costs_are_equal():
    assert printed(result()).splitlines()[0].startswith("equal cost")
    lines = printed(result(**SHAPES["exact baseline"])).splitlines()
    assert lines[0].startswith("UNEQUAL COST in 6 of 6")
    assert any("UNEQUAL" in line and "times" in line for line in lines[5:])


def test_the_table_names_unit_pairs_and_verdicts():
    text = " ".join(printed(result()).split())
    for word in ("15 (each a text with a seed of its draws); 5 (each a text)", "better", "5 texts' means", "p: paired"):
        assert word in text


def test_a_baseline_that_more_budget_makes_worse_is_said(tmp_path):
    made = result()
    errors = {"output_error_relative": {"error": 0.25, "ci95": None}}
    made["summary"]["reference"] = {"bias": "fixed_blocks", "knob": "5 tokens", "cost": 7.0, "errors": errors}
    text = " ".join(printed(made).split())
    assert "fixed_blocks at its own 5 tokens: error 0.250 at a cost of 7.00: LESS of both" in text
    assert "better than plsh s=10" in text
    RunFolder(tmp_path).write_json("result.json", made)
    assert report.draw(tmp_path)
    assert not (tmp_path / "figures" / "failed.txt").exists()


def test_a_method_that_misses_the_cost_of_its_draws_is_named():
    assert "does not reach" not in printed(result())
    made = result()
    window = next(row for row in made["rows"] if row["method"] == "window" and row["num_samples"] == 20)
    window["method_cost"] = 150.0
    said = f"window {window['knob']} (s=20) does not reach the cost of 20 draws: it has 150, they 200"
    assert said in " ".join(printed(made).split())


def test_what_is_not_finite_is_named_and_left_out_of_the_figure(tmp_path):
    made = result()
    for one in made["rows"][:2]:
        one |= dict.fromkeys(("method_error", "method_error_ci95", "difference", "difference_ci95", "p_value"))
        one |= {"verdict": "undecided", "not_finite": "method"}
    assert "plsh s=10: errors of method are not finite" in " ".join(printed(made).split())
    assert {point.num_samples for point in points_of(made["rows"]) if point.bias == "plsh"} == {20, 40}
    RunFolder(tmp_path).write_json("result.json", made)
    assert report.draw(tmp_path)
    assert not (tmp_path / "figures" / "failed.txt").exists()


def test_the_frontier_is_what_no_other_point_beats():
    spots = [(1, 5), (2, 3), (2, 4), (3, 3), (4, 1), (5, 2)]
    points = [Point("plsh", cost, error, None, None) for cost, error in spots]
    assert [(one.cost, one.error) for one in frontier(points)] == [(1, 5), (2, 3), (4, 1)]


def test_points_of_methods_and_baselines_are_drawn_once_and_exact_ones_left_out():
    made = result(**SHAPES["exact baseline"])
    points = points_of(made["rows"])
    assert [one.bias for one in points].count("alibi") == 1
    with style.look():
        drawn = pareto(made["rows"], made["summary"])
        assert "error 0 is not shown" in drawn.get_suptitle()
        colours = {line.get_color() for line in drawn.axes[0].get_lines()}
    assert {style.BIAS_COLOURS["plsh"], style.BIAS_COLOURS["window"]} <= colours
