"""A study at toy size: its jobs, its table, what it claims; and that it goes on after a stop."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from training_toy import own_cache, start, texts, words

from plsh_cli.config import compose
from plsh_cli.experiments import train_claims, train_study

STUDY = ["study.seeds=2", "final.draws=1"]
VARIANTS = "study.only=[alibi,plsh_10,plsh_20]"


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", own_cache(tmp_path / "cache"))
    return texts(tmp_path / "texts")


def kill(process):
    """What a process had printed until it was killed."""
    os.kill(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def cells(**bits):
    """Results of a study: {"plsh_10": {256: [by seed ..]}}."""
    return [
        {"variant": variant, "own": True, "bias": variant, "n": n, "seed": seed, "bits_per_byte": value,
         "tokens": 10, "perplexity": 1.0, "top1": 0.5, "mrr": 0.5}
        for variant, by_length in bits.items()
        for n, values in by_length.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


def verdicts(results):
    return {claim["claim"]: claim["verdict"] for claim in train_claims.claims(results, 256)}


def test_a_claim_is_held_only_where_its_whole_interval_is_on_its_side():
    blocks = {"fixed_blocks": {256: [2.5, 2.6, 2.7]}}
    claim = "s=10 is better than fixed blocks"
    assert verdicts(cells(plsh_10={256: [2.0, 2.1, 2.2]}, **blocks))[claim] == "held"
    assert verdicts(cells(plsh_10={256: [3.0, 3.1, 3.2]}, **blocks))[claim] == "not held"
    assert verdicts(cells(plsh_10={256: [2.4, 2.8, 2.5]}, **blocks))[claim] == "undecided"
    assert verdicts(cells(plsh_10={256: [1.0]}, fixed_blocks={256: [2.5]}))[claim] == "undecided"
    assert verdicts(cells(alibi={256: [2.0]})) == {}


def test_close_to_alibi_means_within_five_percent_and_is_paired_by_seed():
    claim = "s=20 comes within 5 % of exact ALiBi's bits per byte"
    alibi = {"alibi": {256: [2.0, 3.0, 4.0]}}
    assert verdicts(cells(plsh_20={256: [2.08, 3.12, 4.16]}, **alibi))[claim] == "held"
    assert verdicts(cells(plsh_20={256: [2.12, 3.18, 4.24]}, **alibi))[claim] == "not held"


def test_rows_are_means_over_seeds_with_differences_to_alibi():
    results = cells(alibi={256: [2.0, 2.2]}, plsh_10={256: [2.1, 2.5]})
    first, second = train_claims.rows(results, ["alibi", "plsh_10"])
    assert (first["variant"], first["bits_per_byte"], first["bits_over_alibi"]) == ("alibi", pytest.approx(2.1), None)
    assert second["bits_over_alibi"] == pytest.approx(0.2)
    assert second["bits_over_alibi_ci95"] == pytest.approx(12.706 * 0.1, rel=1e-3)
    assert second["seeds"] == 2


def test_the_miniature_is_what_the_paper_compares():
    config = compose.compose("train", ["experiment=miniature"])
    jobs = train_study.members(config)
    assert len(jobs) == 24
    assert len({compose.config_hash(job.config) for job in jobs}) == 24
    by_name = {job.variant: job.config for job in jobs if job.seed == 0}
    assert [by_name[name].bias.num_samples for name in ("plsh_10", "plsh_20")] == [10, 20]
    assert by_name["plsh_20_stratified"].bias.sampler == "stratified"
    assert by_name["original"].bias.name == "original"
    assert {job.config.seed for job in jobs} == {0, 1, 2}
    assert all(job.config.lengths == [256, 512, 1024] and job.config.study is None for job in jobs)


def study(tmp_path, *settings, **variants):
    """The words of a study of these variants, from a folder of the user's own."""
    (tmp_path / "mine" / "experiment").mkdir(parents=True, exist_ok=True)
    lines = "".join(f"    {name}: [{', '.join(overrides)}]\n" for name, overrides in variants.items())
    (tmp_path / "mine" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# for: train\nname: mine\nstudy:\n  seeds: 1\n  processes: 1\n  only: null\n"
        f"  variants:\n{lines}"
    )
    return [*settings, "experiment=mine"], tmp_path / "mine"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["bias.num_samples=40"], "bias.num_samples = 40"),
        (["bias.num_samples=10"], "bias.num_samples = 10"),
        (["bias.sigma=[5]"], "or train.sigma for all of them"),
        (["bias=alibi"], "bias = alibi"),
        (["bias=plsh"], "bias = plsh"),
        (["--s", "10"], "bias.num_samples = 10"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_what_every_variant_replaces_cannot_be_set_beside_the_study(plsh, tmp_path, given, named, dry):
    done = plsh("train", "experiment=miniature", *given, *dry)
    assert done.code == 2, done.text
    assert named in done.text
    assert "give it in study.variants" in done.text
    assert not (tmp_path / "runs").exists()


def test_a_presets_own_bias_is_not_ignored_either(plsh, tmp_path):
    words, folder = study(tmp_path, alibi=["bias=alibi"])
    (folder / "experiment" / "mine.yaml").write_text(
        (folder / "experiment" / "mine.yaml").read_text() + "bias:\n  num_samples: 40\n"
    )
    done = plsh("train", *words, "--config-dir", str(folder), "--dry-run")
    assert done.code == 2
    assert "bias.num_samples = 40" in done.text


def test_a_models_section_that_variants_replace(plsh, tmp_path):
    words, folder = study(tmp_path, "model.architecture.hidden_size=64", small=["model=small"])
    done = plsh("train", *words, "--config-dir", str(folder), "--dry-run")
    assert done.code == 2
    assert "model.architecture.hidden_size = 64" in done.text


@pytest.mark.parametrize("key", ["seed=3", "name=other", "resume=auto"])
def test_a_variant_cannot_set_what_the_study_sets(plsh, tmp_path, key):
    words, folder = study(tmp_path, alibi=["bias=alibi", key])
    done = plsh("train", *words, "--config-dir", str(folder), "--dry-run")
    assert done.code == 2
    assert f"sets {key.split('=')[0]}, which a study sets itself" in done.text


def member(tmp_path, *settings, variant):
    """The configuration of one variant's job, which its overrides on their own must compose too."""
    words, folder = study(tmp_path, *settings, one=variant)
    config = compose.compose("train", words, folder)
    (job,) = train_study.members(config)
    again = compose.compose("train", train_study._overrides(config, job))
    assert compose.config_hash(again) == compose.config_hash(job.config)
    return job.config


def test_a_variants_own_settings_win_also_where_they_are_the_defaults(tmp_path):
    """0.003 and tiny are the file's own values; 0.02 and small the command line's."""
    variant = ["bias=alibi", "train.learning_rate=0.003", "train.warmup=0.2"]
    config = member(tmp_path, "train.learning_rate=0.02", "train.batch=3", variant=variant)
    assert (config.train.learning_rate, config.train.warmup, config.train.batch) == (0.003, 0.2, 3)
    assert member(tmp_path, "train.steps=7", variant=["model=tiny"]).model.name == "tiny"
    config = member(tmp_path, "model.architecture.hidden_size=64", variant=["model.architecture.hidden_size=128"])
    assert config.model.architecture.hidden_size == 128


def test_a_variant_without_a_bias_has_the_studys(tmp_path):
    config = member(tmp_path, "bias=fixed_blocks", "bias.sigma=[5]", variant=["train.learning_rate=0.01"])
    assert (config.bias.name, config.bias.sigma) == ("fixed_blocks", [5.0])
    config = member(tmp_path, "bias.sampler=stratified", variant=["bias.num_samples=20"])
    assert (config.bias.num_samples, config.bias.sampler) == (20, "stratified")


def test_train_sigma_holds_for_all_variants_and_a_variants_own_wins(tmp_path):
    assert member(tmp_path, "train.sigma=5", variant=["bias=alibi"]).bias.sigma == [5.0]
    assert member(tmp_path, "train.sigma=5", variant=["train.sigma=7"]).bias.sigma == [7.0]


def test_the_overrides_of_a_job_compose_its_configuration(corpus):
    config = compose.compose("train", ["experiment=miniature", *words(corpus, 3)[1:], "name='a b'".replace(" ", "_")])
    for job in train_study.members(config)[:8]:
        again = compose.compose("train", train_study._overrides(config, job))
        assert compose.config_hash(again) == compose.config_hash(job.config)


def test_a_study_runs_its_variants_and_reuses_them(plsh, tmp_path, corpus):
    command = [*words(corpus, 4), "experiment=miniature", *STUDY, VARIANTS]
    done = plsh(*command)
    assert done.code == 0, done.text
    assert "6/6" in done.text
    (config,) = tmp_path.glob("runs/train/*-miniature-*/config.yaml")
    result = json.loads((config.parent / "result.json").read_text())
    assert {(row["variant"], row["own"], row["n"]) for row in result["rows"]} == {
        (variant, own, n)
        for variant in ("alibi", "plsh_10", "plsh_20")
        for own in (True, False)
        for n in (31, 62)
        if own or variant != "alibi"
    }
    assert all(row["seeds"] == 2 and row["bits_per_byte_ci95"] is not None for row in result["rows"])
    assert {claim["verdict"] for claim in result["summary"]["claims"]} <= {"held", "not held", "undecided"}
    assert (config.parent / "figures" / "length.png").is_file()
    again = plsh(*command)
    assert again.text.count("done before") == 6
    assert len(list(tmp_path.glob("runs/train/*"))) == 6 + 2


def test_jobs_end_with_the_study_and_go_on_with_the_next(plsh, tmp_path, corpus):
    command = [*words(corpus, 150), "experiment=miniature", "study.seeds=1", VARIANTS]
    process = start(command, tmp_path)
    deadline = time.monotonic() + 120
    while len({path.parts[-3] for path in tmp_path.glob("runs/train/*/checkpoints/*")}) < 2:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, kill(process)
        time.sleep(0.05)
    kill(process)
    jobs = [path.parent for path in tmp_path.glob("runs/train/*/status.json") if "miniature" not in str(path)]
    deadline = time.monotonic() + 30
    while {json.loads((job / "status.json").read_text())["state"] for job in jobs} != {"killed"}:
        assert time.monotonic() < deadline, "the jobs must not outlive the study"
        time.sleep(0.1)
    assert all("terminated" in json.loads((job / "status.json").read_text())["reason"] for job in jobs)
    done = plsh(*command)
    assert done.code == 0, done.text
    assert {json.loads((job / "status.json").read_text())["state"] for job in jobs} == {"done"}
    assert len(list(tmp_path.glob("runs/train/*"))) == 3 + 2, "stopped jobs go on in their own folders"


def test_a_failed_job_fails_the_study_and_keeps_the_others(plsh, tmp_path, corpus):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "pair.yaml").write_text(
        "# @package _global_\n# for: train\nname: pair\nstudy:\n  seeds: 1\n  processes: 2\n  only: null\n  variants:\n"
        "    alibi: [bias=alibi]\n    bad: [bias=alibi, train.learning_rate=1.0e+30]\n"
    )
    done = plsh(*words(corpus, 4), "experiment=pair", "--config-dir", str(tmp_path / "mine"))
    assert done.code == 1
    assert "1 of 2 runs failed" in done.text
    assert len(list(tmp_path.glob("runs/train/*-alibi-*/result.json"))) == 1
