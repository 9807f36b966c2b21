"""--multirun: every job runs, failures are seen, and a repeated sweep does only what is missing."""

from __future__ import annotations

import json
import subprocess
import sys

from toy import TOY

QUIET = [word for word in TOY if not word.startswith("approx.n=")] + ["logger.mode=disabled"]


def _states(tmp_path):
    return sorted(json.loads(file.read_text())["state"] for file in tmp_path.glob("runs/approx/*/status.json"))


def test_a_failing_job_neither_stops_nor_hides_the_others(plsh, tmp_path):
    sweep = ["approx", "--multirun", "approx.n=64,0,67", *QUIET]
    first = plsh(*sweep)
    assert first.code == 1
    assert "2 done, 0 skipped, 1 failed" in first.text
    assert "approx.n[0] = 0" in first.text
    assert _states(tmp_path) == ["done", "done"]
    (record,) = tmp_path.glob("runs/sweeps/*/sweep.json")
    assert [job["state"] for job in json.loads(record.read_text())["jobs"]] == ["done", "failed", "done"]
    again = plsh(*sweep)
    assert again.code == 1
    assert "0 done, 2 skipped, 1 failed" in again.text
    assert _states(tmp_path) == ["done", "done"]


def test_a_job_that_crashed_is_run_again(plsh, tmp_path, monkeypatch):
    from plsh_cli.experiments import approx

    right = approx.run

    def crash_at_67(config, run):
        if config.approx.n == [67]:
            raise RuntimeError("boom")
        return right(config, run)

    sweep = ["approx", "--multirun", "approx.n=64,67", *QUIET]
    monkeypatch.setattr(approx, "run", crash_at_67)
    first = plsh(*sweep)
    assert first.code == 1
    assert "1 done, 0 skipped, 1 failed" in first.text
    assert "RuntimeError: boom" in first.text
    assert _states(tmp_path) == ["done", "failed"]
    monkeypatch.setattr(approx, "run", right)
    second = plsh(*sweep)
    assert second.code == 0
    assert "1 done, 1 skipped, 0 failed" in second.text


def test_lists_and_two_keys_sweep_as_their_product(plsh, tmp_path):
    done = plsh(
        "approx",
        "-m",
        "approx.num_samples=[2],[2,4]",
        "seed=0,1",
        "approx.n=31",
        *(word for word in QUIET if not word.startswith("approx.num_samples")),
    )
    assert done.code == 0, done.text
    rows = [len(json.loads(file.read_text())["rows"]) for file in tmp_path.glob("runs/approx/*/result.json")]
    assert sorted(rows) == [1, 1, 2, 2]


def test_each_job_is_its_own_wandb_run(plsh, tmp_path):
    assert plsh("approx", "-m", "seed=0,1", *TOY).code == 0
    segments = [file.name for file in tmp_path.glob("runs/approx/*/wandb/offline-run-*")]
    assert len({name.rpartition("-")[2] for name in segments}) == 2


def test_wrong_keys_are_refused_before_any_job(plsh, tmp_path):
    done = plsh("approx", "-m", "approx.nn=3,4", *QUIET)
    assert done.code == 2
    assert "unknown key approx.nn" in done.text
    done = plsh("approx", "-m", "bias=draws,foo", *QUIET)
    assert done.code == 2
    assert "bias = foo" in done.text
    assert not (tmp_path / "runs").exists()


def test_jobs_run_side_by_side_through_hydras_joblib_launcher(tmp_path):
    words = ["approx", "-m", "approx.n=31,0,37", *QUIET, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = subprocess.run(
        [sys.executable, "-m", "plsh_cli", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "2 done, 0 skipped, 1 failed" in done.stdout
    assert _states(tmp_path) == ["done", "done"]


def test_a_sweep_in_parts_is_one_sweep(tmp_path, monkeypatch):
    from plsh_cli.experiments import sweep

    monkeypatch.chdir(tmp_path)
    parts = [["approx.n=31,37", "seed=0,1", *QUIET], ["approx.n=41", "seed=0,1", *QUIET]]
    done = sweep.sweep("approx", ["approx.n=31,37"], None, parts)
    assert [job.state for job in done.jobs] == ["done"] * 6
    assert [job.overrides for job in done.jobs] == [words for part in parts for words in sweep.expand(part)]
    (record,) = tmp_path.glob("runs/sweeps/*/sweep.json")
    assert record.parent == tmp_path / done.folder.path
    assert len(json.loads(record.read_text())["jobs"]) == 6


def test_expand_spells_jobs_as_hydra_does():
    from plsh_cli.experiments.sweep import expand

    words = ["approx.n=[1,2],[3]", "seed=range(0,2)", "name='a b'", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert expand(words) == [
        ["approx.n=[1,2]", "seed=0", "name='a b'"],
        ["approx.n=[1,2]", "seed=1", "name='a b'"],
        ["approx.n=[3]", "seed=0", "name='a b'"],
        ["approx.n=[3]", "seed=1", "name='a b'"],
    ]
