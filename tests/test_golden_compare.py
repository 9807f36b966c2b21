"""The README quotes the committed rows of `plsh compare`; their verdicts follow from their intervals.

Regenerate (two minutes on two cores): `plsh compare`, then copy rows.csv and figures/pareto.svg of the run to
tests/golden/compare. Of the trainings (75 minutes): `plsh compare --level training`, rows.csv to training.csv; then
`plsh compare --level training --baseline window --methods plsh`, rows.csv to training_window.csv. No test runs them
again at these sizes.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden" / "compare"
FILES = ("rows", "training", "training_window")
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
LABELS = {"plsh": "positional LSH, s={num_samples}", "window": "window, {knob}"}


def rows(name: str = "rows") -> list[dict[str, str]]:
    with (GOLDEN / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_readme_quotes_every_row_of_the_means():
    quoted = [row for row in rows() if row["measure"] == "output_error_relative"]
    assert len(quoted) == 6
    for row in quoted:
        cells = [
            LABELS[row["method"]].format_map(row),
            f"{float(row['method_cost']):.0f}",
            f"{float(row['method_error']):.3f}",
            f"{float(row['baseline_error']):.3f}",
            f"{float(row['difference']):.3f} ± {float(row['difference_ci95']):.3f}",
            f"{float(row['p_value']):.0e}",
            row["verdict"],
        ]
        assert f"| {' | '.join(cells)} |" in README


def test_the_readme_quotes_the_trainings():
    against_window = {row["num_samples"]: row for row in longest(rows("training_window"))}
    quoted = longest(rows("training"))
    assert (len(quoted), len(against_window)) == (6, 3)
    for row in quoted:
        cells = [
            LABELS[row["method"]].format_map(row),
            f"{float(row['method_cost']):.0f}",
            f"{float(row['method_error']):.3f}",
            *difference(row),
            *(difference(against_window[row["num_samples"]]) if row["method"] == "plsh" else [""] * 3),
        ]
        assert f"| {' | '.join(cells)} |" in README


def longest(all_rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in all_rows if row["measure"] == "bits_per_byte" and row["n"] == "1024"]


def difference(row: dict[str, str]) -> list[str]:
    shown = f"{float(row['difference']):.3f} ± {float(row['difference_ci95']):.3f}"
    return [shown, f"{float(row['p_value']):.0e}", row["verdict"]]


def test_the_readme_says_that_the_trainings_verdicts_are_the_same_everywhere():
    assert {row["verdict"] for row in rows("training")} == {"better"}
    assert {row["verdict"] for row in rows("training_window")} == {"worse"}
    for name, methods in (("training", 6), ("training_window", 3)):
        assert len(rows(name)) == methods * 2 * 3


@pytest.mark.parametrize("name", FILES)
def test_pairs_are_those_of_texts_and_seeds(name):
    for row in rows(name):
        drawn = row["method"] == "plsh" or row["level"] == "training"
        assert int(row["pairs"]) == int(row["texts"]) * (int(row["seeds"]) if drawn else 1)
        assert abs(float(row["cost_ratio"]) - 1) <= 0.02
        difference = float(row["method_error"]) - float(row["baseline_error"])
        assert float(row["difference"]) == pytest.approx(difference, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", FILES)
def test_a_verdict_is_the_side_of_zero_on_which_the_whole_interval_lies(name):
    for row in rows(name):
        center, wide = float(row["difference"]), max(float(row[f"difference_ci95{e}"] or 0) for e in ("", "_texts"))
        side = "better" if center + wide < 0 else "worse" if center - wide > 0 else "undecided"
        assert row["verdict"] == side, row
