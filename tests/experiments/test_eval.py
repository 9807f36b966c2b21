"""`plsh eval` on a small random model: the same tokens under every bias, against plain forward passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from eval_cases import Run, save_model, write_corpus

from plsh_cli.config.compose import compose
from plsh_cli.errors import MessageError, UserError
from plsh_cli.experiments import eval as eval_
from plsh_cli.experiments import eval_biases


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


def rows_of(result):
    return {(row["bias"], row["num_samples"], row["n"]): row for row in result.rows}


def test_every_bias_at_every_length_on_the_same_tokens(config):
    run = Run()
    biases = "eval.biases=[original,none,alibi,plsh,window,fixed_blocks]"
    result = eval_.run(config(biases, "eval.num_samples=[3,7]", "eval.draws=3"), run)
    rows = rows_of(result)
    assert len(rows) == len(result.rows) == 7 * 2
    assert {row["tokens"] for row in result.rows} == {96}
    assert result.summary["scored_tokens"] == {"16": 96, "48": 96}
    assert sum(run.steps) == run.total
    arrays = run.arrays["tokens"]
    assert np.array_equal(arrays["place_16"], arrays["place_48"])
    assert np.array_equal(arrays["text_16"], arrays["text_48"])
    # RoPE is kept, so attention without a bias is the model's own.
    for n in (16, 48):
        assert rows["none", None, n]["nats_per_token"] == pytest.approx(
            rows["original", None, n]["nats_per_token"], rel=1e-5
        )
        assert abs(rows["none", None, n]["nats_difference"]) < 1e-5
        assert rows["alibi", None, n]["nats_difference"] != 0
    assert all(row["backend"].startswith("the model's own") == (row["bias"] == "original") for row in result.rows)
    assert {row["seeds"] for row in result.rows if row["bias"] == "plsh"} == {3}
    assert all((row["nats_draws_sd"] is None) == (row["bias"] != "plsh") for row in result.rows)


def test_numbers_are_those_of_a_plain_forward_pass(config, folder, corpus):
    import torch

    from plsh_cli.models.loading import load

    row = rows_of(eval_.run(config("eval.lengths=[48]", "eval.max_tokens=all", "eval.stride=48"), Run()))[
        "original", None, 48
    ]
    model, tokenizer = load(folder, "float32")
    nats, bytes_ = [], 0
    for file in sorted(corpus.glob("*.txt"))[-3:]:
        ids = torch.tensor([tokenizer(file.read_text())["input_ids"]])
        size = ids.shape[1]
        assert size == len(file.read_bytes())
        for first in range(48, size, 48):
            end = min(first + 48, size)
            with torch.inference_mode():
                logits = model(input_ids=ids[:, end - 49 : end - 1]).logits[0]
            log_p = torch.log_softmax(logits.double(), -1)[first - end :]
            nats += (-log_p.gather(1, ids[0, first:end, None])[:, 0]).tolist()
            bytes_ += end - first
    assert row["tokens"] == row["bytes"] == bytes_ == len(nats)
    assert row["nats_per_token"] == pytest.approx(np.mean(nats), rel=1e-6)
    assert row["perplexity"] == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
    assert row["bits_per_byte"] == pytest.approx(np.sum(nats) / math.log(2) / bytes_, rel=1e-6)
    assert row["bits_per_token"] == pytest.approx(row["bits_per_byte"], rel=1e-12)


def test_counts_and_numbers_do_not_depend_on_the_batch(config):
    results = [rows_of(eval_.run(config(f"eval.batch={batch}", "bias=alibi"), Run())) for batch in (1, 8)]
    for key, row in results[0].items():
        assert row["tokens"] == results[1][key]["tokens"]
        assert row["nats_per_token"] == pytest.approx(results[1][key]["nats_per_token"], rel=1e-6)


def test_plsh_comes_close_to_exact_alibi_with_more_draws(config):
    overrides = ("eval.biases=[alibi,plsh]", "eval.num_samples=[2,512]", "eval.lengths=[48]", "eval.stride=16")
    rows = rows_of(eval_.run(config(*overrides), Run()))
    few, many = (abs(rows["plsh", size, 48]["nats_difference"]) for size in (2, 512))
    assert many < few / 3


def test_draws_come_from_the_seed_alone(config):
    one, two, three = (
        rows_of(eval_.run(config("bias=plsh", f"seed={seed}", "eval.draws=1"), Run())) for seed in (4, 4, 5)
    )
    assert one == two
    assert one["plsh", 10, 48]["nats_per_token"] != three["plsh", 10, 48]["nats_per_token"]


def test_the_papers_windows_say_how_many_tokens_each_length_scores(config):
    overrides = ("eval.windows=paper", "eval.train_length=16", "eval.max_tokens=all", "eval.documents=1")
    result = eval_.run(config(*overrides), Run())
    counts = {int(n): count for n, count in result.summary["scored_tokens"].items()}
    assert counts[16] > counts[48] > 0
    assert counts[16] % 16 == counts[48] % 16 == 0
    assert {row["n"]: row["tokens"] for row in result.rows} == counts


def test_the_bins_hold_every_scored_token(config):
    result = eval_.run(config(), Run())
    for row in result.rows:
        bins = [one for one in result.summary["positions"] if one["n"] == row["n"]]
        assert sum(one["tokens"] for one in bins) == row["tokens"]
        mean = sum(one["tokens"] * one["nats_per_token"] for one in bins) / row["tokens"]
        assert mean == pytest.approx(row["nats_per_token"], rel=1e-12)
        assert (bins[0]["left_from"], bins[-1]["left_to"]) == (row["n"] - 15, row["n"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["eval.lengths=[16,129]"], ["eval.lengths = 129", "128", "--lengths"]),
        (["eval.num_samples=[3]"], ["eval.num_samples", "belongs to bias plsh"]),
        (["eval.sigma=[3]"], ["eval.sigma", "--biases original,alibi"]),
        (["eval.sigma=[3]", "bias=plsh", "bias.kernel=log"], ["eval.sigma"]),
        (["model.path=/nowhere"], ["model.path = /nowhere"]),
        (["data.path=null"], ["data.path"]),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(config, overrides, words):
    with pytest.raises(UserError) as caught:
        eval_.plan(config(*overrides))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["eval.stride=17"], ["eval.stride = 17", "1 .. 16"]),
        (["eval.max_tokens=10"], ["eval.max_tokens = 10", "at least 16"]),
        (["bias=alibi", "bias.sigma=[1,2]"], ["bias.sigma", "9, one per query head"]),
        (["bias=window", "eval.backend=augmented"], ["eval.backend = augmented", "window"]),
    ],
)
def test_what_only_the_model_and_text_can_refuse(config, overrides, words):
    with pytest.raises(UserError) as caught:
        eval_.run(config(*overrides), Run())
    for word in words:
        assert word in str(caught.value)


def test_a_text_shorter_than_a_window(config, tmp_path):
    (tmp_path / "short.txt").write_text("Too short to score.")
    with pytest.raises(UserError, match=r"eval\.lengths = 48: .* 49 tokens, the longest text has 19"):
        eval_.run(config(f"data.path={tmp_path}"), Run())


def test_a_model_whose_tokens_see_later_ones_is_not_measured(config, monkeypatch):
    from transformers import LlamaModel

    plain = LlamaModel.forward

    def leaking(self, *arguments, **options):
        found = plain(self, *arguments, **options)
        found.last_hidden_state = found.last_hidden_state + found.last_hidden_state.mean(dim=1, keepdim=True)
        return found

    monkeypatch.setattr(LlamaModel, "forward", leaking)
    with pytest.raises(MessageError, match="not causal"):
        eval_.run(config(), Run())


def test_sections_take_sigma_and_rope_from_the_configured_one(config):
    cfg = config("bias=alibi", "bias.sigma=[5]", "bias.rope=drop", "eval.biases=[alibi,plsh,none]")
    alibi, plsh, none = eval_biases.variants(cfg, None)
    assert plsh.section.sigma == [5.0]
    assert {alibi.rope, plsh.rope, none.rope} == {"drop"}
    cfg = config("eval.sigma=[3]", "eval.biases=[original,window]")
    original, window = eval_biases.variants(cfg, None)
    assert (original.section, window.section.sigma) == (None, [3.0])


def test_dropping_rope_changes_the_model_and_is_undone(config):
    def nats(*overrides):
        run = Run()
        eval_.run(config(*overrides), run)
        return {n: run.arrays["tokens"][f"nats_{n}"] for n in (16, 48)}

    alone = nats()
    kept = nats("bias=none", "bias.rope=keep", "eval.biases=[none,original]")
    dropped = nats("bias=none", "bias.rope=drop", "eval.biases=[none,original]")
    for n in (16, 48):
        assert np.array_equal(dropped[n][1], alone[n][0])
        # With RoPE kept, the same attention in another backend: rounding is all that differs.
        rounding = np.abs(kept[n][0] - kept[n][1]).max()
        assert np.abs(dropped[n][0] - dropped[n][1]).max() > 100 * rounding


def test_heads_that_got_exact_alibi_are_listed(config):
    words = ("bias=plsh", "bias.sigma=[1e6]", "eval.draws=1")
    for asked in ("true", "false"):
        result = eval_.run(config(*words, f"bias.exact_when_cheaper={asked}"), Run())
        heads = {row["exact_heads"] for row in result.rows}
        assert heads == ({None} if asked == "false" else {"0 1 2 3 4 5 6 7 8"})
