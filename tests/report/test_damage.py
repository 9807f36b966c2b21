"""Whatever lies in one run folder, every other run is still listed, shown and reported."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
from pathlib import Path

import page_cases
import pytest

from plsh_cli import rundir
from plsh_cli.console import printable
from plsh_cli.report import library

DEEP = "[" * 900 + "]" * 900
DEEPER = "[" * 200_000 + "]" * 200_000
BOMB = "a0: &a0 [1,1,1,1,1,1,1,1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
FILES = {
    "a pid beyond all": ("status.json", f'{{"state": "running", "command": "approx", "pid": {2**70}}}'),
    "a pid below all": ("status.json", '{"state": "running", "command": "approx", "pid": -1}'),
    "deep status": ("status.json", f'{{"state": "done", "a": {DEEPER}}}'),
    "status with lists": ("status.json", '{"state": ["done"], "started": [1], "command": {"a": 1}, "reason": 3}'),
    "deep environment": ("env.json", f'{{"processor": {DEEPER}}}'),
    "less deep environment": ("env.json", f'{{"processor": {DEEP}}}'),
    "deep source": ("git.json", f'{{"commit": {DEEP}}}'),
    "deep result": ("result.json", f'{{"rows": [], "summary": {{"a": {DEEP}}}}}'),
    "deep configuration": ("config.yaml", f"command: approx\na: {DEEP}"),
    "a bool that is none": ("config.yaml", "command: approx\na: !!bool xyz"),
    "an int that is none": ("config.yaml", 'command: approx\na: !!int ""'),
    "a time that is none": ("config.yaml", "command: approx\na: !!timestamp foo"),
    "an object": ("config.yaml", "command: !!python/object/apply:os.getcwd []"),
    "a loop": ("config.yaml", "command: approx\na: &x [*x]"),
    "a bomb": ("config.yaml", f"command: approx\n{BOMB}"),
    "null bytes": ("config.yaml", "command: approx\n\0"),
}


def run(folder, number, name):
    result = page_cases.approx_result()
    return page_cases.run_folder(
        folder, "approx", result["rows"], result["summary"], number=number, name=name, hash_=name * 4
    )


def page(format_):
    return Path(f"runs/report.{format_}").read_text(encoding="utf-8")


def everything(plsh, bad):
    """Every command over runs/, which has a whole run called good; none fails, and all still tell of it."""
    for words in (["runs"], ["runs", "--json"], ["reproduce", "--dry-run", "--only", "matrix"]):
        assert plsh(*words).code == 0, words
    assert "good" in plsh("runs").out
    for format_ in ("html", "md", "csv"):
        done = plsh("report", "--format", format_)
        assert done.code == 0, done.text
        text = page(format_)
        assert "-good-" in text
        assert bad.name in text
    for words in (["show", str(bad)], ["show", "--json", str(bad)]):
        assert plsh(*words).code == 0, words


@pytest.mark.parametrize("case", FILES)
def test_a_damaged_file(plsh, tmp_path, case):
    run(tmp_path / "runs", 0, "good")
    bad = run(tmp_path / "runs", 1, "evil")
    name, text = FILES[case]
    (bad / name).write_text(text, encoding="utf-8")
    everything(plsh, bad)


@pytest.mark.parametrize(
    "name", ["status.json", "config.yaml", "env.json", "git.json", "result.json", "metrics.jsonl", "error.txt",
             "overrides.txt", "figures/a_figure.svg"],
)  # fmt: skip
def test_a_pipe_is_not_waited_for(plsh, tmp_path, name):
    run(tmp_path / "runs", 0, "good")
    bad = run(tmp_path / "runs", 1, "evil")
    (bad / name).unlink(missing_ok=True)
    os.mkfifo(bad / name)
    everything(plsh, bad)


@pytest.mark.parametrize("seed", range(12))
def test_results_with_missing_fields_and_wrong_values(plsh, tmp_path, seed):
    """Of every kind of run: one field of its rows or summary is gone, or is something else."""
    whole = tmp_path / "whole"
    page_cases.library_of_runs(whole)
    run(whole, 8, "good")
    chance = random.Random(seed)
    shutil.copytree(whole, "runs")
    for file in sorted((tmp_path / "runs").glob("*/*/result.json")) + sorted(
        (tmp_path / "runs").glob("*/*/summary.json")
    ):
        if "-good-" in str(file):
            continue
        result = json.loads(file.read_text(encoding="utf-8"))
        change(chance, result)
        file.write_text(json.dumps(result), encoding="utf-8")
    names = [record.path.name for record in library.scan(tmp_path / "runs") if record.state == "done"]
    assert len(names) == 8
    for format_ in ("html", "md", "csv"):
        done = plsh("report", "--format", format_)
        assert done.code == 0, done.text
        text = page(format_)
        assert all(name in text for name in names)
    assert plsh("runs").code == plsh("runs", "--json").code == 0
    for name in names:
        done = plsh("show", name)
        assert done.code == 0, done.text


def change(chance, result):
    """Change some fields of a result at random."""
    for _ in range(3):
        part = chance.choice([one for one in (*result["rows"], result["summary"]) if one] or [{"a": 1}])
        key = chance.choice(sorted(part))
        if chance.random() < 0.3:
            del part[key]
        else:
            part[key] = chance.choice([None, "", "text", [], {}, [None], -1, 0, 10**400, 1e308, True, {"a": [1]}])


def test_nesting():
    def lists(depth):
        return {"a": json.loads("[" * (depth - 1) + "]" * (depth - 1))}

    assert not rundir.nested(lists(rundir.MOST_NESTED))
    assert rundir.nested(lists(rundir.MOST_NESTED + 1))


def test_brackets_in_texts_are_no_nesting(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"a": "[" * 1000, "b": [1]}))
    assert rundir.read_json(tmp_path / "x.json") == {"a": "[" * 1000, "b": [1]}


# Names and messages that would do something.

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b1m\u202e"


@pytest.fixture
def evil(tmp_path):
    """A run whose every text has commands for a terminal, and formulas for a spreadsheet."""
    rows = [{"x": 1.5, "=y": "=1+1", "knob": f"@SUM(1){ESCAPE}", "minus": "-1+2", "number": -1.5}]
    overrides = [f"approx.a={ESCAPE}"]
    folder = page_cases.run_folder(
        tmp_path / "runs", "unheard_of", rows, {}, name=f"=cmd|calc!A1{ESCAPE}".replace("/", ""), overrides=overrides
    )
    (folder / "env.json").write_text(json.dumps({"processor": ESCAPE}))
    failed = page_cases.run_folder(tmp_path / "runs", "unheard_of", [], {}, number=1, state="failed")
    status = json.loads((failed / "status.json").read_text())
    (failed / "status.json").write_text(json.dumps({**status, "reason": f"@SUM(1) {ESCAPE}"}))
    (failed / "error.txt").write_text(ESCAPE)
    return folder, failed


def test_nothing_steers_the_terminal(plsh, evil):
    said = [
        plsh("runs"), plsh("runs", "--json"), *(plsh("show", str(one)) for one in evil), plsh("show", "unheard"),
        plsh("show", ""), plsh("report", "unheard"), plsh("runs", "--prune", "failed"), plsh("runs", "--name", ESCAPE),
        plsh("runs", "--state", ESCAPE), plsh("runs", "--prune", "failed", "--yes"),
    ]  # fmt: skip
    assert any("\\x1b]0;owned" in one.text for one in said)
    for one in said:
        assert not set(one.out + one.err) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_nothing_in_a_page_or_table_steers_anything(plsh, evil):
    for format_ in ("html", "md", "csv"):
        assert plsh("report", "--format", format_).code == 0
        assert not set(page(format_)) & {"\x1b", "\x07", "\x9b"}
    lines = list(csv.reader(io.StringIO(page("csv"))))
    cells = [cell for line in lines for cell in line]
    assert "-1.5" in cells
    assert "'-1+2" in cells
    assert "'=y" in lines[0]
    assert not [cell for cell in cells if cell[:1] in "=+-@" and cell[:1] and cell != "-1.5"]


def test_printable():
    assert printable("a\tb\nc é 中 ±") == "a\tb\nc é 中 ±"
    assert printable("\x1b[1m\r\x7f\x85") == "\\x1b[1m\\r\\x7f\\x85"
