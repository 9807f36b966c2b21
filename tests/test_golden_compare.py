"""The README quotes the committed rows of the default `plsh compare`; their verdicts follow from their intervals.

Regenerate (two minutes on two cores): `plsh compare`, then copy rows.csv and figures/pareto.svg of the run to
tests/golden/compare. No test runs it again at this size.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden" / "compare" / "rows.csv"
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
LABELS = {"plsh": "positional LSH, s={num_samples}", "window": "window, {knob}"}


def rows() -> list[dict[str, str]]:
    with GOLDEN.open(encoding="utf-8", newline="") as lines:
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


def test_pairs_are_those_of_texts_and_seeds():
    for row in rows():
        drawn = row["method"] == "plsh"
        assert int(row["pairs"]) == int(row["texts"]) * (int(row["seeds"]) if drawn else 1)
        assert abs(float(row["cost_ratio"]) - 1) <= 0.02
        difference = float(row["method_error"]) - float(row["baseline_error"])
        assert float(row["difference"]) == pytest.approx(difference, rel=1e-9, abs=1e-12)


def test_a_verdict_is_the_side_of_zero_on_which_the_whole_interval_lies():
    for row in rows():
        center, wide = float(row["difference"]), max(float(row[f"difference_ci95{e}"] or 0) for e in ("", "_texts"))
        side = "better" if center + wide < 0 else "worse" if center - wide > 0 else "undecided"
        assert row["verdict"] == side, row
