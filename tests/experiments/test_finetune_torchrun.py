"""Two processes fine-tune as one does, and only the main one writes and scores."""

from __future__ import annotations

import json
from pathlib import Path

import finetune_toy
import pytest
from finetune_toy import words
from training_toy import losses, texts, torchrun


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return texts(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return finetune_toy.base(tmp_path_factory.mktemp("base") / "llama")


def only(folder: Path) -> Path:
    (config,) = folder.glob("runs/finetune/*/config.yaml")
    return config.parent


# Dropout is off: every process has random numbers of its own, so that halves of a batch get other zeros than the whole.
@pytest.mark.parametrize("settings", [["lora.dropout=0"], ["lora=none"]], ids=["lora", "all weights"])
def test_two_processes_give_the_losses_of_one(plsh, tmp_path, corpus, base, settings, unused_port):
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    assert plsh(*words(base, corpus, 8, "train.batch=4", f"out={one}/runs", *settings)).code == 0
    done = torchrun(words(base, corpus, 8, "train.batch=2", *settings), two, unused_port)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("run: runs/finetune") == 1
    assert done.stdout.count("bits/byte") == 1
    before, after = losses(only(one)), losses(only(two))
    assert [step for step, _, _ in after] == list(range(1, 9))
    for (_, loss, held_out), (_, again, held_out_again) in zip(before, after, strict=True):
        assert again == pytest.approx(loss, rel=1e-4)
        if held_out is not None:
            assert held_out_again == pytest.approx(held_out, rel=1e-4)
    rows = [json.loads((only(folder) / "result.json").read_text())["rows"] for folder in (one, two)]
    assert [row["stage"] for row in rows[0]] == [row["stage"] for row in rows[1]]
    for row, again in zip(*rows, strict=True):
        assert again["bits_per_byte"] == pytest.approx(row["bits_per_byte"], rel=1e-4)


def test_baselines_are_refused(tmp_path, corpus, base, unused_port):
    done = torchrun([*words(base, corpus, 2), "--baselines"], tmp_path, unused_port)
    assert done.returncode != 0
    assert done.stderr.count("start each without torchrun") == 1
    assert not list(tmp_path.glob("runs/finetune/*"))
