"""`plsh finetune --baselines`: the same fine-tuning under other biases, in runs of their own that are reused."""

from __future__ import annotations

import json

import finetune_toy
import pytest
from finetune_toy import words
from training_toy import own_cache, runs, texts

from plsh_cli.config import compose
from plsh_cli.experiments import finetune_baselines, finetune_sweep, rerun
from plsh_cli.rundir import RunFolder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return finetune_toy.base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", own_cache(tmp_path / "cache"))
    return texts(tmp_path / "texts")


def test_baselines_are_runs_of_their_own_and_reused(plsh, tmp_path, corpus, base):
    command = [*words(base, corpus, 4, "bias.sigma=[32]", "final.before=false", "lora.r=3"), "--baselines"]
    done = plsh(*command)
    assert done.code == 0, done.text
    assert "baselines=[alibi,window,fixed_blocks]" in done.text
    found = runs(tmp_path, "finetune")
    assert len(found) == 4
    main = next(run for run in found if run.name.split("-")[1:-1] == ["finetune"])
    result = json.loads((main / "result.json").read_text())
    kinds = [(row["stage"], row["adapter"], row["bias"], row["own"]) for row in result["rows"] if row["n"] == 31]
    assert kinds == [
        ("after", "plsh", "plsh", True),
        ("after", "plsh", "alibi", False),
        ("after", "alibi", "alibi", True),
        ("after", "window", "window", True),
        ("after", "fixed_blocks", "fixed_blocks", True),
    ]
    assert list(result["summary"]["runs"]) == ["alibi", "window", "fixed_blocks"]
    for name, folder in result["summary"]["runs"].items():
        config, overrides = rerun.load(RunFolder(main.parent / folder))
        assert (config.bias.name, config.bias.sigma, config.lora.r, config.train.steps) == (name, [32.0], 3, 4)
        again = compose.compose("finetune", overrides)
        assert compose.config_hash(again) == compose.config_hash(config), "its overrides make it on their own"
    assert "after exact ALiBi" in done.text
    done = plsh(*command)
    assert done.text.count("done before") == 3
    assert len(runs(tmp_path, "finetune")) == 5


def test_a_baseline_that_fails_is_named_and_the_rest_kept(plsh, tmp_path, corpus, base, monkeypatch):
    usual = finetune_baselines.baseline

    def broken(cfg, name):
        made = usual(cfg, name)
        data = made.data.model_copy(update={"path": "nowhere"})
        return made.model_copy(update={"data": data}) if name == "window" else made

    monkeypatch.setattr(finetune_baselines, "baseline", broken)
    done = plsh(*words(base, corpus, 2, "final.before=false", "baselines=[alibi,window]"))
    assert done.code == 1
    assert "1 of 2 baselines failed (window: data.path = nowhere" in done.text
    states = [json.loads((run / "status.json").read_text())["state"] for run in runs(tmp_path, "finetune")]
    assert sorted(states) in (["done", "failed"], ["done", "failed", "failed"])


def test_a_sweep_finds_the_baselines_of_a_run(tmp_path, monkeypatch):
    """The jobs of a sweep over s under a baseline are those of --baselines with the same seed."""
    monkeypatch.chdir(tmp_path)
    settings = ["train.steps=3", "bias.sigma=[32]"]
    run = compose.compose("finetune", [*settings, "baselines=[alibi,fixed_blocks]"])
    plan = finetune_sweep.plan(["bias.num_samples=5,10", "sweep.seeds=1", *settings], None)
    jobs = {one.bias: compose.config_hash(one.config) for one in plan.members if one.bias != "plsh"}
    assert jobs == {name: compose.config_hash(finetune_baselines.baseline(run, name)) for name in run.baselines}


def test_the_hash_of_a_run_does_not_depend_on_its_sweep():
    one, other = (compose.compose("finetune", [f"sweep.seeds={count}"]) for count in (1, 3))
    assert compose.config_hash(one) == compose.config_hash(other)
