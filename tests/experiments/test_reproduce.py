"""`plsh reproduce`: it plans, skips what is done, goes on after a failure and after a kill, and ends with the page."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time

import pytest
import yaml
from toy import TOY
from training_toy import start, texts, words

from plsh_cli import rundir
from plsh_cli.config import compose, scales
from plsh_cli.config.schema import SCHEMAS
from plsh_cli.experiments import reproduce, reproduce_plan
from plsh_cli.experiments.reproduce_plan import Order

QUIET = "logger.mode=disabled"
APPROX = shlex.join(["approx", *TOY])
SCALES = ("smoke", "cpu", "paper")
#: Commands that come with another part of the program.
ELSEWHERE = {"finetune", "compare"} - set(SCHEMAS)


def step(name, run, section="matrix", minutes=0.1, **more):
    return {"name": name, "section": section, "run": run, "minutes": minutes, **more}


@pytest.fixture
def scale(tmp_path):
    """Writes mine/reproduce/toy.yaml; the words that use it."""

    def write(*steps, text=None):
        folder = tmp_path / "mine" / "reproduce"
        folder.mkdir(parents=True, exist_ok=True)
        plain = yaml.safe_dump({"about": "toy steps", "steps": list(steps)})
        (folder / "toy.yaml").write_text(plain if text is None else text, encoding="utf-8")
        return ["reproduce", "--scale", "toy", "--config-dir", str(tmp_path / "mine"), QUIET]

    return write


def states(tmp_path):
    return sorted(json.loads(file.read_text())["state"] for file in tmp_path.glob("runs/*/*/status.json"))


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def wait_for(found, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture
def begun(tmp_path):
    """Starts `plsh` in a process of its own; what still runs at the end of the test is ended."""
    processes = []

    def begin(words):
        processes.append(start(words, tmp_path))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_it_runs_every_step_keeps_the_logs_and_ends_with_the_page(plsh, scale, tmp_path):
    order = scale(step("first", APPROX), step("second", f"{APPROX} seed=1"))
    done = plsh(*order)
    assert done.code == 0, done.text
    assert "2 steps, 0 done already" in done.out
    assert "2 steps: 2 done, 0 done before, 0 failed" in done.out
    assert states(tmp_path) == ["done", "done"]
    assert done.out.splitlines()[-1] == "page: runs/report.html"
    page = (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    for run in tmp_path.glob("runs/approx/*"):
        assert run.name in page
    log = (tmp_path / "runs" / "reproduce" / "toy" / "first.log").read_text(encoding="utf-8")
    assert f"plsh {APPROX}" in log
    assert "run: runs/approx/" in log
    told = json.loads((tmp_path / "runs" / "reproduce" / "toy" / "steps.json").read_text(encoding="utf-8"))
    assert [(name, one["state"], one["code"]) for name, one in told.items()] == [
        ("first", "done", 0),
        ("second", "done", 0),
    ]
    again = plsh(*order)
    assert again.code == 0
    assert "2 steps, 2 done already, nothing left to run" in again.out
    assert "0 done, 2 done before" in again.out
    assert states(tmp_path) == ["done", "done"]
    listed = json.loads(plsh("runs", "--json").out)
    assert {record["command"] for record in listed} == {"approx"}, "the logs are no runs"


def test_what_was_run_by_hand_is_not_run_again(plsh, scale, tmp_path):
    assert plsh("approx", *TOY, QUIET, "name=by_hand").code == 0
    done = plsh(*scale(step("first", APPROX)), "--dry-run")
    assert "1 step, 1 done already" in done.out
    assert "by_hand" in done.out


def test_a_dry_run_writes_nothing(plsh, scale, tmp_path):
    done = plsh(*scale(step("first", APPROX, needs="patience"), step("second", APPROX, minutes=None)), "--dry-run")
    assert done.code == 0
    assert f"plsh {APPROX} {QUIET}" in done.out
    assert "first (Matrix approximation), about 0.1 min, needs patience" in done.out
    assert "and 1 step whose time depends on the machine" in done.out
    assert not (tmp_path / "runs").exists()


def test_a_failed_step_stops_no_other_and_is_said_at_the_end(plsh, scale, tmp_path):
    order = scale(
        step("wrong", "approx approx.n=0"),
        step("absent", "fly --high"),
        step("unmeasurable", "approx device=cuda:7 approx.n=64"),
        step("right", APPROX),
    )
    done = plsh(*order)
    assert done.code == 1
    assert "4 steps: 1 done, 0 done before, 3 failed" in done.out
    end = done.out[done.out.index("4 steps: 1 done") :]
    assert "failed: wrong: cannot run: approx.n[0] = 0" in end
    assert "failed: absent: cannot run: plsh fly: this version has no such command" in end
    assert "failed: unmeasurable: exit code 2" in end
    assert "page: runs/report.html" in end
    assert states(tmp_path) == ["done"]


def test_a_report_that_cannot_be_written_is_a_failure(plsh, scale, tmp_path):
    (tmp_path / "runs" / "report.html").mkdir(parents=True)
    done = plsh(*scale(step("first", APPROX)))
    assert done.code == 1
    assert "the report was not written" in done.out
    assert states(tmp_path) == ["done"]


def test_a_sweep_is_done_when_all_its_jobs_are(plsh, scale, tmp_path):
    order = scale(step("sweep", f"{shlex.join(['approx', *TOY])} seed=0,1 --multirun"))
    assert plsh("approx", *TOY, QUIET, "seed=1").code == 0
    assert "to run: 1 of its runs are there" in plsh(*order, "--dry-run").out
    done = plsh(*order)
    assert done.code == 0, done.text
    assert states(tmp_path) == ["done", "done"]
    again = plsh(*order, "--dry-run")
    assert "1 step, 1 done already" in again.out
    assert "runs/sweeps/" in again.out
    (run,) = [file.parent for file in tmp_path.glob("runs/approx/*/config.yaml") if "seed: 1" in file.read_text()]
    (run / "result.json").unlink()
    assert "0 done already" in plsh(*order, "--dry-run").out


def test_a_run_whose_result_is_gone_is_not_done(plsh, scale, tmp_path):
    order = scale(step("first", APPROX))
    assert plsh(*order).code == 0
    assert "1 done already" in plsh(*order, "--dry-run").out
    (result,) = tmp_path.glob("runs/approx/*/result.json")
    result.write_bytes(result.read_bytes()[:100])
    assert "0 done already" in plsh(*order, "--dry-run").out
    done = plsh(*order)
    assert "1 done, 0 done before" in done.out, done.text


def test_only_some_steps_and_another_folder(plsh, scale, tmp_path):
    order = scale(step("first", APPROX), step("second", f"{APPROX} seed=1"), step("third", f"{APPROX} seed=2"))
    done = plsh(*order, "--only", "third,first", "--out", "my runs", "seed=5")
    assert done.code == 0, done.text
    configs = [file.read_text(encoding="utf-8") for file in tmp_path.glob("my runs/approx/*/config.yaml")]
    assert sorted(line for text in configs for line in text.splitlines() if line.startswith("seed:")) == [
        "seed: 2",
        "seed: 5",
    ]
    assert (tmp_path / "my runs" / "report.html").is_file()


@pytest.mark.parametrize(("by", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_step_is_ended_in_order(scale, begun, tmp_path, by, code):
    order = scale(step("long", "approx approx.n=2048 approx.seeds=5000"), step("next", APPROX))
    process = begun(order)
    log = tmp_path / "runs" / "reproduce" / "toy" / "long.log"
    wait_for(lambda: log.is_file() and "run: " in log.read_text(encoding="utf-8"))
    os.kill(process.pid, by)
    printed = process.communicate(timeout=300)[0]
    assert process.returncode == code
    assert "2/2" not in printed
    assert "stopped; the same command does what is missing" in printed
    (run,) = (file.parent for file in tmp_path.glob("runs/approx/*/status.json"))
    assert json.loads((run / "status.json").read_text())["reason"] == "terminated (SIGTERM)"


def test_a_step_does_not_outlive_it_and_goes_on_when_it_is_repeated(plsh, scale, begun, tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))
    corpus = texts(tmp_path / "texts")
    order = scale(step("first", APPROX), step("train", shlex.join(words(corpus, 4000)[:-1]), "scratch"))
    assert plsh("approx", *TOY, QUIET).code == 0
    first = begun(order)
    wait_for(lambda: list(tmp_path.glob("runs/train/*/checkpoints/checkpoint-*")))
    assert "first: done before" in kill(first)
    (run,) = (file.parent for file in tmp_path.glob("runs/train/*/status.json"))
    wait_for(lambda: json.loads((run / "status.json").read_text())["state"] == "killed")
    assert json.loads((run / "status.json").read_text())["reason"] == "terminated (SIGTERM)", "in order"
    assert f"goes on: {run.relative_to(tmp_path)}" in plsh(*order, "--dry-run").out
    begun(order)
    log = tmp_path / "runs" / "reproduce" / "toy" / "train.log"
    wait_for(lambda: "(resumed)" in log.read_text(encoding="utf-8"))
    assert len(list(tmp_path.glob("runs/train/*/status.json"))) == 1


def test_two_at_once_in_one_folder_are_refused(plsh, scale, tmp_path):
    from filelock import FileLock

    order = scale(step("first", APPROX))
    (tmp_path / "runs" / "reproduce").mkdir(parents=True)
    with FileLock(tmp_path / "runs" / "reproduce" / ".lock"):
        done = plsh(*order)
    assert done.code == 2
    assert "another plsh reproduce works in runs" in done.err


def test_a_step_that_another_process_is_at_is_not_begun_twice(plsh, scale, tmp_path):
    config = compose.compose("approx", [*TOY, QUIET])
    folder = rundir.RunFolder.create(
        "runs", "approx", "toy", lambda new: new.write_text("config.yaml", "command: approx\n")
    )
    folder.set_status("running", command="approx", config_hash=compose.config_hash(config), **rundir.process_facts())
    done = plsh(*scale(step("first", APPROX)))
    assert done.code == 1
    assert "another process is at it already" in done.out
    assert len(list(tmp_path.glob("runs/approx/*"))) == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--scale", "huge"], "--scale = huge"),
        (["--scale", "../experiment/miniature"], "--scale = ../experiment/miniature"),
        (["--scale", "smoke", "--only", "matrix,moon"], "--only = moon"),
        (["--scale", "smoke", "approx.n=3"], "of a whole study only seed, device, logger"),
        (["--scale", "smoke", "fast"], "fast: of a whole study"),
        (["--scale", "smoke", "--config-dir", "nowhere"], "--config-dir = nowhere"),
    ],
)
def test_wrong_input_is_one_message(plsh, tmp_path, more, says):
    done = plsh("reproduce", *more)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("about: x\nsteps: []\n", "steps"),
        ("about: x\nsteps: [{name: a, section: matrix}]\n", "steps.0.run"),
        ("about: x\nsteps: [{name: a, section: m, run: approx, minutes: -1}]\n", "steps.0.minutes"),
        ("about: x\nsteps: [{name: ../a, section: m, run: approx, minutes: 1}]\n", "steps.0.name"),
        ("about: x\nsteps: [{name: a, section: m, run: approx, minutes: 1, runs: b}]\n", "runs"),
        ("about: x\nsteps:\n" + 2 * "- {name: a, section: m, run: approx, minutes: 1}\n", "two steps"),
        ("about: [\n", "cannot be read"),
        ("3", "toy.yaml"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_message(plsh, scale, text, says):
    done = plsh(*scale(text=text))
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "run", ["approx --sam 3", "approx 'unclosed", "approx seed=0 seed=1", "bench", "fetch moon", "' '"]
)
def test_a_wrong_line_cannot_run_and_says_why(scale, tmp_path, plsh, run):
    done = plsh(*scale(step("first", run)), "--dry-run")
    assert done.code == 0
    assert "cannot run: " in done.out


@pytest.mark.parametrize("name", SCALES)
def test_every_step_of_the_programs_own_scales_can_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order = Order(name, None, "runs", None, [])
    steps = reproduce_plan.plan(order, reproduce_plan.scale_of(order))
    refused = {one.words[0] for one in steps if one.state == reproduce_plan.REFUSED}
    assert refused <= ELSEWHERE, [one.note for one in steps if one.state == reproduce_plan.REFUSED]
    assert all(reproduce_plan.title(one.step) != one.step.section for one in steps), "sections of the report"
    assert len(reproduce.describe(order, scales.load(name), steps)) == 2 + 3 * len(steps) + 1


def test_the_scales_keep_to_their_time():
    assert scales.names() == sorted(SCALES)
    limits = {"smoke": 5, "cpu": 180}
    for name, limit in limits.items():
        assert sum(step.minutes for step in scales.load(name).steps) <= limit
