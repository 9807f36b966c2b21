"""`plsh attn-error` on a tiny random model, and once on the real one; its measures: test_attn_error_measures.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from attn_error_cases import N, Run, found, save_tokenizer, whole, write_corpus
from toy import toy_model

from plsh_cli import assets
from plsh_cli.config.compose import compose
from plsh_cli.errors import PlshError, UserError
from plsh_cli.experiments import attn_error
from plsh_cli.stats import t_interval

pytestmark = pytest.mark.usefixtures("one_thread")


def test_rows_hold_groups_layers_and_heads_and_their_means(config):
    run = Run()
    result = attn_error.run(config(), run)
    errors = found(result)
    assert sorted({layer for layer, _, _ in errors}) == [0, 1, 2, 3]
    assert len(errors) == 4 * 2 * (1 + 9)
    assert len(result.rows) == len(errors) + 4 * 2
    for layer in range(4):
        for size in (3, 8):
            heads = [errors[layer, head, size] for head in range(9)]
            assert errors[layer, None, size] == pytest.approx(np.mean(heads), rel=1e-12)
    mean = np.mean([errors[layer, None, 8] for layer in range(4)])
    assert whole(result)[8]["output_error_relative"] == pytest.approx(mean, rel=1e-12)
    row = next(row for row in result.rows if row["head"] == 2)
    assert (row["n"], row["sampler"], row["pitch"], row["seeds"], row["seed_first"]) == (N, "iid", "real", 2, 0)
    assert row["kernel"] == f"alibi(sigma={row['sigma']:g})"
    assert row["output_error_relative_ci95"] > 0
    assert row["output_error_relative_ci95_inputs"] is None
    assert result.rows[0]["sigma"] is None
    assert run.arrays["values"]["values"].shape[1:] == (1, 2, 2, 4, 9)
    assert len(run.metrics) == 4 * 2 + 4 * 2
    assert sum(run.steps) == run.total == 4 * 9 * 2 * 2


def test_the_summary_says_what_was_measured(config):
    run = Run()
    result = attn_error.run(config(), run)
    summary = result.summary
    assert 20 < summary["perplexity"] < 2000
    assert summary["text_details"]["document"] == "d0"
    assert summary["model_details"]["quantisation"] is None
    assert summary["model_details"]["query_heads"] == 9
    assert summary["groups"] == {"all": [0, 1, 2, 3], "early": [0, 1], "middle": [2], "late": [3]}
    assert [fit["layer"] for fit in summary["slopes"]] == [None] * 4 + [0, 1, 2, 3]
    assert all(-1.2 < fit["slope"] < 0.2 and fit["slope_ci95"] > 0 for fit in summary["slopes"])
    falls, holds = summary["claims"]
    assert falls["met"]
    assert falls["values"]["8"] == pytest.approx(whole(result)[8]["output_error_relative"], rel=1e-12)
    assert holds["met"]
    assert 0 < holds["largest_ratio"] <= 1
    assert any("perplexity" in line for line in run.lines)


def test_perplexity_is_that_of_the_model_s_own_loss(config, llama, corpus):
    import torch

    from plsh_cli.models.loading import load

    loaded, tokenizer = load(llama, "float32")
    text = json.loads((corpus / "documents.jsonl").read_text().splitlines()[0])["text"]
    ids = torch.tensor([tokenizer(text)["input_ids"][:N]])
    with torch.inference_mode():
        wanted = float(loaded(input_ids=ids, labels=ids).loss.double().exp())
    measured = attn_error.run(config("attn_error.layers=[0]"), Run()).summary["perplexity"]
    assert measured == pytest.approx(wanted, rel=1e-5)


def test_smaller_sizes_do_not_depend_on_the_larger_ones(config):
    both, one = (attn_error.run(config(f"attn_error.num_samples={sizes}"), Run()) for sizes in ("[3,8]", "[3]"))
    assert {key: value for key, value in found(both).items() if key[2] == 3} == found(one)


def test_the_same_seed_gives_the_same_rows(config):
    assert attn_error.run(config(), Run()).rows == attn_error.run(config(), Run()).rows


def test_few_matrices_at_a_time_give_the_same_rows(config, monkeypatch):
    from plsh_cli.experiments import attn_error_values

    all_at_once = attn_error.run(config(), Run()).rows
    monkeypatch.setattr(attn_error_values, "MATRICES_BYTES", 1)
    assert attn_error.run(config(), Run()).rows == all_at_once


def test_one_seed_has_no_interval(config):
    result = attn_error.run(config("attn_error.seeds=1", "attn_error.layers=[0]"), Run())
    assert all(row["output_error_relative_ci95"] is None for row in result.rows)
    assert result.summary["slopes"][0]["slope"] is not None
    assert result.summary["slopes"][0]["slope_ci95"] is None


def test_several_documents_have_intervals_over_texts(config):
    overrides = ("attn_error.layers=[1]", "attn_error.seeds=1")
    both = attn_error.run(config(*overrides, "attn_error.inputs=2"), Run())
    each = [attn_error.run(config(*overrides, f"data.document={index}"), Run()) for index in (0, 1)]
    values = [found(one)[1, 4, 8] for one in each]
    mean, half = t_interval(values)
    row = next(row for row in both.rows if (row["head"], row["num_samples"]) == (4, 8))
    assert row["output_error_relative"] == pytest.approx(mean, rel=1e-12)
    assert row["output_error_relative_ci95_inputs"] == pytest.approx(half, rel=1e-9)
    assert row["spectral_error_ci95_inputs"] is None
    assert both.summary["text_details"]["documents"] == ["d0", "d1"]
    assert len(both.summary["perplexities"]) == 2
    assert (both.summary["slopes"][0]["over"], both.summary["slopes"][0]["count"]) == ("inputs", 2)


def test_documents_that_are_too_short_are_passed_over(config):
    result = attn_error.run(config("attn_error.layers=[0]", "attn_error.inputs=2", "data.document=-2"), Run())
    assert result.summary["text_details"]["documents"] == ["d2", "d1"]
    last = attn_error.run(config("attn_error.layers=[0]", "attn_error.inputs=3", "data.document=-1"), Run())
    assert last.summary["text_details"]["documents"] == ["d2", "d1", "d0"]
    with pytest.raises(UserError, match=r"attn_error\.inputs = 4: only 3 of the 4 documents"):
        attn_error.run(config("attn_error.inputs=4"), Run())


def test_windows_are_the_papers_words(config, corpus, llama):
    import torch

    from plsh_cli.experiments import attn_error_inputs
    from plsh_cli.models.loading import load

    texts = write_corpus(corpus, (200, 150, 170, 5))
    words = " ".join(texts).split()
    cfg = config("attn_error.texts=windows", "attn_error.inputs=3", "attn_error.tokens=80")
    inputs = attn_error_inputs.prepare(cfg, lambda text: None)
    stride = len(words) // 4
    _, tokenizer = load(llama, "float32")
    for place, ids in enumerate(inputs.ids):
        wanted = tokenizer(" ".join(words[place * stride : place * stride + 60]))["input_ids"]
        assert torch.equal(ids, torch.tensor([wanted]))
    assert inputs.text_details["words"] == 60
    assert inputs.text_details["stride"] == stride == 131
    with pytest.raises(UserError, match=r"attn_error\.inputs = 9: .*525 words"):
        attn_error.run(config("attn_error.texts=windows", "attn_error.inputs=9"), Run())


def test_windows_of_several_lengths_are_cut_in_the_corrected_protocol_only(config, monkeypatch):
    from plsh_cli.experiments import attn_error_texts

    sizes = iter((40, 37, 40, 37))

    def first_tokens(tokenizer, text, at_most):
        import torch

        return torch.arange(next(sizes))[None]

    monkeypatch.setattr("plsh_cli.data.tokens.first_tokens", first_tokens)
    lengths = {}
    for protocol in ("corrected", "paper"):
        cfg = config("attn_error.texts=windows", "attn_error.inputs=2", "attn_error.tokens=40", f"protocol={protocol}")
        chosen = attn_error_texts.choose(cfg, None, lambda text: None)
        lengths[protocol] = [one.shape[1] for one in chosen.ids]
    assert lengths == {"corrected": [37, 37], "paper": [40, 37]}


def test_texts_of_several_lengths_in_the_papers_protocol(config, monkeypatch):
    from plsh_cli.experiments import attn_error_texts

    chosen = attn_error_texts._windows

    def uneven(*arguments):
        found = chosen(*arguments)
        found.ids[1] = found.ids[1][:, :-3]
        return found

    monkeypatch.setattr(attn_error_texts, "_windows", uneven)
    overrides = ("protocol=paper", "attn_error.texts=windows", "attn_error.inputs=2", "attn_error.tokens=80")
    result = attn_error.run(config(*overrides, "attn_error.layers=[0]"), Run())
    row = whole(result)[8]
    assert row["n"] == 60
    assert row["spectral_error_ci95_inputs"] > 0
    holds = result.summary["claims"][1]
    assert holds["met"]
    assert holds["rows"] == (60 + 57) * 9 * 2 * 2


def test_one_sigma_stands_for_all_heads_and_nine_for_one_each(config):
    one = attn_error.run(config("bias.sigma=[5.0]", "attn_error.layers=[0]"), Run())
    assert {(row["sigma"], row["kernel"]) for row in one.rows} == {(5.0, "alibi(sigma=5)")}
    nine = attn_error.run(config("bias.sigma=[1,2,3,4,5,6,7,8,9]", "attn_error.layers=[0]"), Run())
    heads = [row["sigma"] for row in nine.rows if row["num_samples"] == 3 and row["layer"] == 0]
    assert heads == [None, *range(1, 10)]
    assert found(nine)[0, 4, 8] == found(one)[0, 4, 8]


def test_a_model_with_alibi_of_its_own_gives_the_slopes(config, tmp_path):
    folder = tmp_path / "falcon"
    toy_model("falcon").save_pretrained(folder)
    save_tokenizer(folder)
    overrides = (f"model.path={folder}", "attn_error.layers=[0]", "attn_error.tokens=61")
    result = attn_error.run(config(*overrides), Run())
    # Falcon divides the slopes 2^-1 .. 2^-8 by the root of its head dim, 8; the slopes are powers of two.
    wanted = [2.0**k * np.sqrt(8.0) for k in range(1, 9)]
    heads = [row["sigma"] for row in result.rows if row["layer"] == 0 and row["head"] is not None]
    assert heads[:8] == pytest.approx(wanted, rel=1e-6)
    assert len(result.summary["own_slopes"]) == 8
    given = attn_error.run(config(*overrides, "bias.sigma=[3]"), Run())
    assert given.summary["own_slopes"] is None
    assert {row["sigma"] for row in given.rows} == {3.0}


@pytest.mark.parametrize(
    "bias",
    [
        ["bias.kernel=log", "bias.a=[2.0]", "bias.b=[0.3]"],
        ["bias.kernel=power", "bias.a=[0.5]", "bias.p=[0.5]", "bias.pitch=integer"],
        ["bias.kernel=table", "bias.pitch=integer", f"bias.table={[round(0.5**d, 30) for d in range(N)]}"],
        ["bias.sampler=stratified"],
        ["bias.sampler=importance", "bias.pitch=integer"],
        ["protocol=paper", "bias.sampler=stratified"],
    ],
)
def test_other_kernels_and_samplers(config, bias):
    overrides = ("attn_error.layers=[1]", "attn_error.num_samples=[8,200]", "attn_error.biases=[plsh,window]")
    result = attn_error.run(config(*bias, *overrides), Run())
    assert found(result)[1, None, 200] < found(result)[1, None, 8] < 1
    assert all(row["row_bound_violated"] == 0 for row in result.rows)
    iid_alibi = not any(line.startswith(("bias.kernel", "bias.sampler")) for line in bias)
    assert all((row["bound_expectation"] is not None) == iid_alibi for row in result.rows if row["bias"] == "plsh")


def test_baselines_have_the_pairs_of_the_draws(config):
    result = attn_error.run(config("attn_error.biases=[plsh,window,fixed_blocks]", "bias.sigma=[4]"), Run())
    drawn, window, blocks = (whole(result, bias) for bias in ("plsh", "window", "fixed_blocks"))
    for size in (3, 8):
        pairs = drawn[size]["pairs_per_token"]
        # The nearest reach or length: about half a token of it off.
        assert window[size]["pairs_per_token"] == pytest.approx(pairs, abs=0.51)
        assert blocks[size]["pairs_per_token"] == pytest.approx(pairs, rel=0.1)
        assert window[size]["seeds"] is None
        assert window[size]["output_error_relative_ci95"] is None
    # 2 sigma = 8: fifteen blocks of 36 pairs and one of 28.
    assert blocks[None]["pairs_per_token"] == pytest.approx((15 * 36 + 28) / N)
    exact = attn_error.run(
        config("attn_error.biases=[plsh,window]", "bias.sigma=[1e4]", "attn_error.num_samples=[50]"), Run()
    )
    assert whole(exact, "window")[50]["output_error_relative"] == 0.0


def test_baselines_need_the_draws_that_they_are_measured_at(config):
    with pytest.raises(PlshError, match="biases must hold plsh"):
        config("attn_error.biases=[window]")


def test_an_error_of_zero_has_no_slope(config):
    result = attn_error.run(config("bias.sigma=[1e-6]", "attn_error.layers=[0]"), Run())
    assert set(found(result).values()) == {0.0}
    assert result.summary["slopes"][0]["slope"] is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("attn_error.layers=[0,4]", r"attn_error\.layers = 4: .*0 \.\. 3"),
        ("attn_error.tokens=129", r"attn_error\.tokens = 129: must be at most 128"),
        ("data.document=4", r"data\.document = 4: must lie in -4 \.\. 3"),
        ("data.name=wikitext", r"data\.name = wikitext: must be one of sotu"),
        ("model.path=nowhere", r"model\.path = nowhere: must be a folder"),
        ("bias.sigma=[1,2]", r"bias\.sigma = \[1\.0, 2\.0\]: .*or 9, one per query head"),
        ("device=mps", r"device = mps: has no double precision"),
    ],
)
def test_what_cannot_run_is_refused_by_the_plan(config, override, message):
    with pytest.raises(UserError, match=message):
        attn_error.plan(config(override))


@pytest.mark.parametrize("other", ["protocol=paper", "bias.kernel=log"])
def test_what_only_matrices_can_do_is_refused_without_them(config, other):
    with pytest.raises(UserError, match=r"attn_error\.method = fused: .*method=dense"):
        attn_error.plan(config(other, "attn_error.method=fused"))


def test_an_unknown_model_lists_the_known_ones(corpus):
    with pytest.raises(UserError, match=r"model\.name = gpt5: must be one of smollm2_135m"):
        attn_error.plan(compose("attn_error", ["model.name=gpt5", "data.document=0"]))


def test_more_memory_than_there_is(config, monkeypatch):
    monkeypatch.setattr(attn_error, "available_bytes", lambda: 10**9)
    with pytest.raises(UserError, match=r"attn_error\.tokens.*--tokens"):
        attn_error.plan(config())


@pytest.mark.parametrize("preset", ["paper_output_error_mistral", "paper_output_error_llama4"])
def test_the_papers_presets_can_be_planned_on_any_machine(preset, monkeypatch):
    """The weights of these models count when they are to be loaded, not in a plan."""
    monkeypatch.setattr(attn_error, "available_bytes", lambda: 8 * 2**30)
    cfg = compose("attn_error", [f"experiment={preset}"])
    planned = attn_error.plan(cfg)
    assert planned["num_samples"] == [10**k for k in range(6)]
    assert planned["protocol"] == "paper"
    assert float(planned["estimated_peak_memory"].split()[0]) > 14
    assert "days" in planned["estimated_time"]
    with pytest.raises(UserError, match=r"needs about .* 8\.0 GiB are available"):
        attn_error.run(compose("attn_error", [f"experiment={preset}", "device=cpu"]), Run())


def test_a_text_shorter_than_asked(config):
    with pytest.raises(UserError, match="d3 has only 5 tokens"):
        attn_error.run(config("data.document=-1"), Run())


def test_an_encoder_and_a_folder_without_weights(config, tmp_path):
    encoder, bare = tmp_path / "bert", tmp_path / "bare"
    for folder, name in ((encoder, "bert"), (bare, "llama")):
        toy_model(name).save_pretrained(folder)
        save_tokenizer(folder)
    (bare / "model.safetensors").unlink()
    with pytest.raises(PlshError, match="bert is an encoder") as told:
        attn_error.run(config(f"model.path={encoder}"), Run())
    assert told.value.exit_code == 2
    with pytest.raises(PlshError, match="no weights") as told:
        attn_error.run(config(f"model.path={bare}"), Run())
    assert told.value.exit_code == 2


def test_the_plan_of_the_default_run(corpus):
    planned = attn_error.plan(compose("attn_error", ["data.document=0"]))
    assert planned["layers"] == list(range(30))
    assert len(planned["kernels"]) == 9
    assert planned["to_fetch"] == []
    assert planned["method"] == "dense"
    long = attn_error.plan(compose("attn_error", ["data.document=0", "attn_error.tokens=8192"]))
    assert long["method"] == "dense"


def test_planning_imports_no_torch():
    code = "import sys; from plsh_cli.experiments import attn_error; from plsh_cli.config.compose import compose; "
    code += "attn_error.plan(compose('attn_error', [])); assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def real():
    """Skips where model or corpus cannot be had; with PLSH_REQUIRE_ASSETS=1 that is a failure."""
    try:
        return [assets.fetch(name) for name in ("smollm2_135m", "sotu")]
    except PlshError as error:
        if os.environ.get("PLSH_REQUIRE_ASSETS") == "1":
            raise
        pytest.skip(f"needs the real model and text: {error}")


def test_first_light_on_real_weights_and_text(real):
    run = Run()
    settings = ["attn_error.num_samples=[10,40]", "attn_error.seeds=2", "attn_error.layers=[0,29]", "bias.sigma=[16]"]
    result = attn_error.run(compose("attn_error", [*settings, "device=cpu"]), run)
    # 19 on text like this one; weights in a wrong order or type give thousands.
    assert 15 < result.summary["perplexity"] < 23
    origin = result.summary["model_details"]["origin"]
    assert origin in ("hub", "package index")
    assert ("4-bit" in result.summary["model"]) == (origin == "package index")
    errors = found(result)
    for layer in (0, 29):
        assert 0.04 < errors[layer, None, 10] < 0.2
        # 1/sqrt(s) halves the error; with these two seeds it comes within these bounds.
        assert 0.3 < errors[layer, None, 40] / errors[layer, None, 10] < 0.8
    assert result.summary["claims"][1]["met"]
