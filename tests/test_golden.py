"""The committed table of `plsh approx` with its defaults comes out again.

Regenerate: `plsh approx --out OUT logger.mode=disabled`, then copy rows.csv, figures/error.svg and figures/picture.svg
of the run to tests/golden/approx. Counts and widths are a function of the seed alone and must be equal; the spectral
error is certified to 1e-4 relative, twice that is allowed; the max norm is exact up to rounding.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden" / "approx" / "rows.csv"
TOLERANCE = {"spectral_error": 2e-4, "spectral_error_relative": 2e-4, "max_error": 1e-9, "max_width": 1e-12}
EXACT = ["n", "kernel", "sampler", "num_samples", "max_block", "num_blocks"]


def test_the_default_table_comes_out_again(plsh, only_run):
    assert plsh("approx", "logger.mode=disabled").code == 0
    before = list(csv.DictReader(io.StringIO(GOLDEN.read_text(encoding="utf-8"))))
    after = list(csv.DictReader(io.StringIO((only_run() / "rows.csv").read_text(encoding="utf-8"))))
    assert len(before) == len(after) == 24
    for old, new in zip(before, after, strict=True):
        assert {key: new[key] for key in EXACT} == {key: old[key] for key in EXACT}
        for field, relative in TOLERANCE.items():
            assert float(new[field]) == pytest.approx(float(old[field]), rel=relative)
