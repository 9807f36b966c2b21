"""The committed loss curve of 30 steps of `plsh train` comes out again.

Regenerate: the command in OVERRIDES below, then copy step, loss, eval_loss and pairs_per_token of metrics.jsonl to
tests/golden/train/losses.csv. The draws are a function of the seed alone and their pairs must be equal; losses depend
on the processor's rounding, which 30 steps leave far below the tolerance and any change of the recipe far above it.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

LOSSES = Path(__file__).parent / "golden" / "train" / "losses.csv"
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
