"""Several processes train what one does, and only the main one writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training_toy import losses, records, texts, torchrun, words


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return texts(tmp_path_factory.mktemp("corpus") / "texts")


def only(folder: Path) -> Path:
    (config,) = folder.glob("runs/train/*/config.yaml")
    return config.parent


@pytest.mark.parametrize("settings", [[], ["bias=original"]], ids=["plsh", "original"])
def test_two_processes_give_the_losses_of_one(plsh, tmp_path, corpus, settings, unused_port):
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    assert plsh(*words(corpus, 20, "train.batch=4", f"out={one}/runs", *settings)).code == 0
    done = torchrun(words(corpus, 20, "train.batch=2", *settings), two, unused_port)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("run: runs/train") == 1
    assert done.stdout.count("bits/byte") == 1
    assert done.stderr.count("step 20/20") == 1
    before, after = losses(only(one)), losses(only(two))
    assert [step for step, _, _ in after] == list(range(1, 21))
    for (_, loss, held_out), (_, again, held_out_again) in zip(before, after, strict=True):
        assert again == pytest.approx(loss, rel=1e-4)
        assert (held_out is None) == (held_out_again is None)
        if held_out is not None:
            assert held_out_again == pytest.approx(held_out, rel=1e-4)
    assert [record.get("block_mean") for record in records(only(one))] == [
        record.get("block_mean") for record in records(only(two))
    ]
    rows = [json.loads((only(folder) / "result.json").read_text())["rows"] for folder in (one, two)]
    for row, again in zip(*rows, strict=True):
        assert again["bits_per_byte"] == pytest.approx(row["bits_per_byte"], rel=1e-4)


def test_two_processes_go_on_after_a_stop(tmp_path, corpus, unused_port):
    command = words(corpus, 8, "train.batch=2", "train.keep=9", "train.eval_every=4", "train.save_every=4")
    whole = torchrun(command, tmp_path, unused_port)
    assert whole.returncode == 0, whole.stderr
    run = only(tmp_path)
    before = losses(run)
    assert (run / "checkpoints" / "checkpoint-4" / "rng_state_1.pth").is_file()
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "state": "killed"}))
    (run / "checkpoints" / "checkpoint-8" / "complete.json").unlink()
    done = torchrun(["train", "--resume", run.name], tmp_path, unused_port)
    assert done.returncode == 0, done.stderr
    assert "checkpoint-8 is skipped" in done.stdout
    assert losses(only(tmp_path)) == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [("train.batch=100000000", "are available"), ("experiment=miniature", "start it without torchrun")],
)
def test_bad_input_is_said_once(tmp_path, corpus, unused_port, setting, message):
    done = torchrun(words(corpus, 8, setting), tmp_path, unused_port)
    assert done.returncode != 0
    assert done.stderr.count(message) == 1
    assert not list(tmp_path.glob("runs/train/*"))
