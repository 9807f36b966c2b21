"""`plsh train` at toy size: what a run leaves, what it refuses, and what its settings do."""

from __future__ import annotations

import json
import math

import pytest
from training_toy import losses, own_cache, records, texts, words

from plsh_cli.config import compose
from plsh_cli.errors import UserError

FIELDS = {"loss", "grad_norm", "learning_rate", "epoch", "step_seconds", "tokens_per_second", "mfu"}
DRAWS = {"block_mean", "block_max", "pairs_per_token"}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", own_cache(tmp_path / "cache"))
    return texts(tmp_path / "texts")


def final(run):
    rows = json.loads((run / "result.json").read_text())["rows"]
    return {(row["bias"], row["own"], row["n"]): row for row in rows}


def summary(run):
    return json.loads((run / "result.json").read_text())["summary"]


def test_a_run_leaves_its_model_its_metrics_and_its_figures(plsh, only_run, corpus):
    done = plsh(*words(corpus, 12))
    assert done.code == 0, done.text
    run = only_run()
    assert [record["step"] for record in records(run)] == list(range(1, 13))
    assert all(record.keys() >= FIELDS | DRAWS for record in records(run))
    assert [record["step"] for record in records(run) if "eval_loss" in record] == [5, 10, 12]
    assert records(run)[-1]["loss"] < records(run)[0]["loss"] - 0.3
    assert all(0 < record["mfu"] < 1 for record in records(run))
    assert all(1 <= record["block_mean"] <= record["block_max"] <= 31 for record in records(run))
    assert len({record["block_mean"] for record in records(run)}) > 5, "draws are renewed at every step"
    rows = final(run)
    assert set(rows) == {(bias, bias == "plsh", n) for bias in ("plsh", "alibi") for n in (31, 62)}
    assert len({row["tokens"] for row in rows.values()}) == 1
    assert (summary(run)["attention_backend"], summary(run)["rope"]) == ("fused", "drop")
    assert {file.name for file in (run / "figures").iterdir()} == {
        f"{name}.{ending}" for name in ("loss", "perplexity") for ending in ("png", "svg")
    }
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in (run / "model").iterdir()}
    assert "bits/byte" in done.text
    assert "top-100" in done.text


def test_a_saved_model_comes_back_under_its_bias(plsh, only_run, corpus):
    import torch
    from transformers import AutoModelForCausalLM

    assert plsh(*words(corpus, 2, "bias=alibi")).code == 0
    model = AutoModelForCausalLM.from_pretrained(only_run() / "model")
    assert model.config._attn_implementation == "plsh"
    assert model.config.plsh["name"] == "alibi"
    ids = torch.arange(20)[None]
    moved = model(input_ids=ids).logits[0, -1] - model(input_ids=ids, position_ids=ids + 7).logits[0, -1]
    assert float(moved.detach().abs().max()) == 0.0, "RoPE is dropped: positions themselves say nothing"


@pytest.mark.parametrize("draws", [1, 2])
def test_eval_repeats_the_final_table(plsh, only_run, corpus, tmp_path, draws):
    assert plsh(*words(corpus, 3, f"final.draws={draws}")).code == 0
    run = only_run()
    settings = [f"eval.draws={draws}", "eval.max_tokens=200", "logger.mode=disabled"]
    done = plsh("eval", str(run), "--lengths", "31,62", *settings)
    assert done.code == 0, done.text
    (again,) = tmp_path.glob("runs/eval/*/result.json")
    for row in json.loads(again.read_text())["rows"]:
        before = final(run)["plsh", True, row["n"]]
        assert row["tokens"] == before["tokens"]
        assert (row["seeds"], row["kernel"], row["merge"]) == (before["seeds"], "alibi", "lse")
        for field in (
            "bits_per_byte",
            "bits_per_byte_ci95",
            "nats_per_token_ci95",
            "perplexity_low",
            "perplexity_high",
        ):
            assert row[field] == pytest.approx(before[field], rel=1e-6), field


def test_an_unusual_kernel_and_merge_are_named(plsh, corpus):
    unusual = ["bias.kernel=log", "bias.a=[0.5]", "bias.b=[1.0]", "bias.merge=mean", "bias.num_samples=3"]
    done = plsh(*words(corpus, 1, *unusual))
    assert done.code == 0, done.text
    assert "trained under plsh s=3 (iid, kernel=log, merge=mean)" in done.text
    assert "plsh s=3 iid kernel=log merge=mean" in done.text


def test_usual_draws_are_not_named_and_older_runs_do_not_say():
    from plsh_cli.report.eval_tables import labels
    from plsh_cli.report.train_tables import trained

    old = {"bias": "plsh", "own": True, "num_samples": 10, "sampler": "iid", "pitch": "real"}
    assert trained(old) == trained({**old, "kernel": "alibi", "merge": "lse"}) == "plsh s=10 (iid)"
    rows = [old, {**old, "kernel": "power", "merge": "lse"}]
    assert list(labels(rows).values()) == [
        "positional LSH, s=10 (as trained)",
        "positional LSH, s=10, kernel=power (as trained)",
    ]


@pytest.mark.parametrize("bias", ["original", "none", "alibi", "window", "fixed_blocks"])
def test_every_bias_trains_and_is_what_it_says(plsh, only_run, corpus, bias):
    done = plsh(*words(corpus, 5, f"bias={bias}"))
    assert done.code == 0, done.text
    run = only_run()
    assert {key[0] for key in final(run)} == {bias}
    assert losses(run)[-1][1] < losses(run)[0][1]
    assert summary(run)["attention_backend"] == ("the model's own" if bias == "original" else "fused")
    assert summary(run)["rope"] == ("keep" if bias == "original" else "drop")
    assert not DRAWS & set(records(run)[0])


def test_biases_start_from_the_same_weights_and_see_the_same_data(plsh, corpus, tmp_path):
    """Streams are independent: at the first step only the attention differs, and under no bias s does not matter."""
    first = {}
    for bias in (["bias=plsh"], ["bias=plsh", "bias.num_samples=3"], ["bias=alibi"]):
        out = f"out{len(first)}"
        assert plsh(*words(corpus, 1, *bias, f"out={out}")).code == 0
        (run,) = tmp_path.glob(f"{out}/train/*/")
        first[bias[-1]] = losses(run)[0][1]
    assert len(set(first.values())) == 3
    assert max(first.values()) - min(first.values()) < 0.02


@pytest.mark.parametrize(
    "settings",
    [
        ["train.batch=2", "train.accumulate=2"],
        ["train.gradient_checkpointing=true", "train.batch=4"],
        ["train.document_mask=true", "train.batch=4"],
        ["bias.share_layers=false", "train.batch=4"],
        ["bias.resample=once", "train.batch=4"],
        ["bias.merge=mean", "train.batch=4"],
        ["train.bf16=true", "train.batch=4"],
        ["train.clip=null", "train.batch=4"],
        ["model.dtype=bfloat16", "train.batch=4"],
        ["bias.sigma=16", "train.batch=4"],
        ["train.join_rows=3", "train.batch=4", "train.heldout=0.5"],
    ],
    ids=lambda settings: settings[0],
)
def test_settings_of_the_loop(plsh, corpus, tmp_path, settings):
    base = ["train.batch=4", "out=base", *(["train.heldout=0.5"] if "train.heldout=0.5" in settings else [])]
    assert plsh(*words(corpus, 4, *base)).code == 0
    done = plsh(*words(corpus, 4, *settings, "out=other"))
    assert done.code == 0, done.text
    (before,), (after,) = (tmp_path.glob(f"{out}/train/*/") for out in ("base", "other"))
    old, new = ([loss for _, loss, _ in losses(run)] for run in (before, after))
    name = settings[0]
    if name == "train.gradient_checkpointing=true":
        assert new == old
    elif name == "train.batch=2":
        assert new == pytest.approx(old, rel=2e-6), "a step of 2 + 2 windows is one of 4"
    elif name in ("train.document_mask=true", "train.join_rows=3"):
        assert abs(new[0] - old[0]) < 0.1
        assert new != old
    else:
        assert new[0] == pytest.approx(old[0], abs=0.02)
        assert new != old


def test_draws_once_stay_and_draws_per_step_do_not(plsh, only_run, corpus):
    assert plsh(*words(corpus, 3, "bias.resample=once")).code == 0
    assert len({record["block_mean"] for record in records(only_run())}) == 1


def test_the_best_checkpoint_is_the_model_that_is_kept(plsh, only_run, corpus):
    """A learning rate that ruins the model later: the best held-out loss is an early one."""
    assert plsh(*words(corpus, 15, "train.learning_rate=0.3", "train.warmup=0", "train.clip=null")).code == 0
    run = only_run()
    held_out = {step: loss for step, _, loss in losses(run) if loss is not None}
    best = min(held_out, key=held_out.get)
    assert summary(run)["model_kept"] == f"the best, step {best}"
    assert (run / "checkpoints" / f"checkpoint-{best}").is_dir()
    saved = (run / "checkpoints" / f"checkpoint-{best}" / "model.safetensors").read_bytes()
    assert saved == (run / "model" / "model.safetensors").read_bytes()


def test_evaluation_by_epoch(plsh, only_run, corpus):
    by_epoch = [
        "train.steps=null",
        "train.epochs=2",
        "train.eval_every=epoch",
        "train.save_every=epoch",
        "train.batch=20",
    ]
    done = plsh(*words(corpus, 0, *by_epoch))
    assert done.code == 0, done.text
    found = [(record["epoch"], "eval_loss" in record) for record in records(only_run())]
    assert [epoch for epoch, measured in found if measured] == [1.0, 2.0]


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_checkpoint(plsh, only_run, corpus, monkeypatch):
    from plsh_cli.training.draws import RenewDraws

    usual = RenewDraws.on_step_begin

    def spoil(self, args, state, control, model=None, **more):
        usual(self, args, state, control, **more)
        if state.global_step == 7:
            next(model.parameters()).data.fill_(math.nan)

    monkeypatch.setattr(RenewDraws, "on_step_begin", spoil)
    done = plsh(*words(corpus, 12))
    assert done.code == 1
    assert "the loss is nan at step 8" in done.text
    run = only_run()
    assert f"the last whole checkpoint is {run / 'checkpoints' / 'checkpoint-5'}" in done.text
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    assert [record["step"] for record in records(run)] == list(range(1, 8))
    assert (run / "checkpoints" / "checkpoint-5" / "complete.json").is_file()


def test_a_full_disk_leaves_the_checkpoint_before(plsh, only_run, corpus, monkeypatch):
    import torch

    usual = torch.save

    def full(value, file, *more, **options):
        if "checkpoint-10" in str(file):
            usual({"half": torch.zeros(9)}, file)
            raise OSError(28, "No space left on device")
        return usual(value, file, *more, **options)

    monkeypatch.setattr(torch, "save", full)
    done = plsh(*words(corpus, 12))
    assert done.code == 1
    assert "checkpoint-10 could not be written" in done.text
    assert "No space left on device" in done.text
    run = only_run()
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["checkpoint-5"]
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.architecture.num_key_value_heads=3"], "must be a multiple of num_key_value_heads (3)"),
        (["model.architecture.head_dim=7"], "must be even"),
        (["model.architecture.vocab_size=100"], "must be at least 257"),
        (["train.context=100000"], "--context"),
        (["train.batch=1000"], "one batch needs 1000"),
        (["train.heldout=0.0001", "train.context=400"], "heldout"),
        (["bias=original", "final.lengths=[31,9000]"], "RoPE allows"),
        (["bias.rope=keep", "model.architecture.max_position_embeddings=40"], "RoPE allows"),
        (["final.lengths=[31,1550]"], "use shorter ones"),
        (["data.path=nowhere"], "data.path"),
        (["data.path=empty.txt"], "the corpus is empty"),
        (["bias.sigma=[1,2,3]"], "one per query head"),
        (["model.dtype=float16"], "float32 or bfloat16"),
        (["train.batch=100000000"], "are available; use a smaller train.batch"),
        (["--resume", "no-such-run"], "no run 'no-such-run'"),
        (["train.best=true", "train.save_every=7"], "train.save_every equal to"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_bad_input_is_one_message(plsh, corpus, tmp_path, settings, message):
    (tmp_path / "empty.txt").write_text("")
    done = plsh(*words(corpus, 3, *settings))
    assert done.code == 2, done.text
    assert message in done.text
    assert done.err.count("\n") == 1, done.err
    for status in tmp_path.glob("runs/*/*/status.json"):
        assert json.loads(status.read_text())["state"] == "failed"


def test_one_document_cannot_be_split(plsh, corpus):
    done = plsh(*words(corpus, 3, f"data.path={corpus / '00.txt'}"))
    assert done.code == 2
    assert "two files with different texts at least" in done.text


def test_the_papers_run_composes_and_is_planned(plsh, tmp_path):
    config = compose.compose("train", ["model=qwen3_0.6b", "bias=plsh"])
    train = config.train
    assert (train.context, train.epochs, train.batch, train.learning_rate, train.join_rows) == (8192, 5, 1, 5e-4, 1000)
    assert (config.bias.sigma, config.model.dtype, config.data.name) == ([256.0], "bfloat16", "wikitext103")
    assert (config.lengths, config.final.windows) == ([8192, 10000, 16384], "paper")
    preset = compose.compose("train", ["experiment=paper_train_qwen3"])
    assert preset.model_copy(update={"name": config.name}) == config
    done = plsh("train", "model=qwen3_0.6b", "bias=plsh", "--dry-run")
    assert "596,049,920 parameters" in done.text
    assert "GFLOP/s" in done.text
    if done.code == 2:
        assert "needs about" in done.text
    assert not list(tmp_path.glob("runs/*"))


def test_what_the_command_line_gives_goes_before_what_a_model_is_known_by():
    given = ["model=qwen3_0.6b", "data=sotu", "train.context=512", "bias=alibi", "bias.sigma=[3]"]
    config = compose.compose("train", given)
    assert (config.data.name, config.train.context, config.bias.sigma) == ("sotu", 512, [3.0])
    assert compose.compose("train", ["model=qwen3_0.6b", "bias=original"]).bias.name == "original"


def test_a_dry_run_counts(plsh, corpus, tmp_path):
    done = plsh(*words(corpus, 10), "--dry-run")
    assert done.code == 0, done.text
    assert "28,928 parameters" in done.text
    assert "10 of 155 tokens" in done.text
    assert "about 1,550" in done.text
    assert "GFLOP/s" in done.text
    assert not list(tmp_path.glob("runs/*"))


def test_a_model_that_does_not_fit_is_refused_before_it_is_made():
    from plsh_cli.experiments import train

    with pytest.raises(UserError, match="needs about"):
        train.check_fit(compose.compose("train", ["model=gpt_148m", "train.batch=65536", "device=cpu"]))


def test_sharding_over_a_single_process_is_refused_before_anything_is_written(plsh, tmp_path):
    done = plsh("train", "train.fsdp=true")
    assert done.code == 2
    assert "train.fsdp = True: needs several processes (torchrun" in done.text
    assert not list(tmp_path.glob("runs/*"))
