"""The README quotes the committed tables of `plsh finetune`: the default run and the sweep over s.

Regenerate (on two cores 3 and 25 minutes): the commands in the README, then copy rows.csv of the run to
default_rows.csv, and rows.csv and perplexity_against_s.svg of the sweep's folder to sweep_rows.csv and
perplexity_against_s.svg, in tests/golden/finetune. No test runs either again: they take too long.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden" / "finetune"
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_readme_quotes_the_default_run():
    for row in rows("default_rows.csv"):
        bits = f"{float(row['bits_per_byte']):.2f} ± {float(row['bits_per_byte_ci95']):.2f}"
        line = f"| {bits} | {float(row['top1']):.3f} | {float(row['entropy']):.2f} |"
        assert any(f"| {row['stage']} |" in text and text.endswith(line) for text in README.splitlines()), row


def test_the_readme_quotes_the_sweep():
    for row in rows("sweep_rows.csv"):
        cells = f"| {row['n']} | {float(row['perplexity']):.1f} ± {float(row['perplexity_ci95']):.1f} |"
        assert f"| {row['num_samples'] or '-'} {cells}" in README, row


def test_differences_are_those_of_the_means():
    """Paired by seed, and every seed is there: the mean of the differences is the difference of the means."""
    table = {(row["bias"], row["num_samples"], row["n"]): row for row in rows("sweep_rows.csv")}
    for (bias, _, n), row in table.items():
        if bias == "plsh":
            over = float(row["perplexity"]) - float(table["alibi", "", n]["perplexity"])
            assert float(row["over_alibi"]) == pytest.approx(over)
            assert row["over_alibi_seeds"] == row["seeds"] == "3"
