"""Run folders: exclusive, whole, honest about how the run ended."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from plsh_cli import rundir
from plsh_cli.errors import MessageError, UserError
from plsh_cli.rundir import RunFolder


def _nothing(folder: RunFolder) -> None:
    folder.write_text("config.yaml", "command: approx\n")


def test_folders_made_in_the_same_second_never_meet(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: RunFolder.create(str(tmp_path), "approx", "same", _nothing).path, range(40)))
    assert len(set(paths)) == 40
    assert all(path.name.split("-")[1] == "same" for path in paths)


def test_a_folder_whose_filling_fails_leaves_nothing(tmp_path):
    def full(folder: RunFolder) -> None:
        folder.write_text("config.yaml", "x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UserError, match="No space left") as caught:
        RunFolder.create(str(tmp_path), "approx", "full", full)
    assert caught.value.exit_code == 2
    assert list((tmp_path / "approx").iterdir()) == []


def test_a_file_in_place_of_the_runs_folder_is_one_message(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match=r"out = .*must be a folder that can be written"):
        RunFolder.create(str(tmp_path / "runs"), "approx", "x", _nothing)


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text("result.json", "old")

    def half(handle):
        handle.write(b"ne")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        folder.write("result.json", half)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("result.json", "old")]


def test_a_process_that_vanished_is_seen_as_killed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    folder = RunFolder(tmp_path)
    folder.set_status("running", **rundir.process_facts())
    assert folder.status()["state"] == "running"
    folder.set_status("running", **{**rundir.process_facts(), "pid": child.pid})
    assert folder.status()["state"] == "killed"
    folder.set_status("running", **{**rundir.process_facts(), "pid_started": 1})
    assert folder.status()["state"] == "killed", "the pid lives, but it is another process"


def test_a_full_disk_still_takes_the_last_status(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.set_status("running", **rundir.process_facts())

    def full(self, name, writer):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunFolder, "write", full)
    folder.set_status("failed", "disk full")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"


def test_find_takes_a_path_a_name_or_a_unique_part(tmp_path):
    runs = [RunFolder.create(str(tmp_path), command, "toy", _nothing) for command in ("approx", "approx", "attn-error")]
    assert rundir.find(str(runs[0].path), str(tmp_path)) == runs[0]
    assert rundir.find(runs[1].path.name[-6:], str(tmp_path)) == runs[1]
    with pytest.raises(MessageError, match="fits 3 runs"):
        rundir.find("toy", str(tmp_path))
    with pytest.raises(MessageError, match="no run 'absent'"):
        rundir.find("absent", str(tmp_path))


def test_json_is_strict_and_takes_numpy(tmp_path):
    value = {"a": np.float64(1.5), "b": float("nan"), "c": [float("inf"), np.int64(3)], "d": True}
    RunFolder(tmp_path).write_json("x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1.5, "b": None, "c": [None, 3], "d": True}


def test_finished_finds_only_done_runs_with_the_hash(tmp_path):
    folder = RunFolder.create(str(tmp_path), "approx", "x", _nothing)
    folder.set_status("running", config_hash="abc", **rundir.process_facts())
    assert rundir.finished(str(tmp_path), "approx", "abc") is None
    folder.set_status("done")
    assert rundir.finished(str(tmp_path), "approx", "abc") is None, "its result is not there"
    (folder.path / "result.json").write_text('{"rows": [')
    assert rundir.finished(str(tmp_path), "approx", "abc") is None, "its result is damaged"
    folder.write_json("result.json", {"rows": []})
    assert rundir.finished(str(tmp_path), "approx", "abc") == folder
    assert rundir.finished(str(tmp_path), "approx", "abd") is None
