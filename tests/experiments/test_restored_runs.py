"""Runs of `plsh finetune`, restored: `plsh eval RUN`, `plsh attn-error model.path=RUN`, `load(RUN)`, `plsh export`."""

from __future__ import annotations

import json
import shutil

import finetune_toy
import pytest
from adapter_cases import assert_close, ids, logits, save_base
from training_toy import own_cache, texts

from plsh_cli.config.compose import compose
from plsh_cli.experiments import harness
from plsh_cli.models import capture_qkv, load

#: Every run of this file: the biases, what happens to RoPE, LoRA or all weights, and the type of the base.
RUNS = {
    "plsh": ["bias.num_samples=5"],
    "layers": ["bias.num_samples=3", "bias.share_layers=false", "bias.sampler=stratified", "bias.rope=drop"],
    "alibi": ["bias=alibi", "bias.rope=drop"],
    "original": ["bias=original"],
    "bfloat16": ["bias.num_samples=5", "model.dtype=bfloat16"],
    "autocast": ["bias.num_samples=5", "train.bf16=true"],
    "full": ["lora=none", "bias.num_samples=5", "bias.rope=drop", "train.learning_rate=0.01"],
    "full_autocast": ["lora=none", "bias.num_samples=5", "train.learning_rate=0.01", "train.bf16=true"],
}
WORDS = ids(37)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a base, a corpus and a cache."""
    folder = tmp_path_factory.mktemp("home")
    save_base(folder / "base")
    texts(folder / "texts")
    own_cache(folder / "cache")
    return folder


@pytest.fixture(autouse=True)
def quiet_machine(home, monkeypatch):
    import torch

    monkeypatch.setenv("PLSH_CACHE", str(home / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runs(home):
    """The folder of a finished run by its name in RUNS, made when it is first asked for."""
    made = {}

    def get(name):
        if name not in made:
            usual = [f"out={home / 'runs'}", f"name={name}", "final.batch=8"]
            usual += [] if "autocast" in name else ["train.bf16=false"]
            words = finetune_toy.words(home / "base", home / "texts", 6, *usual, *RUNS[name])[1:]
            made[name] = harness.execute(compose("finetune", words), words, print).folder.path
        return made[name]

    return get


def rows(run):
    return json.loads((run / "result.json").read_text())["rows"]


def only(folder, command):
    (found,) = folder.glob(f"runs/{command}/*/result.json")
    return found.parent


@pytest.mark.parametrize("name", sorted(RUNS))
def test_eval_of_a_run_is_its_own_final_table(plsh, runs, tmp_path, name):
    """To the bit, with no key but those of the table: its biases, its one set of draws, and windows at a time."""
    run = runs(name)
    own = [row for row in rows(run) if row["stage"] == "after"]
    biases = ["original", *dict.fromkeys(row["bias"] for row in own if not row["own"])]
    words = ["--biases", ",".join(biases), "--draws", "1", "eval.batch=8", "device=cpu", "logger.mode=disabled"]
    done = plsh("eval", str(run), *words)
    assert done.code == 0, done.text
    again = rows(only(tmp_path, "eval"))
    assert len(again) == len(own) > 0
    keys = ("bias", "n", "num_samples", "tokens", "nats_per_token", "bits_per_byte", "top1", "entropy")
    assert [[row[key] for key in keys] for row in again] == [[row[key] for key in keys] for row in own]


def test_what_is_restored_is_what_was_saved_and_not_the_base(home, runs):
    for name in RUNS:
        # Asked for a run whose weights have hardly moved, this would prove nothing.
        base, mine = logits(load(home / "base")[0], WORDS), logits(load(runs(name))[0], WORDS)
        assert float((mine - base).abs().max()) > 0.01
        assert (load(runs(name))[0].config._attn_implementation == "plsh") == (name != "original")


@pytest.mark.parametrize("name", sorted(RUNS))
def test_export_of_a_run_has_its_logits(plsh, runs, tmp_path, name):
    wanted = logits(load(runs(name), dtype="float32")[0], WORDS)
    done = plsh("export", str(runs(name)), "--merge", "--to", "out", "--dtype", "float32")
    assert done.code == 0, done.text
    assert_close(logits(load(tmp_path / "out")[0], WORDS), wanted)


@pytest.mark.parametrize("name", ["plsh", "layers", "full"])
def test_attn_error_measures_the_fine_tuned_weights(plsh, home, runs, tmp_path, name):
    """Its Q, K and V are those of the restored model under its bias; it says what it read."""
    from plsh_cli.config.schema.sections import OpenedModel
    from plsh_cli.experiments import pretrained

    run = runs(name)
    words = ["data=text", f"data.path={home / 'texts'}", "--tokens", "48", "--s", "3", "attn_error.seeds=1"]
    done = plsh("attn-error", f"model.path={run}", *words, "device=cpu", "logger.mode=disabled", "protocol=paper")
    assert done.code == 0, done.text
    adapter = f"adapter on {home / 'base'}, " if name != "full" else ""
    assert f"{run.name} (run, {adapter}under plsh, float32) on 00.txt" in done.text
    details = json.loads((only(tmp_path, "attn-error") / "result.json").read_text())["summary"]["model_details"]
    assert (details["origin"], details["bias"], details["source"]) == ("run", "plsh", str(run))
    assert (details["base"] or {}).get("path") == (None if name == "full" else str(home / "base"))
    model = OpenedModel(name="x", path=str(run), revision=None, dtype="float32", architecture=None)
    opened = pretrained.open_model(model, "cpu", print).model
    taken, mine, base = (
        capture_qkv(one, WORDS[:1], [0, 2], rotary="before") for one in (opened, load(run)[0], load(home / "base")[0])
    )
    for layer in (0, 2):
        for one, other, untouched in zip(taken[layer][:3], mine[layer][:3], base[layer][:3], strict=True):
            assert (one == other).all()
            assert float((one - untouched).abs().max()) > 1e-3


def test_a_run_is_found_by_a_part_of_its_name(plsh, home, runs):
    name = runs("plsh").name[-6:]
    for words in (["attn-error", "--tokens", "64"], ["eval"]):
        done = plsh(*words, f"model.path={name}", f"out={home / 'runs'}", "--dry-run")
        assert done.code == 0, done.text
    done = plsh("eval", name, f"out={home / 'runs'}", "--dry-run")
    assert (done.code, "# lengths: [31, 62]" in done.out) == (0, True), done.text


def test_eval_under_more_draws_and_in_another_type(plsh, runs, tmp_path):
    done = plsh("eval", str(runs("plsh")), "--s", "2,9", "eval.dtype=bfloat16", "device=cpu", "logger.mode=disabled")
    assert done.code == 0, done.text
    result = json.loads((only(tmp_path, "eval") / "result.json").read_text())
    assert {row["num_samples"] for row in result["rows"]} == {2, 9}
    assert result["summary"]["model_details"]["dtype"] == "bfloat16"


def test_fine_tuning_goes_on_from_a_whole_model_and_not_from_an_adapter(plsh, home, runs, tmp_path):
    words = finetune_toy.words(runs("plsh"), home / "texts", 1)
    refused = plsh(*words)
    assert (refused.code, "holds an adapter, not a whole model" in refused.text) == (2, True), refused.text
    assert "--merge --to FOLDER" in refused.text
    done = plsh(*finetune_toy.words(runs("full"), home / "texts", 1))
    assert done.code == 0, done.text
    load(only(tmp_path, "finetune"))


# What is refused, each in one message.


@pytest.fixture
def moved(runs, home, tmp_path):
    """A run in a working folder, whose base has been moved; and where it is now."""
    base = shutil.copytree(home / "base", tmp_path / "base")
    run = shutil.copytree(runs("plsh"), tmp_path / "runs" / "finetune" / "run-with-a-base")
    record = json.loads((run / "model" / "plsh.json").read_text())
    record["base"]["path"] = str(base)
    (run / "model" / "plsh.json").write_text(json.dumps(record))
    base.rename(tmp_path / "there")
    return run, tmp_path / "there"


def commands(run, home):
    """The three commands that restore a run, without what they measure."""
    attention = ["data=text", f"data.path={home / 'texts'}", "--tokens", "31", "--s", "3", "attn_error.seeds=1"]
    return {
        "eval": ["eval", str(run), "eval.lengths=[31]", "eval.draws=1"],
        "eval path": ["eval", f"model.path={run}", "data=text", f"data.path={home / 'texts'}", "eval.lengths=[31]"],
        "attn-error": ["attn-error", f"model.path={run}", *attention],
    }


@pytest.mark.parametrize("command", ["eval", "eval path", "attn-error"])
def test_a_base_that_moved(plsh, home, moved, command):
    run, there = moved
    words = [*commands(run, home)[command], "logger.mode=disabled", "device=cpu"]
    for more in ([], ["--dry-run"]):
        refused = plsh(*words, *more)
        told = "base was in" in refused.text and "say where it is now with model.base=FOLDER" in refused.text
        assert (refused.code, told) == (2, True), refused.text
    done = plsh(*words, f"model.base={there}")
    assert done.code == 0, done.text


@pytest.mark.parametrize("command", ["eval", "eval path", "attn-error"])
def test_another_base_of_the_same_shape(plsh, home, runs, tmp_path, command):
    other = save_base(tmp_path / "other", seed=9)
    refused = plsh(*commands(runs("plsh"), home)[command], f"model.base={other}", "--dry-run")
    assert (refused.code, "does not hold the model that the adapter was made for" in refused.text) == (2, True)


def test_a_base_for_what_has_none(plsh, home, runs):
    for place in (home / "base", runs("full")):
        words = ["attn-error", f"model.path={place}", "data=text", f"data.path={home / 'texts'}", "--tokens", "31"]
        refused = plsh(*words, f"model.base={home / 'base'}", "logger.mode=disabled", "device=cpu")
        assert refused.code == 2, refused.text
        assert "a whole model" in refused.text


@pytest.mark.parametrize("command", ["eval", "eval path", "attn-error"])
def test_runs_without_a_finished_model(plsh, home, runs, tmp_path, command):
    run = shutil.copytree(runs("plsh"), tmp_path / "runs" / "finetune" / "killed")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"state": "killed"}))
    refused = plsh(*commands(run, home)[command])
    assert (refused.code, "holds no finished model (state: killed)" in refused.text) == (2, True), refused.text
    assert "plsh finetune --resume killed" in refused.text
    (tmp_path / "runs" / "approx").mkdir()
    other = run.rename(tmp_path / "runs" / "approx" / "other")
    text = (other / "config.yaml").read_text()
    (other / "status.json").write_text(json.dumps(status | {"command": "approx"}))
    (other / "config.yaml").write_text(text.replace("command: finetune", "command: approx"))
    assert plsh(*commands(other, home)[command]).code == 2
