"""A fine-tuning run that is stopped goes on to the bit, dropout included; what it trains cannot change on the way."""

from __future__ import annotations

import json

import finetune_toy
import pytest
from finetune_toy import words
from training_toy import own_cache, records, runs, same, stopped, texts

from plsh_cli.experiments import finetune_subject

STEPS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return texts(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return finetune_toy.base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return own_cache(tmp_path_factory.mktemp("cache") / "cache")


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", shared_cache)


@pytest.mark.parametrize(
    "settings",
    [["lora.dropout=0.3"], ["lora=none"], ["lora.dropout=0.3", "train.accumulate=3", "model.dtype=bfloat16"]],
    ids=str,
)
def test_a_resumed_run_is_the_uninterrupted_one(plsh, tmp_path, corpus, base, monkeypatch, settings):
    assert plsh(*words(base, corpus, STEPS, "train.keep=9", *settings)).code == 0
    (whole,) = runs(tmp_path, "finetune")
    before = json.loads((whole / "before.json").read_text())["rows"]
    assert [row["bias"] for row in before] == ["original", "original", "plsh", "plsh"]
    scored = []
    usual = finetune_subject.Pretrained.variants
    monkeypatch.setattr(
        finetune_subject.Pretrained, "variants", lambda self, stage: scored.append(stage) or usual(self, stage)
    )
    for step in (5, 10):
        copy = stopped(whole, tmp_path, step)
        done = plsh("finetune", "--resume", str(copy))
        assert done.code == 0, done.text
        assert f"going on after step {step}" in done.text
        same(whole, copy)
    assert scored == ["after", "after"], "what was scored before training is not scored again"


def test_dropout_is_on(plsh, tmp_path, corpus, base):
    """Else the test above would say nothing about its random numbers."""
    found = []
    for dropout in ("0", "0.3"):
        out = f"out_{dropout}"
        assert plsh(*words(base, corpus, 3, f"lora.dropout={dropout}", "final.before=false", f"out={out}")).code == 0
        (run,) = tmp_path.glob(f"{out}/finetune/*/")
        found.append([record["loss"] for record in records(run)])
    # The adapter's outer factor is zero at first, so dropout shows from the second step on.
    assert found[0][0] == found[1][0]
    assert found[0][1:] != found[1][1:]


def test_an_adapter_and_all_weights_do_not_go_on_from_one_another(plsh, tmp_path, corpus, base):
    settings = ["train.keep=9", "final.before=false", "final.biases=[]"]
    assert plsh(*words(base, corpus, 8, *settings)).code == 0
    assert plsh(*words(base, corpus, 8, *settings, "lora=none")).code == 0
    adapter, whole = runs(tmp_path, "finetune")
    for number, (run, change) in enumerate([(adapter, "lora=none"), (whole, "lora=default"), (adapter, "lora.r=4")]):
        copy = stopped(run, tmp_path, 5)
        copy = copy.rename(copy.with_name(f"stopped-{number}"))
        for force in ([], ["resume_force=true"]):
            done = plsh("finetune", "--resume", str(copy), change, *force)
            assert done.code == 2, done.text
            assert "was begun with another lora" in done.text
            assert done.err.count("\n") == 1
        assert json.loads((copy / "status.json").read_text())["state"] == "killed", "nothing is written"
    done = plsh("finetune", "--resume", str(copy), "train.learning_rate=0.01", "resume_force=true")
    assert done.code == 0, done.text


def test_a_run_does_not_go_on_from_other_weights(plsh, tmp_path, corpus):
    base = finetune_toy.base(tmp_path / "base")
    assert plsh(*words(base, corpus, 8, "final.before=false", "train.keep=9")).code == 0
    copy = stopped(runs(tmp_path, "finetune")[0], tmp_path, 5)
    finetune_toy.base(base, seed=1)
    done = plsh("finetune", "--resume", str(copy))
    assert done.code == 2
    assert "are not those that stopped-5 was begun with" in done.text
    finetune_toy.base(base)
    assert plsh("finetune", "--resume", str(copy)).code == 0


def test_a_killed_run_goes_on_with_auto(plsh, tmp_path, corpus, base):
    command = words(base, corpus, STEPS, "train.keep=9", "final.before=false", "final.biases=[]")
    assert plsh(*command).code == 0
    (run,) = runs(tmp_path, "finetune")
    copy = stopped(run, tmp_path, 5)
    done = plsh(*command, "resume=auto")
    assert "(resumed)" in done.text, done.text
    same(run, copy)
