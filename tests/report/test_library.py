"""Records of run folders: what they say, and that no folder, however damaged, raises."""

from __future__ import annotations

import json
import os

import page_cases
import pytest

from plsh_cli.report import library


@pytest.fixture
def record(tmp_path):
    """A whole run's record."""
    return library.read(page_cases.run_folder(tmp_path, "approx", [{"n": 3}], {"a": 1}, overrides=["approx.n=[3]"]))


def test_a_whole_run(record):
    assert (record.command, record.name, record.state, record.problem) == ("approx", "approx", "done", None)
    assert (record.started, record.seconds) == ("2026-01-01T00:00:00Z", 42.0)
    assert (record.commit, record.dirty, record.hash) == (page_cases.COMMIT, False, "a" * 16)
    assert (record.rows, record.summary, record.overrides) == ([{"n": 3}], {"a": 1}, ["approx.n=[3]"])
    assert record.config == {"command": "approx", "name": "approx", "seed": 0}
    assert [file.name for file in record.figures] == ["a_figure.svg"]
    files = [file for file in record.path.rglob("*") if file.is_file()]
    assert record.size() == sum(file.stat().st_size for file in files)


def test_a_result_that_was_let_go_is_read_again(record):
    assert record.rows
    (record.path / "result.json").unlink()
    assert record.rows
    record.forget()
    assert record.rows == []
    assert record.problem == "result.json is missing"


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("result.json", b"{", "result.json cannot be read"),
        ("result.json", b"[1]", "result.json cannot be read"),
        ("result.json", b'{"rows": 3}', "result.json holds no rows"),
        ("result.json", b'{"rows": [3]}', "result.json holds no rows"),
        ("result.json", b"[" * 100_000, "result.json cannot be read"),
        ("config.yaml", b"a: [", "config.yaml cannot be read"),
        ("config.yaml", b"\xff\xfe", "config.yaml cannot be read"),
        ("config.yaml", b"!!python/object:os.system {}", "config.yaml cannot be read"),
        ("config.yaml", b"3", "config.yaml holds no configuration"),
        ("config.yaml", b"a: " + b"x" * 3_000_000, "too large"),
        ("status.json", b"nonsense", "status.json is missing or cannot be read"),
        ("status.json", b'{"state": "dancing"}', "status.json is missing or cannot be read"),
    ],
)
def test_damaged_files_are_problems(record, file, content, says):
    (record.path / file).write_bytes(content)
    assert says in library.read(record.path).problem


@pytest.mark.parametrize("file", ["status.json", "config.yaml", "result.json", "overrides.txt", "git.json"])
def test_a_pipe_or_folder_in_place_of_a_file(record, file):
    (record.path / file).unlink()
    os.mkfifo(record.path / file)
    first = library.read(record.path)
    assert first.rows is not None
    (record.path / file).unlink()
    (record.path / file).mkdir()
    assert library.read(record.path).problem == first.problem


def test_fields_of_the_wrong_type_are_left_out(record):
    (record.path / "status.json").write_text('{"state": "done", "started": 3, "ended": [], "command": {}}')
    (record.path / "config.yaml").write_text("name: 2026-01-01\ncommand: [1]\n")
    (record.path / "git.json").write_text('{"commit": 7, "dirty": "yes"}')
    read = library.read(record.path)
    assert (read.command, read.name, read.state) == ("approx", record.path.name, "done")
    assert (read.started, read.seconds, read.commit, read.dirty) == (None, None, None, None)


def test_scan_gives_runs_oldest_first_and_what_is_none(tmp_path):
    page_cases.library_of_runs(tmp_path)
    found = library.scan(tmp_path)
    runs = [one for one in found if one.state != "foreign"]
    assert [one.started for one in runs] == sorted(one.started for one in runs)
    assert {one.path.name for one in found if one.state == "foreign"} == {"notes", "not a run"}
    assert {one.state for one in runs} == {"done", "failed", "running"}
    (sweep,) = (one for one in found if one.command == "finetune_sweep")
    assert len(sweep.rows) == 2
    assert [file.name for file in sweep.figures] == ["perplexity_against_s.svg"]


def test_scan_of_nothing(tmp_path):
    assert library.scan(tmp_path / "nowhere") == []
    (tmp_path / "file").write_text("")
    assert library.scan(tmp_path / "file") == []


def test_a_sweep_without_a_table_is_no_record(tmp_path):
    (tmp_path / "sweeps" / "20260101T000000Z-aaaaaa").mkdir(parents=True)
    assert library.scan(tmp_path) == []


def test_a_run_whose_process_is_gone_was_killed(tmp_path):
    path = page_cases.run_folder(tmp_path, "approx", [], {}, state="running")
    (path / "status.json").write_text(json.dumps({"state": "running", "host": os.uname().nodename, "pid": 99999999}))
    assert library.read(path).state == "killed"
