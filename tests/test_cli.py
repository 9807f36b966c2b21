"""The command line from outside: help, listings, dry runs, interrupts, reruns."""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from toy import TOY

from plsh_cli.rundir import RunFolder

QUIET = [*TOY, "logger.mode=disabled"]
FILES = {
    "config.yaml",
    "overrides.txt",
    "env.json",
    "git.json",
    "status.json",
    "metrics.jsonl",
    "result.json",
    "rows.csv",
    "figures",
}


def test_help_imports_nothing_heavy(tmp_path):
    code = (
        "import sys, plsh_cli.cli\n"
        "heavy = {'torch', 'numpy', 'hydra', 'omegaconf', 'wandb', 'transformers', 'matplotlib', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_leaves_a_complete_folder(plsh, only_run):
    done = plsh("approx", "--n", "64", "--sigma", "2", "--s", "2,4", "--seeds", "2", "logger.mode=disabled")
    assert done.code == 0, done.text
    assert (
        "same as: plsh approx 'approx.num_samples=[2,4]' 'approx.n=[64]' 'bias.sigma=[2]' approx.seeds=2" in done.text
    )
    run = only_run()
    assert {file.name for file in run.iterdir()} >= FILES
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "done"
    assert status["reason"] is None
    result = json.loads((run / "result.json").read_text())
    assert [(row["n"], row["sigma"], row["num_samples"], row["sampler"]) for row in result["rows"]] == [
        (64, 2.0, 2, "iid"),
        (64, 2.0, 4, "iid"),
    ]
    assert len((run / "rows.csv").read_text().splitlines()) == 3
    assert {file.suffix for file in (run / "figures").iterdir()} == {".png", ".svg"}
    git = json.loads((run / "git.json").read_text())
    assert git["of"] in ("package source", "working folder", None)


def test_a_dry_run_writes_nothing(plsh, tmp_path):
    done = plsh("approx", *QUIET, "--dry-run")
    assert done.code == 0
    assert "num_samples" in done.out
    assert list(tmp_path.iterdir()) == []


def test_config_prints_what_composes_again(plsh):
    done = plsh("config", "approx", "approx.heads=12")
    assert done.code == 0
    assert "heads: 12" in done.out


@pytest.mark.parametrize("words", [["bench", "matrix"], ["bench-matrix"], ["bench_matrix"]])
def test_config_takes_every_spelling_of_a_command(plsh, words):
    assert "command: bench_matrix" in plsh("config", *words).out


def test_ls_names_every_command_group_and_experiment(plsh):
    text = plsh("ls").text
    listed = (
        "plsh approx",
        "plsh attn-error",
        "plsh bench matrix",
        "bias:",
        "paper_matrix",
        "alibi, log, power, table",
    )
    for word in listed:
        assert word in text


def test_doctor_reports_what_a_bug_report_needs(plsh):
    text = plsh("doctor").text
    for word in ("python", "torch", "cores", "memory", "GiB", "devices", "cpu", "W&B key", "asset cache", "triton"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["approx", "--s", "10,", "20"], "--s = 10,"),
        (["approx", "--s", "10", "20"], "stray argument '20'"),
        (["approx", "--seeds", "3", "approx.seeds=4"], "given twice"),
        (["approx", "--n", "1e9", "approx.norm=dense"], "approx.n"),
        (["rerun", "absent"], "no run 'absent'"),
        (["config", "nothing"], "approx"),
    ],
)
def test_bad_input_is_one_message_and_writes_nothing(plsh, tmp_path, words, message):
    done = plsh(*words)
    assert done.code == 2
    assert message in done.err
    assert done.err.startswith("plsh: ")
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_dashed_keys_are_explained(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "plsh_cli", "approx", "--approx.n=3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert "approx.n=3" in done.stderr


def test_a_failing_experiment_says_so(plsh, only_run, monkeypatch):
    from plsh_cli.experiments import approx

    def crash(config, run):
        raise RuntimeError("boom")

    monkeypatch.setattr(approx, "run", crash)
    done = plsh("approx", *QUIET)
    assert done.code == 1
    assert "RuntimeError: boom" in done.err
    assert "Traceback" not in done.err
    run = only_run()
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    assert "boom" in (run / "error.txt").read_text()


def test_a_disk_that_fills_up_during_the_run(plsh, only_run, monkeypatch):
    import errno

    from plsh_cli.experiments import approx

    def full(config, run):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(approx, "run", full)
    done = plsh("approx", *QUIET)
    assert done.code == 1
    assert "No space left" in done.err
    assert json.loads((only_run() / "status.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(
    ("number", "code", "state"),
    [
        (signal.SIGINT, 130, "interrupted from the keyboard (SIGINT)"),
        (signal.SIGTERM, 143, "terminated (SIGTERM)"),
        (signal.SIGKILL, -9, "kill -9"),
    ],
)
def test_signals_leave_a_status(tmp_path, number, code, state):
    command = [sys.executable, "-m", "plsh_cli", "approx", "--n", "4096", "--seeds", "500", "logger.mode=disabled"]

    def heard() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts background jobs with it ignored

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, preexec_fn=heard, **pipes)
    deadline = time.monotonic() + 60
    while (
        not list(tmp_path.glob("runs/approx/*/metrics.jsonl"))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "Traceback" not in err
    (config,) = tmp_path.glob("runs/approx/*/config.yaml")
    status = RunFolder(config.parent).status()
    assert status["state"] == "killed"
    assert state in status["reason"]


def test_rerun_is_equal_to_the_bit_and_sees_a_difference(plsh, only_run):
    assert plsh("approx", *QUIET).code == 0
    run = only_run()
    done = plsh("rerun", str(run))
    assert done.code == 0, done.text
    assert "rows are equal to the bit" in done.text
    result = json.loads((run / "result.json").read_text())
    result["rows"][1]["max_error"] *= 1 + 1e-9
    (run / "result.json").write_text(json.dumps(result))
    done = plsh("rerun", str(run))
    assert done.code == 0
    assert "largest relative difference 1e-09 (row 1, max_error)" in done.text


def test_rerun_of_an_unfinished_run_repeats_it_and_compares_nothing(plsh, only_run):
    assert plsh("approx", *QUIET).code == 0
    run = RunFolder(only_run())
    run.set_status("failed", "something")
    done = plsh("rerun", str(run.path))
    assert done.code == 0
    assert "nothing to compare with" in done.text
    assert "state: failed" in done.text


@pytest.mark.parametrize("value", ["1e400", "NaN", "7"])
def test_rerun_never_calls_different_rows_equal(plsh, only_run, value):
    assert plsh("approx", *QUIET).code == 0
    run = only_run()
    text = (run / "result.json").read_text()
    found = re.search(r'"max_error": ([0-9.]+)', text)
    (run / "result.json").write_text(text.replace(found[0], f'"max_error": {value}', 1))
    done = plsh("rerun", str(run))
    assert done.code == 1
    assert "equal to the bit" not in done.text


@pytest.mark.parametrize("text", ["", "command: [a]\n", "command: approx\n", "a: [\n"])
def test_rerun_of_a_foreign_folder_is_one_message(plsh, tmp_path, text):
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "config.yaml").write_text(text)
    (folder / "overrides.txt").write_text("")
    done = plsh("rerun", str(folder))
    assert done.code == 2
    assert "foreign" in done.err
    assert done.err.count("\n") == 1


def test_a_closed_pipe_does_not_end_the_run(tmp_path):
    command = f"{sys.executable} -m plsh_cli approx {' '.join(map(repr, QUIET))} | head -1"
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True)
    (status,) = tmp_path.glob("runs/approx/*/status.json")
    assert json.loads(status.read_text())["state"] == "done"


def test_names_with_markup_and_numbers_are_folders_like_any_other(plsh, tmp_path):
    for out in ("a[/b]c", "2024", "null", "~x"):
        assert plsh("approx", *QUIET, "--out", out).code == 0
        assert list(tmp_path.glob(f"{glob.escape(out)}/approx/*/result.json"))


def test_a_table_is_part_of_the_configuration(plsh, tmp_path):
    table = tmp_path / "phi.txt"
    words = ["approx", "-m", "approx.n=3", "approx.num_samples=[2]", "approx.seeds=2", "logger.mode=disabled",
             "bias.kernel=table", "bias.pitch=integer", "bias.table=phi.txt", "seed=0,1"]  # fmt: skip
    table.write_text("1, 0.5, 0.3\n")
    assert "2 done" in plsh(*words).text
    assert "2 skipped" in plsh(*words).text
    table.write_text("1 0.6 0.3")
    assert "2 done" in plsh(*words).text
    run = next(iter(sorted(tmp_path.glob("runs/approx/*"))))
    table.unlink()
    assert "equal to the bit" in plsh("rerun", str(run)).text


@pytest.mark.parametrize("text", ["", "1 x", "1 0.9 0.85 0.1", "0.9 0.5 0.1 0"])
def test_a_table_that_is_none_is_one_message(plsh, tmp_path, text):
    (tmp_path / "phi.txt").write_text(text)
    done = plsh("approx", *(word for word in QUIET if "sigma" not in word and "approx.n=" not in word), "approx.n=4",
                "bias.kernel=table", "bias.pitch=integer", "bias.table=phi.txt")  # fmt: skip
    assert done.code == 2
    assert "bias.table" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("words", [["runs", "--json"], ["runs"], ["report", "--format", "csv", "--to", "/dev/stdout"]])
def test_an_output_that_has_no_room_is_one_message(tmp_path, words):
    """The system's own limit on the size of a file stands for a full disk."""
    for number in range(9):
        run = tmp_path / "runs" / "toy" / f"{number}-{'x' * 200}"
        run.mkdir(parents=True)
        (run / "status.json").write_text('{"state": "done"}')
        (run / "config.yaml").write_text("command: toy")
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)); from plsh_cli.__main__ import main; "
    )
    code += f"import sys; sys.argv = ['plsh', *{words!r}]; main()"
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
        )
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "cannot be written" in done.stderr
    assert "unexpected" not in done.stderr


def test_doctor_prints_brackets_as_they_are(plsh, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "triton" else found(name, *rest)
    )
    assert "plsh-cli[triton]" in plsh("doctor").text
