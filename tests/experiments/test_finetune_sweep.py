"""`plsh finetune bias.num_samples=... --multirun`: its jobs, its figure, and what is left when jobs fail.

Training is replaced by a formula: perplexity 20 + 40 / s (20 under exact ALiBi, 25 in fixed blocks) plus the seed.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pytest
from eval_cases import save_model, write_corpus
from finetune_cases import row

from plsh_cli.config import compose
from plsh_cli.experiments import finetune, finetune_sweep
from plsh_cli.experiments.result import Result

QUIET = ["logger.mode=disabled", "device=cpu"]
SWEEP = ["finetune", "--multirun", "bias.num_samples=5,10", *QUIET]
BASE = {"alibi": 20, "fixed_blocks": 25, "window": 22}


@pytest.fixture
def trained(monkeypatch):
    """The configurations that were trained, by the formula; `trained.broken` are (bias, s, seed) that fail."""

    class Trained(list):
        broken: set[tuple[str, int | None, int]] = set()  # noqa: RUF012

    done = Trained()

    def run(config, run):
        s = getattr(config.bias, "num_samples", None)
        if (config.bias.name, s, config.seed) in done.broken:
            raise RuntimeError("boom")
        done.append(config)
        value = (20 + 40 / s if s else BASE[config.bias.name]) + config.seed
        name = config.bias.name
        return Result([row("after", name, name, True, n, value * n / 256) for n in (256, 512)])

    for name, stub in {"run": run, "plan": lambda config: {"memory": "little"}, "check_fit": lambda config: None,
                       "calibrate": lambda config: {"time": "short"}}.items():  # fmt: skip
        monkeypatch.setattr(finetune, name, stub, raising=False)
    return done


def planned(*overrides):
    made = finetune_sweep.plan(list(overrides), None)
    assert made is not None
    return made


def kinds(plan):
    return [(member.bias, member.num_samples, member.seed) for member in plan.members]


def folder_of(done):
    (rows,) = (line for line in done.out.splitlines() if line.startswith("rows: "))
    return rows.removeprefix("rows: ").removesuffix("/rows.csv")


def record_of(tmp_path, done):
    return json.loads((tmp_path / folder_of(done) / "summary.json").read_text())


def test_the_jobs_are_all_seeds_and_baselines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = planned("bias.num_samples=5,10,20,40", *QUIET)
    assert len(made.parts) == 2
    own = [("plsh", s, seed) for seed in range(3) for s in (5, 10, 20, 40)]
    beside = [(bias, None, seed) for seed in range(3) for bias in ("alibi", "fixed_blocks")]
    assert kinds(made) == [*own, *beside]
    assert len({compose.config_hash(member.config) for member in made.members}) == 18
    for member in made.members:
        assert member.config.seed == member.seed
        assert member.config.bias.name == member.bias
        assert member.config.final.before is False
        assert member.config.final.biases == []
    assert not (tmp_path / "runs").exists()


def test_seeds_are_those_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = "sweep.baselines=[]"
    assert {seed for _, _, seed in kinds(planned("bias.num_samples=5,10", "seed=4", one))} == {4, 5, 6}
    assert {seed for _, _, seed in kinds(planned("seed=3,9", "bias.num_samples=5,10", one))} == {3, 9}
    assert {seed for _, _, seed in kinds(planned("bias.num_samples=5,10", "sweep.seeds=1", one))} == {0}
    whole = planned("bias.num_samples=5.0,1e1", "sweep.seeds=1", one)
    assert [member.num_samples for member in whole.members] == [5, 10]


def test_how_many_seeds_and_which_baselines_do_not_change_a_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few, many = (
        planned("bias.num_samples=5,10", "sweep.baselines=[]", f"sweep.seeds={count}").members[0] for count in (1, 3)
    )
    assert compose.config_hash(few.config) == compose.config_hash(many.config)


def test_settings_of_the_draws_are_dropped_from_baselines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["bias.sampler=iid,stratified", "bias.sigma=[32]", "bias.rope=drop", "train.steps=7", "final.before=true"]
    made = planned("bias.num_samples=5,10", *given, "sweep.seeds=1", "sweep.baselines=[alibi,window,fixed_blocks]")
    assert [(one.bias, dict(one.setting)) for one in made.members if one.num_samples != 10] == [
        ("plsh", {"bias.sampler": "iid"}),
        ("plsh", {"bias.sampler": "stratified"}),
        ("alibi", {}),
        ("window", {}),
        ("fixed_blocks", {}),
    ]
    for member in made.members:
        assert member.config.bias.sigma == [32]
        assert member.config.bias.rope == "drop"
        assert member.config.train.steps == 7
        assert member.config.final.before is True


def test_a_preset_for_draws_leaves_its_baselines_whole(tmp_path, monkeypatch):
    """It sets bias.num_samples, which exact ALiBi does not have."""
    monkeypatch.chdir(tmp_path)
    made = planned("bias.num_samples=15,20", "experiment=paper_finetune_mistral", "sweep.seeds=1")
    assert [member.refused for member in made.members] == [None] * 4
    assert [member.config.bias.name for member in made.members] == ["plsh", "plsh", "alibi", "fixed_blocks"]
    assert {member.config.model.name for member in made.members} == {"mistral_7b"}
    assert {member.config.train.context for member in made.members} == {4096}


def test_what_else_is_swept_has_baselines_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = planned("bias.num_samples=5,10", "train.learning_rate=0.1,0.2", "sweep.seeds=1", "sweep.baselines=[alibi]")
    assert [one.setting for one in made.members if one.bias == "alibi"] == [
        (("train.learning_rate", "0.1"),),
        (("train.learning_rate", "0.2"),),
    ]


def test_other_sweeps_are_left_to_hydra(plsh, trained, tmp_path):
    assert finetune_sweep.plan(["seed=0,1"], None) is None
    assert finetune_sweep.plan(["bias.num_samples=5"], None) is None
    assert finetune_sweep.plan(["bias.num_samples=5,10", "hydra/sweeper=mine"], None) is None
    done = plsh("finetune", "-m", "seed=0,1", *QUIET)
    assert done.code == 0
    assert "sweep of 2 jobs: 2 done" in done.text
    assert len(trained) == 2
    assert all(config.final.before for config in trained)
    assert not list(tmp_path.glob("runs/sweeps/*/summary.json"))
    assert "--dry-run shows one run" in plsh("finetune", "-m", "seed=0,1", "--dry-run", *QUIET).text


def test_a_sweep_ends_in_a_table_and_a_figure(plsh, trained, tmp_path):
    done = plsh(*SWEEP)
    assert done.code == 0, done.text
    assert "a sweep over s of 12 jobs: s = 5, 10; seeds 0, 1, 2; the same seeds under alibi, fixed blocks" in done.text
    assert "0 of them are there already, 12 to run" in done.text
    assert "sweep of 12 jobs: 12 done, 0 skipped, 0 failed" in done.text
    folder = tmp_path / folder_of(done)
    names = {file.name for file in folder.iterdir()}
    assert {"perplexity_against_s.png", "perplexity_against_s.svg", "rows.csv", "summary.json", "sweep.json"} <= names
    with open(folder / "rows.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(one["bias"], one["num_samples"], one["n"]) for one in rows] == [
        *(("plsh", s, n) for s in ("5", "10") for n in ("256", "512")),
        *((bias, "", n) for bias in ("alibi", "fixed_blocks") for n in ("256", "512")),
    ]
    assert float(rows[0]["perplexity"]) == pytest.approx(29.0)
    assert float(rows[0]["over_alibi"]) == pytest.approx(8.0)
    assert float(rows[0]["over_alibi_ci95"]) == pytest.approx(0.0, abs=1e-9)
    record = record_of(tmp_path, done)
    assert len(record["summary"]["runs"]) == 12
    assert record["summary"]["failed"] == []
    assert "over exact ALiBi" in done.text


def test_the_jobs_are_those_that_hydra_makes(plsh, trained, tmp_path):
    """Also with a preset whose settings of draws baselines do not have."""
    preset = tmp_path / "mine" / "experiment" / "draws.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\nbias:\n  merge: mean\n  pitch: integer\n", encoding="utf-8")
    words = ["bias.num_samples=5,10", "bias.sampler=iid,stratified", "name=a.b", "experiment=draws", *QUIET]
    made = finetune_sweep.plan(words, preset.parent.parent)
    done = plsh("finetune", "-m", "--config-dir", "mine", *words)
    assert done.code == 0, done.text
    assert [config.bias.merge for config in trained if config.bias.name == "plsh"] == ["mean"] * 12
    assert sum(config.bias.name != "plsh" for config in trained) == 6
    jobs = json.loads((tmp_path / folder_of(done) / "sweep.json").read_text())["jobs"]
    assert [job["overrides"] for job in jobs] == [member.overrides for member in made.members]


def test_a_repeated_sweep_runs_nothing_and_draws_again(plsh, trained):
    first = plsh(*SWEEP)
    again = plsh(*SWEEP)
    assert again.code == 0
    assert "12 of them are there already, 0 to run" in again.text
    assert "0 done, 12 skipped, 0 failed" in again.text
    assert len(trained) == 12
    assert folder_of(first) != folder_of(again)
    more = plsh(*(word.replace("5,10", "5,10,20") for word in SWEEP))
    assert "12 of them are there already, 3 to run" in more.text
    assert len(trained) == 15


def test_a_failed_job_leaves_its_cell_missing(plsh, trained, tmp_path):
    trained.broken = {("plsh", 10, 1), ("fixed_blocks", None, 0), ("fixed_blocks", None, 1), ("fixed_blocks", None, 2)}
    done = plsh(*SWEEP)
    assert done.code == 1
    assert "8 done, 0 skipped, 4 failed" in done.text
    assert "(2 of 3)" in done.text
    assert "fixed blocks is missing: its jobs failed" in done.text
    assert (tmp_path / folder_of(done) / "perplexity_against_s.png").exists()
    rows = {(row["bias"], row["num_samples"], row["n"]): row for row in record_of(tmp_path, done)["rows"]}
    assert (rows["plsh", 10, 256]["seeds"], rows["plsh", 10, 256]["over_alibi_seeds"]) == (2, 2)
    assert rows["fixed_blocks", None, 256]["perplexity"] is None
    trained.broken = set()
    again = plsh(*SWEEP)
    assert again.code == 0
    assert "8 of them are there already, 4 to run" in again.text
    assert "4 done, 8 skipped, 0 failed" in again.text
    assert "missing" not in again.text


def test_values_that_cannot_be_are_said_first(plsh, trained):
    done = plsh("finetune", "-m", "bias.num_samples=0,5", "sweep.seeds=1", *QUIET)
    assert done.code == 1
    assert "1 cannot run: bias.num_samples = 0: must be at least 1" in done.text
    assert "3 done, 0 skipped, 1 failed" in done.text
    assert {config.bias.name for config in trained} == {"plsh", "alibi", "fixed_blocks"}
    none = plsh("finetune", "-m", "bias.num_samples=0,-1", *QUIET)
    assert none.code == 2
    assert "bias.num_samples = 0" in none.text


def test_nothing_to_compare_where_all_jobs_fail(plsh, trained, tmp_path):
    trained.broken = {(bias, s, 0) for bias, s in (("plsh", 5), ("plsh", 10), ("alibi", None), ("fixed_blocks", None))}
    done = plsh(*SWEEP, "sweep.seeds=1")
    assert done.code == 1
    assert "no job is there: nothing to compare" in done.text
    assert not list(tmp_path.glob("runs/sweeps/*/*.png"))


def test_without_baselines_the_table_and_figure_say_so(plsh, trained):
    done = plsh(*SWEEP, "sweep.baselines=[]", "sweep.seeds=1")
    assert done.code == 0
    assert "no baselines (sweep.baselines is empty)" in done.text
    assert "exact ALiBi is missing: not asked for" in done.text
    assert "one seed, so no intervals" in done.text
    assert len(trained) == 2


def test_a_dry_run_prints_the_plan_only(plsh, trained, tmp_path):
    assert plsh(*SWEEP[:2], "bias.num_samples=5,10", "sweep.seeds=1", *QUIET).code == 0
    count = len(list(tmp_path.rglob("*")))
    done = plsh(*SWEEP, "--dry-run")
    assert done.code == 0
    assert "4 of them are there already, 8 to run" in done.text
    lines = [line.split() for line in done.out.splitlines()]
    assert sum(line[:1] == ["there"] for line in lines) == 4
    assert sum(line[:2] == ["to", "run"] for line in lines) == 8
    assert "# memory: little" in done.text
    assert "# time: short" in done.text
    assert len(list(tmp_path.rglob("*"))) == count
    assert len(trained) == 4


def test_the_flag_sweeps_too(plsh, trained):
    done = plsh("finetune", "-m", "--s", "5,10", "sweep.seeds=1", "--dry-run", *QUIET)
    assert "a sweep over s of 4 jobs: s = 5, 10; seed 0;" in done.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["baselines=[alibi]"], "--baselines belongs to a single run"),
        (["sweep.seeds=1,2"], "sweep.seeds decides which jobs"),
        (["bias=plsh,alibi"], "bias: only bias=plsh has draws to sweep over"),
    ],
)
def test_what_does_not_go_with_a_sweep_over_s(plsh, trained, tmp_path, words, message):
    done = plsh(*SWEEP, *words)
    assert done.code == 2
    assert message in done.text
    assert not (tmp_path / "runs").exists()


def test_real_jobs_run_side_by_side_through_hydras_joblib_launcher(tmp_path):
    """At toy size; the rows are those of the runs, paired with exact ALiBi."""
    for name, fill in (("base", save_model), ("texts", write_corpus)):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    words = ["finetune", "-m", "bias.num_samples=2,3", "sweep.seeds=1", "sweep.baselines=[alibi]", *QUIET]
    words += ["model.path=base", "data=text", "data.path=texts", "train.context=31", "train.steps=2", "train.threads=1"]
    words += ["train.eval_every=null", "train.save_every=null", "train.best=false", "train.heldout=0.3"]
    words += ["final.max_tokens=200", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = subprocess.run(
        [sys.executable, "-m", "plsh_cli", *words],
        cwd=tmp_path,
        env={**os.environ, "PLSH_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 done, 0 skipped, 0 failed" in done.stdout
    (summary,) = tmp_path.glob("runs/sweeps/*/summary.json")
    rows = json.loads(summary.read_text())["rows"]
    assert [(row["bias"], row["num_samples"], row["n"]) for row in rows] == [
        *(("plsh", s, n) for s in (2, 3) for n in (31, 62)),
        *(("alibi", None, n) for n in (31, 62)),
    ]
    alibi = {row["n"]: row["perplexity"] for row in rows if row["bias"] == "alibi"}
    for one in rows[:4]:
        assert one["over_alibi"] == pytest.approx(one["perplexity"] - alibi[one["n"]])
        assert one["over_alibi"] != 0
    assert list(summary.parent.glob("perplexity_against_s.png"))
