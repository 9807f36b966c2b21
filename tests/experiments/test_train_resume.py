"""Runs that are stopped go on as if they had not been: losses, weights and rows to the bit."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from training_toy import own_cache, records, runs, same, start, stopped, texts, words

STEPS = 12
#: The toy text has 23 steps to an epoch at batch 5; at this one it has 5, so that step 5 is an epoch's end.
BY_EPOCH = ["train.batch=20"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return texts(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return own_cache(tmp_path_factory.mktemp("cache") / "cache")


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", shared_cache)


@pytest.mark.parametrize("settings", [[], BY_EPOCH, ["train.accumulate=3"], ["bias=original"]], ids=str)
def test_a_resumed_run_is_the_uninterrupted_one(plsh, tmp_path, corpus, settings):
    keep = ["train.keep=9", *settings]
    assert plsh(*words(corpus, STEPS, *keep)).code == 0
    (whole,) = runs(tmp_path)
    if settings == BY_EPOCH:
        assert records(whole)[4]["epoch"] == 1.0
        assert records(whole)[9]["epoch"] == 2.0
    for step in (5, 10):
        copy = stopped(whole, tmp_path, step)
        done = plsh("train", "--resume", str(copy))
        assert done.code == 0, done.text
        assert f"going on after step {step}" in done.text
        same(whole, copy)
        assert json.loads((copy / "status.json").read_text())["state"] == "done"
    assert len(runs(tmp_path)) == 3, "a resumed run stays in its folder"


def test_kill_9_and_resume_auto(plsh, tmp_path, corpus):
    (tmp_path / "whole").mkdir()
    command = words(corpus, 40, "train.save_every=5")
    assert plsh(*command, "out=whole").code == 0
    process = start(command, tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/train/*/checkpoints/checkpoint-10/complete.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (run,) = runs(tmp_path)
    assert not (run / "result.json").exists()
    done = plsh(*command, "resume=auto")
    assert done.code == 0, done.text
    assert "(resumed)" in done.text
    assert runs(tmp_path) == [run]
    (whole,) = (path.parent for path in tmp_path.glob("whole/train/*/config.yaml"))
    same(whole, run)
    assert [record["step"] for record in records(run)] == list(range(1, 41))
    again = plsh(*command, "resume=auto")
    assert "no unfinished run of this configuration: a new one starts" in again.text


def test_sigterm_says_killed_and_the_run_goes_on(plsh, tmp_path, corpus):
    command = words(corpus, 400)
    process = start(command, tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/train/*/checkpoints/checkpoint-5/complete.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    (run,) = runs(tmp_path)
    assert json.loads((run / "status.json").read_text())["state"] == "killed"
    done = plsh("train", "--resume", run.name, "train.steps=30", "resume_force=true")
    assert done.code == 0, done.text
    assert [record["step"] for record in records(run)][-1] == 30
    done = plsh("rerun", run.name)
    assert done.code == 2
    assert "continued under another configuration" in done.text
    assert "config-1.yaml" in done.text


@pytest.mark.parametrize("damage", ["no marker", "a short file", "a missing file"])
def test_a_half_written_checkpoint_is_skipped(plsh, tmp_path, corpus, damage):
    assert plsh(*words(corpus, STEPS, "train.keep=9")).code == 0
    (whole,) = runs(tmp_path)
    copy = stopped(whole, tmp_path, 10)
    broken = copy / "checkpoints" / "checkpoint-10"
    if damage == "no marker":
        (broken / "complete.json").unlink()
    elif damage == "a short file":
        with open(broken / "optimizer.pt", "r+b") as file:
            file.truncate(100)
    else:
        (broken / "model.safetensors").unlink()
    done = plsh("train", "--resume", str(copy))
    assert done.code == 0, done.text
    assert "checkpoint-10 is skipped" in done.text
    assert "going on after step 5" in done.text
    same(whole, copy)


def test_a_run_without_any_checkpoint_starts_again_in_its_folder(plsh, tmp_path, corpus):
    assert plsh(*words(corpus, STEPS, "train.keep=9")).code == 0
    (whole,) = runs(tmp_path)
    copy = stopped(whole, tmp_path, 0)
    done = plsh("train", "--resume", str(copy))
    assert "no whole checkpoint" in done.text
    same(whole, copy)


def test_a_changed_configuration_is_refused_with_the_difference(plsh, tmp_path, corpus):
    assert plsh(*words(corpus, STEPS, "train.keep=9")).code == 0
    copy = stopped(runs(tmp_path)[0], tmp_path, 5)
    done = plsh("train", "--resume", str(copy), "train.learning_rate=0.001", "bias.num_samples=20")
    assert done.code == 2
    assert "train.learning_rate: 0.003 -> 0.001" in done.text
    assert "bias.num_samples: 10 -> 20" in done.text
    assert "resume_force=true" in done.text
    assert json.loads((copy / "status.json").read_text())["state"] == "killed"
    heads = plsh("train", "--resume", str(copy), "model.architecture.num_attention_heads=4")
    assert "model.architecture.num_attention_heads: 2 -> 4" in heads.text
    done = plsh("train", "--resume", str(copy), "train.learning_rate=0.001", "resume_force=true")
    assert done.code == 0, done.text
    assert "resumed with train.learning_rate: 0.003 -> 0.001" in done.text
    first, then = records(copy)[4]["learning_rate"], records(copy)[5]["learning_rate"]
    assert then / first == pytest.approx((12 - 5) / (12 - 4) / 3), "a third of the learning rate, one step further on"
    assert "learning_rate: 0.003" in (copy / "config-1.yaml").read_text()
    assert "learning_rate: 0.001" in (copy / "config.yaml").read_text()


def test_more_steps_say_what_happens_to_the_schedule(plsh, tmp_path, corpus):
    assert plsh(*words(corpus, 10)).code == 0
    (run,) = runs(tmp_path)
    finished = plsh("train", "--resume", run.name)
    assert finished.code == 2
    assert "is finished" in finished.text
    done = plsh("train", "--resume", run.name, "train.steps=20", "resume_force=true")
    assert done.code == 0, done.text
    assert "the linear schedule is laid over 20 steps instead of 10" in done.text
    assert [record["step"] for record in records(run)] == list(range(1, 21))
    # 2 of 20 steps of warm-up, then a line to 0 after step 20; the learning rate of step 11 is that after 10 steps.
    assert records(run)[10]["learning_rate"] == pytest.approx(0.003 * (20 - 10) / 18)


def test_a_run_that_is_not_there_or_still_runs(plsh, tmp_path, corpus):
    assert plsh(*words(corpus, 1)).code == 0
    (run,) = runs(tmp_path)
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(
        json.dumps({**status, "state": "running", "pid": os.getpid(), "pid_started": None})
    )
    done = plsh("train", "--resume", run.name)
    assert done.code == 2
    assert "still running" in done.text


def test_an_offline_wandb_run_goes_on_as_a_second_one_linked_to_the_first(plsh, tmp_path, corpus):
    assert plsh(*words(corpus, STEPS, "train.keep=9", logger="offline")).code == 0
    copy = stopped(runs(tmp_path)[0], tmp_path, 5)
    (first,) = json.loads((copy / "wandb.json").read_text())["ids"]
    done = plsh("train", "--resume", str(copy))
    assert done.code == 0, done.text
    assert f"linked to {first} by its group and resumed_from" in done.text
    ids = json.loads((copy / "wandb.json").read_text())["ids"]
    assert ids[0] == first
    assert len(ids) == 2
    assert len(list((copy / "wandb").glob("offline-run-*"))) == 2
    assert [record["step"] for record in records(copy)] == list(range(1, STEPS + 1))
