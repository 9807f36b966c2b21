"""The committed rows of `plsh bench attention` hold what a run computes again: pairs to the last, errors to rounding.

Regenerate on a quiet machine: `plsh bench attention experiment=attention_targets` and `... attention_honest`, then
copy their rows.csv to targets_rows.csv and honest_rows.csv, error_time_16384.svg, and the claims of the first one's
result.json to claims.json, in tests/golden/bench_attention. Times are not compared.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden" / "bench_attention"
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
KEYS = ("method", "n", "dtype", "causal", "passes")


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_pairs_and_errors_come_out_again(plsh, only_run):
    methods = ["bench.n=[4096]", "bench.biases=[plsh,window,fixed_blocks]", "bench.backends=[fused]"]
    more = ["bench.samplers=[iid,stratified]", "bench.num_samples=[20,80]", "bench.repeats=1", "bench.memory=none"]
    done = plsh("bench", "attention", *methods, *more, "logger.mode=disabled")
    assert done.code == 0, done.text
    before = {tuple(row[key] for key in KEYS): row for row in rows(FOLDER / "honest_rows.csv")}
    after = rows(only_run() / "rows.csv")
    assert len(after) == 6
    for row in after:
        old = before[tuple(row[key] for key in KEYS)]
        assert row["pairs"] == old["pairs"]
        assert float(row["output_error_relative"]) == pytest.approx(float(old["output_error_relative"]), rel=1e-3)


def test_the_readme_quotes_the_committed_claims():
    claims = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))["claims"]
    table = re.search(r"\| claim \| n \| measured \| target \|\n\|.*\n((?:\|.*\n)+)", README)
    for claim in claims:
        digits = 3 if "growth" in claim["claim"] else 2 if claim["measured"] < 2 else 1
        assert f"{claim['measured']:.{digits}f}" in table[1], claim
