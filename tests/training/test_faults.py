"""What may go wrong around a training run, and what it says then; what is counted where steps are of unequal size."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from training_toy import losses, own_cache, records, runs, same, stopped, texts, words

from plsh_cli.rundir import RunFolder

#: 5 steps to an epoch of the toy text.
BY_EPOCH = "train.batch=20"
#: The best held-out loss is not the last.
TOO_FAST = ["train.learning_rate=1", "train.schedule=constant", "train.warmup=0", "train.clip=null", "train.keep=9"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return texts(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", own_cache(tmp_path_factory.getbasetemp() / "cache"))


def killed(run: Path, name: str) -> Path:
    """A copy of a finished run as it was when it was killed after the last checkpoint."""
    copy = run.parent / name
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "model")
    (copy / "result.json").unlink()
    set_status(copy, state="killed")
    return copy


def set_status(run: Path, **facts: object) -> None:
    file = run / "status.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


def summary(run: Path) -> dict[str, object]:
    return json.loads((run / "result.json").read_text())["summary"]


def test_after_the_last_step_nothing_is_trained(plsh, tmp_path, corpus):
    assert plsh(*words(corpus, 12, *TOO_FAST)).code == 0
    (whole,) = runs(tmp_path)
    best = summary(whole)["model_kept"]
    assert best != "the best, step 12"
    again = killed(whole, "again")
    done = plsh("train", "--resume", str(again))
    assert "going on after step 12" in done.text
    same(whole, again)
    assert (summary(again)["model_kept"], summary(again)["steps"]) == (best, 12)
    assert summary(again)["tokens"] == summary(whole)["tokens"] == 12 * 155
    fewer = killed(whole, "fewer")
    done = plsh("train", "--resume", str(fewer), "train.steps=8", "resume_force=true")
    assert "no step is left of 8" in done.text
    same(whole, fewer)
    damaged = killed(whole, "damaged")
    weights = damaged / "checkpoints" / f"checkpoint-{best.split()[-1]}" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    done = plsh("train", "--resume", str(damaged))
    assert done.code == 0, done.text
    assert "the best so far, cannot be used: model.safetensors has" in done.text
    left = {step: loss for step, _, loss in losses(whole) if loss is not None and f"step {step}" not in best}
    assert summary(damaged)["model_kept"] == f"the best, step {min(left, key=left.get)}"


def test_a_held_out_loss_that_is_not_finite_leaves_no_checkpoint(plsh, only_run, corpus):
    often = ["train.eval_every=1", "train.save_every=1", "train.learning_rate=1e38", "train.warmup=0"]
    done = plsh(*words(corpus, 3, *often))
    assert done.code == 1
    assert "the held-out loss is nan at step 1; there is no checkpoint before it" in done.text
    assert not list(only_run().glob("checkpoints/*"))


def test_weights_that_are_not_finite_are_not_saved(plsh, only_run, corpus, monkeypatch):
    from plsh_cli.training.watch import Watch

    usual = Watch.on_step_end

    def spoil(self, args, state, control, model=None, **more):
        usual(self, args, state, control, **more)
        if state.global_step == 10:
            next(model.parameters()).data.view(-1)[3] = math.inf

    monkeypatch.setattr(Watch, "on_step_end", spoil)
    done = plsh(*words(corpus, 12, "train.eval_every=null", "train.best=false"))
    assert done.code == 1
    run = only_run()
    assert "weights that are not finite after step 10" in done.text
    assert f"the last whole checkpoint is {run / 'checkpoints' / 'checkpoint-5'}" in done.text
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["checkpoint-5"]


def test_another_number_of_processes_is_a_difference(plsh, tmp_path, corpus):
    command = words(corpus, 6)
    assert plsh(*command).code == 0
    (run,) = runs(tmp_path)
    assert json.loads((run / "status.json").read_text())["processes"] == 1
    set_status(run, state="killed", processes=2)
    for asked in (["train", "--resume", run.name], [*command, "resume=auto"]):
        done = plsh(*asked)
        assert done.code == 2
        assert "processes: 2 -> 1" in done.text
        assert "resume_force=true" in done.text
    done = plsh("train", "--resume", run.name, "resume_force=true")
    assert done.code == 0, done.text
    assert "resumed with processes: 2 -> 1" in done.text
    assert json.loads((run / "status.json").read_text())["processes"] == 1


def test_one_process_at_a_time_resumes_a_run(plsh, tmp_path, corpus):
    assert plsh(*words(corpus, 1)).code == 0
    (run,) = runs(tmp_path)
    set_status(run, state="killed")
    before = (run / "metrics.jsonl").read_bytes()
    holding = (
        "import sys, time; from pathlib import Path; from plsh_cli.rundir import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).claimed(): print('held', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", holding, str(run)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        done = plsh("train", "--resume", run.name)
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert done.code == 2
    assert "is still running, or being resumed, in another process" in done.text
    assert (run / "metrics.jsonl").read_bytes() == before
    with RunFolder(run).claimed():
        assert json.loads((run / "status.json").read_text())["state"] == "killed"
    assert plsh("train", "--resume", run.name).code == 0, "a claim ends with the process that held it"


def test_a_run_that_ended_since_it_was_looked_for_is_not_done_again(plsh, tmp_path, corpus):
    from plsh_cli.errors import MessageError
    from plsh_cli.experiments import harness, rerun

    assert plsh(*words(corpus, 1)).code == 0
    (run,) = runs(tmp_path)
    config, overrides = rerun.load(RunFolder(run))
    with pytest.raises(MessageError, match="is finished"):
        harness.execute(config, overrides, print, RunFolder(run))


def test_each_step_is_recorded_once_where_epochs_and_steps_meet(plsh, tmp_path, corpus):
    epochs = ["train.steps=null", "train.epochs=2.5", "train.eval_every=epoch", "train.save_every=5"]
    done = plsh(*words(corpus, 0, *epochs, "train.best=false", "train.keep=9", BY_EPOCH))
    assert done.code == 0, done.text
    (whole,) = runs(tmp_path)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 14))
    assert [line["step"] for line in lines if "eval_loss" in line] == [5, 10, 13]
    copy = stopped(whole, tmp_path, 5)
    assert plsh("train", "--resume", str(copy)).code == 0
    same(whole, copy)


def test_tokens_are_those_that_were_trained_on(plsh, tmp_path, corpus):
    """Epochs of 5 batches in steps of 3: every second step has 2."""
    assert plsh(*words(corpus, 6, "train.accumulate=3", BY_EPOCH, "train.keep=9")).code == 0
    (run,) = runs(tmp_path)
    batch = 20 * 31
    assert [record["tokens"] for record in records(run)] == [3 * batch, 2 * batch] * 3
    for record in records(run):
        assert record["tokens_per_second"] * record["step_seconds"] == pytest.approx(record["tokens"])
    full, short = records(run)[:2]
    speeds = [record["mfu"] / record["tokens_per_second"] for record in (full, short)]
    assert speeds[0] == pytest.approx(speeds[1])
    assert summary(run)["tokens"] == 15 * batch
    copy = stopped(run, tmp_path, 5) if len(records(run)) > 6 else killed(run, "again")
    assert plsh("train", "--resume", str(copy)).code == 0
    assert summary(copy)["tokens"] == 15 * batch


def test_more_accumulation_than_an_epoch_has_is_said(plsh, only_run, corpus):
    done = plsh(*words(corpus, 2, "train.accumulate=9", BY_EPOCH))
    assert done.code == 0, done.text
    assert "train.accumulate=9: an epoch has 5 batches" in done.text
    assert [record["tokens"] for record in records(only_run())] == [5 * 20 * 31] * 2


def test_a_full_disk_under_a_checkpoint_is_said(plsh, only_run, corpus, monkeypatch):
    import torch

    from plsh_cli import disk

    def full(value, file, *more, **options):
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    done = plsh(*words(corpus, 6))
    assert done.code == 1
    assert "checkpoint-5 could not be written (the disk is full" in done.text
    assert "enforce" not in done.text
    monkeypatch.undo()


def test_a_full_disk_in_mid_run_is_a_failure_with_one_reason(plsh, only_run, corpus, monkeypatch):
    def full(self, name, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "append_line", full)
    done = plsh(*words(corpus, 3))
    assert done.code == 1
    status = json.loads((only_run() / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["reason"] in done.text
    assert "cannot be written any more (the disk is full" in status["reason"]


@pytest.mark.parametrize("sampler", ["iid", "importance"])
def test_draws_made_once_are_measured_and_saved(plsh, tmp_path, corpus, sampler):
    """`importance` draws depend on the number of positions: the saved ones are those of training only where cut."""
    from transformers import AutoModelForCausalLM

    from plsh_cli.experiments import eval_biases, rerun, train_final, train_model
    from plsh_cli.models import handle_of

    settings = ["bias.resample=once", f"bias.sampler={sampler}", "seed=3"]
    assert plsh(*words(corpus, 3, *settings)).code == 0
    (run,) = runs(tmp_path)
    config, _ = rerun.load(RunFolder(run))
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    assert model.config.plsh["key"] == ["once"]
    saved = handle_of(model).bias[0]
    trained = train_model.bias_for(config, 2, 31, "once", drawn_for=saved.parts.capacity)
    own = train_final.own_variant(config)
    first, second = (eval_biases.build(own, model, 62, 0, "eval", first=first) for first in (True, False))
    for parts in (saved.parts, first[0].parts):
        assert (parts.prefix(31).block_starts_per_token() == trained.parts.block_starts_per_token()).all()
    assert first[0].parts.shifts.tolist() != second[0].parts.shifts.tolist()
    options = ["--lengths", "31,62", "eval.draws=1", "eval.max_tokens=200", "logger.mode=disabled"]
    done = plsh("eval", str(run), *options)
    assert done.code == 0, done.text
    (again,) = tmp_path.glob("runs/eval/*/result.json")
    rows = [row for row in json.loads((run / "result.json").read_text())["rows"] if row["own"]]
    for row, repeated in zip(rows, json.loads(again.read_text())["rows"], strict=True):
        assert repeated["bits_per_byte"] == pytest.approx(row["bits_per_byte"], rel=1e-6)
