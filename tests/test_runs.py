"""`plsh runs` and `plsh show`: what is listed, what is shown, what is deleted and what never is."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import page_cases
import pytest
from toy import TOY

from plsh_cli import rundir
from plsh_cli.errors import UserError
from plsh_cli.report import listing
from plsh_cli.rundir import RunFolder

ROWS = [{"n": 3, "mass_error": 0.5, "mass_error_ci95": 0.25}]
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
def some(tmp_path):
    """runs/ with a run of every state, and a folder that is none; by state."""
    out = tmp_path / "runs"
    states = ("done", "failed", "killed", "running")
    found = {
        state: page_cases.run_folder(out, "weighing", ROWS, {}, name=f"is_{state}", number=place, state=state)
        for place, state in enumerate(states)
    }
    found["foreign"] = out / "weighing" / "holiday"
    found["foreign"].mkdir()
    (found["foreign"] / "beach.txt").write_text("sand", encoding="utf-8")
    return found


def test_runs_lists_newest_first_with_key_metrics_and_foreign_folders_apart(plsh, some):
    done = plsh("runs")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[2:4] for line in lines[1:5]] == [
        [f"is_{state}", state] for state in ("running", "killed", "failed", "done")
    ]
    assert "mass error 0.500 ±0.250" in lines[4]
    assert "ValueError: it did not work" in lines[3]
    assert lines[6] == "not runs of plsh, or damaged:"
    assert "holiday" in lines[7]


def test_the_first_column_is_enough_for_show(plsh, some):
    short = plsh("runs", "--state", "done").out.splitlines()[1].split()[0]
    done = plsh("show", short)
    assert done.code == 0
    assert str(some["done"].name) in done.out


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--state", "failed"], ["is_failed"]),
        (["--name", "is_k"], ["is_killed"]),
        (["--command", "weighing", "--state", "done"], ["is_done"]),
        (["--since", "2026-01-01T00:02"], ["is_running", "is_killed"]),
        (["--since", "30s"], []),
        (["--command", "bench attention"], []),
        (["--state", "foreign"], ["holiday"]),
    ],
)
def test_filters(plsh, some, words, names):
    done = plsh("runs", "--json", *words)
    assert done.code == 0
    assert [record["name"] for record in json.loads(done.out)] == names


def test_json_has_the_number_its_interval_and_the_size(plsh, some):
    (record,) = json.loads(plsh("runs", "--json", "--state", "done").out)
    assert (record["metric"], record["value"], record["ci95"]) == ("mass error", 0.5, 0.25)
    assert record["size"] == sum(file.stat().st_size for file in some["done"].rglob("*") if file.is_file())
    assert (record["command"], record["commit"], record["seconds"]) == ("weighing", page_cases.COMMIT, 42.0)


@pytest.mark.parametrize(
    ("since", "then"),
    [
        ("90m", "2026-03-04T03:36:07Z"),
        ("12h", "2026-03-03T17:06:07Z"),
        ("2d", "2026-03-02T05:06:07Z"),
        ("1.5w", "2026-02-21T17:06:07Z"),
        ("2026-02-03", "2026-02-03T00:00:00Z"),
        ("2026-02-03T04:05+02:00", "2026-02-03T02:05:00Z"),
    ],
)
def test_since_is_an_age_or_a_date(since, then):
    assert listing.moment(since, NOW) == then


def test_since_reaches_back_before_the_year_1000(plsh, some):
    assert listing.moment("400000d", NOW).startswith("0931-")
    for since in ("400000d", "0999-01-01"):
        assert "is_done" in plsh("runs", "--since", since).out


def test_a_run_whose_claim_is_held_is_running_whatever_its_process(plsh, some, tmp_path):
    """As in another container: its process cannot be seen from here."""
    folder = RunFolder(some["killed"])
    gone = {"host": rundir.process_facts()["host"], "pid": 2**22 + 1, "pid_started": 5}
    folder.set_status("running", **gone)
    assert folder.status()["state"] == "killed"
    with folder.claimed():
        assert folder.status()["state"] == "running"
        assert folder.status(mine=True)["state"] == "killed"
        done = plsh("runs", "--prune", "killed", "--yes")
        assert "nothing to delete" in done.text
        assert folder.path.is_dir()
    assert "deleted" in plsh("runs", "--prune", "killed", "--yes").text
    assert not folder.path.exists()


def test_a_claim_that_is_taken_after_the_list_keeps_the_run(some, tmp_path):
    from plsh_cli.experiments import pruning

    (record,) = [one for one in listing.scan(str(tmp_path / "runs")) if one.state == "failed"]
    with RunFolder(record.path).claimed():
        (pruned,) = pruning.delete([record], ["failed"], tmp_path / "runs")
    assert "still running" in pruned.kept
    assert record.path.is_dir()


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_process_that_has_ended_unasked_does_not_run(some):
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    folder = RunFolder(some["killed"])
    facts = rundir.process_facts() | {"pid": child.pid, "pid_started": rundir._pid_started(child.pid)}
    folder.set_status("running", **facts)
    assert folder.status()["state"] == "running"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    try:
        assert folder.status()["state"] == "killed"
    finally:
        child.stdin.close()
        child.wait()


def test_files_that_vanish_meanwhile_are_not_counted(some, monkeypatch):
    from plsh_cli.report import library

    before = library.read(some["done"]).size()
    (some["done"] / "more").write_bytes(b"x" * 1000)
    assert library.read(some["done"]).size() == before + 1000
    real = os.lstat

    def vanishing(path, *more, **named):
        if str(path).endswith("/more"):
            raise FileNotFoundError(path)
        return real(path, *more, **named)

    monkeypatch.setattr(os, "lstat", vanishing)
    assert library.read(some["done"]).size() == before


@pytest.mark.parametrize("words", ["runs --out", "show", "report", "report --out"])
@pytest.mark.parametrize("path", ["~nosuch/x", "x" * 300, "~nosuch/" + "y" * 300], ids=["no user", "long", "both"])
def test_paths_that_cannot_be_are_one_message(plsh, some, words, path):
    done = plsh(*words.split(), path)
    assert done.code == 2, done.text
    assert len(done.err.strip().splitlines()) == 1
    assert "unexpected" not in done.text


def test_a_study_whose_folder_cannot_be_is_one_message(plsh):
    done = plsh("reproduce", "--dry-run", "--out", "x" * 300)
    assert done.code == 2, done.text
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("since", ["", "2", "d2", "-2d", "yesterday", "99999999999w", "2026-13-01"])
def test_since_that_is_neither_is_refused(since):
    with pytest.raises(UserError, match="--since"):
        listing.moment(since, NOW)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs", "--state", "lost"], "--state = lost"),
        (["runs", "--command", "aprox"], "--command = aprox"),
        (["runs", "--prune", "done"], "--prune = done"),
        (["runs", "--prune", "failed,"], "--prune"),
        (["runs", "--prune", "running"], "--prune = running"),
        (["runs", "--yes"], "--yes goes with --prune"),
        (["runs", "--prune", "failed", "--json"], "--json"),
        (["runs", "--out", "nowhere"], "no folder of runs at nowhere"),
        (["show", "nothing"], "no run 'nothing'"),
        (["show", ""], "no run ''"),
        (["show", "is_done", "--out", "nowhere"], "no folder of runs at nowhere"),
    ],
)
def test_wrong_input_is_one_message(plsh, some, words, says):
    done = plsh(*words)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1
    assert all(folder.is_dir() for folder in some.values())


def test_a_part_of_several_names_lists_them(plsh, some):
    done = plsh("show", "is_")
    assert done.code == 2
    assert "fits 4 runs" in done.err
    assert all(some[state].name in done.err for state in ("done", "failed", "killed", "running"))


def test_prune_without_a_terminal_refuses_and_says_what_would_go(plsh, some):
    done = plsh("runs", "--prune", "failed")
    assert done.code == 2
    assert some["failed"].name in done.out
    assert "add --yes" in done.err
    assert some["failed"].is_dir()


@pytest.mark.parametrize(("answer", "left"), [("n\n", True), ("y\n", False), ("\n", True)])
def test_prune_asks_on_a_terminal(some, tmp_path, monkeypatch, answer, left):
    from typer.testing import CliRunner

    from plsh_cli.cli import app
    from plsh_cli.cli import runs as module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_asks", lambda: True)
    done = CliRunner().invoke(app, ["runs", "--prune", "failed"], input=answer)
    assert done.exit_code == 0
    assert "delete 1 run" in done.output
    assert some["failed"].is_dir() is left
    assert some["killed"].is_dir()


def test_prune_deletes_those_states_alone(plsh, some):
    done = plsh("runs", "--prune", "failed,killed", "--yes")
    assert done.code == 0
    assert {state for state, folder in some.items() if folder.is_dir()} == {"done", "running", "foreign"}
    assert "nothing to delete" in plsh("runs", "--prune", "failed,killed", "--yes").out


def test_prune_keeps_to_the_filters(plsh, some):
    plsh("runs", "--prune", "failed,killed", "--name", "killed", "--yes")
    assert some["failed"].is_dir()
    assert not some["killed"].exists()


def test_what_cannot_be_deleted_is_said_with_exit_code_1(plsh, some, monkeypatch):
    import shutil

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    done = plsh("runs", "--prune", "failed", "--yes")
    assert done.code == 1
    assert "cannot be deleted: Permission denied" in done.out


def test_prune_never_follows_links(plsh, some, tmp_path):
    outside = tmp_path / "outside"
    apart = page_cases.run_folder(outside, "weighing", ROWS, {}, number=50, state="failed")
    (some["failed"] / "model").symlink_to(outside, target_is_directory=True)
    (tmp_path / "runs" / "weighing" / "linked").symlink_to(apart, target_is_directory=True)
    (tmp_path / "runs" / "borrowed").symlink_to(outside / "weighing", target_is_directory=True)
    assert plsh("runs", "--prune", "failed", "--yes").code == 0
    assert not some["failed"].exists()
    assert (apart / "config.yaml").is_file()


def test_a_run_that_went_on_since_it_was_listed_is_kept(some, tmp_path):
    from plsh_cli.experiments import pruning

    out = tmp_path / "runs"
    records = pruning.choose(listing.scan(str(out)), ["failed"], out)
    assert [record.path for record in records] == [some["failed"]]
    RunFolder(some["failed"]).set_status("running", **rundir.process_facts())
    (kept,) = pruning.delete(records, ["failed"], out)
    assert kept.kept == "it is running now"
    assert some["failed"].is_dir()


def test_nothing_outside_of_the_folder_of_runs_is_deleted(some, tmp_path):
    from plsh_cli.experiments import pruning

    out = tmp_path / "runs"
    records = listing.scan(str(out))
    assert pruning.choose(records, ["failed"], tmp_path) == []
    assert all(one.kept for one in pruning.delete(records, ["failed"], tmp_path / "elsewhere"))
    assert some["failed"].is_dir()


def test_show_has_the_tables_that_were_printed_and_what_differs(plsh, only_run):
    assert plsh("approx", *TOY, "logger.mode=disabled").code == 0
    run = only_run()
    done = plsh("show", run.name)
    assert done.code == 0, done.text
    assert f"command     plsh approx {TOY[0]}" in done.out
    assert "approx.num_samples: [10, 20, 40] -> [2, 4]" in done.out
    assert "bias.sigma: null -> [2.0]" in done.out
    assert "approx.heads" not in done.out, "it is the default"
    row = json.loads((run / "result.json").read_text(encoding="utf-8"))["rows"][-1]
    assert f"{row['spectral_error']:.3g}"[:4] in done.out
    assert "relative spectral error" in done.out
    assert f"  runs/approx/{run.name}/figures/error.svg\n" in done.out


def test_show_as_json(plsh, only_run):
    plsh("approx", *TOY, "logger.mode=disabled")
    run = only_run()
    record = json.loads(plsh("show", str(run), "--json").out)
    assert record["rows"] == json.loads((run / "result.json").read_text(encoding="utf-8"))["rows"]
    assert record["differences"]["approx.seeds"] == [5, 2]
    assert record["command_line"].startswith("plsh approx approx.n=64")
    assert record["environment"]["cores"] == os.cpu_count()


def test_show_draws_the_loss_of_steps(plsh, some):
    steps = [
        {"step": step, "loss": 4.0 - step / 100, "eval_loss": 3.5 if step % 50 == 0 else None} for step in range(200)
    ]
    text = "".join(json.dumps(one) + "\n" for one in steps) + '{"step": 200, "lo'
    (some["killed"] / "metrics.jsonl").write_text(text, encoding="utf-8")
    done = plsh("show", "is_killed")
    assert done.code == 0
    assert "training loss (nats per token): 4.00 to 2.01, 200 points" in done.out
    assert "held-out loss (nats per token): 3.50 to 3.50, 4 points" in done.out
    assert len(json.loads(plsh("show", "is_killed", "--json").out)["metrics"]["loss"]) == 200


def test_show_of_a_failed_run_has_the_end_of_its_error(plsh, some):
    (some["failed"] / "error.txt").write_text(
        "".join(f"line {n}\n" for n in range(9)) + "ValueError: no\n", encoding="utf-8"
    )
    done = plsh("show", "is_failed")
    assert done.code == 0
    assert "ValueError: no" in done.out
    assert "line 8" in done.out
    assert "line 1\n" not in done.out


@pytest.mark.parametrize("name", ["config.yaml", "status.json", "result.json", "env.json", "git.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b'{"a": ' * 50_000, b'{"packages": 3}'])
def test_damaged_files_are_shown_and_listed_without_an_error(plsh, some, name, content):
    (some["done"] / name).write_bytes(content)
    assert plsh("runs").code == 0
    assert plsh("runs", "--json").code == 0
    assert plsh("show", str(some["done"])).code == 0
    assert plsh("show", str(some["done"]), "--json").code == 0


def test_a_result_without_what_the_tables_need_says_so(plsh, tmp_path):
    folder = page_cases.run_folder(tmp_path / "runs", "approx", [{"n": 3}], {})
    done = plsh("show", str(folder))
    assert done.code == 0
    assert "no tables: result.json does not have what they need" in done.out
