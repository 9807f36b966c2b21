"""A study: several variants of one training run, each with several seeds, side by side, and one table of them all.

Every job is a run of its own under runs/train. A finished run of the same configuration is reused and an unfinished one
goes on, so that a study that was stopped can be started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import rundir
from plsh_cli.config import check, compose
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import PlshError, UserError
from plsh_cli.experiments import resume, train_claims, train_plan
from plsh_cli.experiments.result import Result
from plsh_cli.experiments.train_job import Job, Pool
from plsh_cli.experiments.train_progress import clock

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run


@dataclass(frozen=True)
class Member:
    """One job of a study."""

    variant: str
    seed: int
    config: TrainCommand


def members(cfg: TrainCommand) -> list[Member]:
    """The jobs, all variants of a seed before those of the next; UserError for a variant that does not compose."""
    assert cfg.study is not None
    found = []
    for seed in range(cfg.seed, cfg.seed + cfg.study.seeds):
        for variant, overrides in cfg.study.chosen.items():
            found.append(Member(variant, seed, _config(cfg, variant, overrides, seed)))
    return found


def plan(cfg: TrainCommand) -> dict[str, object]:
    """What a study would do. Raises UserError for a variant that cannot run."""
    assert cfg.study is not None
    jobs = members(cfg)
    first = {job.variant: train_plan.plan(job.config) for job in jobs if job.seed == cfg.seed}
    finished = sum(_finished(job) for job in jobs)
    return {
        "jobs": f"{len(jobs)}: {len(cfg.study.chosen)} variants of {cfg.study.seeds} seeds, {cfg.study.processes} at "
        f"a time; {finished} of them are there already",
        **{f"variant {name}": f"{one['bias']}; {one['steps']}" for name, one in first.items()},
        "memory": f"{cfg.study.processes} times {next(iter(first.values()))['memory']}",
    }


def run(cfg: TrainCommand, run: Run) -> Result:
    """Run what is not there yet, then compare. Raises PlshError where jobs failed; the others are kept."""
    assert cfg.study is not None
    jobs, begin = members(cfg), time.perf_counter()
    logs = run.path / "jobs"
    logs.mkdir(exist_ok=True)
    work = [
        Job(f"{job.variant}-{job.seed}", job.config, _overrides(cfg, job), logs / f"{job.variant}-{job.seed}.log")
        for job in jobs
    ]
    failed, paths = [], {}
    with Pool(cfg.study.processes) as pool:
        for number, (job, ended) in enumerate(pool.run(work), start=1):
            took = time.perf_counter() - begin
            left = took / number * (len(jobs) - number)
            run.say(f"{number}/{len(jobs)} {job.name}: {ended.text}; {clock(took)} so far, about {clock(left)} left")
            run.log({"job": job.name, "state": ended.state, "reused": ended.reused, "run": ended.run or ""})
            if ended.run is None or ended.state != "done":
                failed.append(f"{job.name}: {ended.text}")
            else:
                paths[job.name] = ended.run
    if failed:
        raise PlshError(f"{len(failed)} of {len(jobs)} runs failed ({'; '.join(failed)[:500]}); the others are kept")
    return _result(cfg, jobs, paths, time.perf_counter() - begin)


def _result(cfg: TrainCommand, jobs: Sequence[Member], paths: dict[str, str], seconds: float) -> Result:
    results = []
    for job in jobs:
        path = paths[f"{job.variant}-{job.seed}"]
        record = rundir.read_json(Path(path) / "result.json") or {}
        results += [{"variant": job.variant, "seed": job.seed, "run": path, **row} for row in record["rows"]]
    rows = train_claims.rows(results, list(cfg.study.chosen) if cfg.study else [])
    summary = {
        "kind": "study",
        "model": cfg.model.name,
        "context": cfg.train.context,
        "steps": cfg.train.steps,
        "tokens_per_step": train_plan.tokens_per_step(cfg),
        "data": cfg.data.name,
        "seeds": cfg.study.seeds if cfg.study else 0,
        "seed_first": cfg.seed,
        "claims": train_claims.claims(results, cfg.train.context),
        "runs": paths,
    }
    return Result(rows, summary, {"study_seconds": seconds})


def _config(cfg: TrainCommand, variant: str, overrides: Sequence[str], seed: int) -> TrainCommand:
    """The study's configuration with a variant's overrides in place of its bias."""
    settable = compose.load("train", [*overrides])
    plain = cfg.model_dump()
    base = compose.load("train", [])
    for key, value in settable.items():
        if value != base[key]:
            plain[key] = _merged(plain[key], base[key], value)
    plain["bias"] = settable["bias"]
    plain |= {"study": None, "seed": seed, "name": check_name(variant), "resume": None, "resume_force": False}
    plain["logger"] = {**plain["logger"], "group": plain["logger"]["group"] or cfg.name}
    made = check.validate("train", plain)
    assert isinstance(made, TrainCommand)
    return made


def check_name(variant: str) -> str:
    """The variant's name as part of a folder's; UserError where it cannot be one."""
    if not variant.replace("_", "").replace("-", "").replace(".", "").isalnum():
        raise UserError("study.variants", variant, "a variant's name has letters, digits, dots, dashes and underscores")
    return variant


def _merged(mine: Any, base: Any, changed: Any) -> Any:
    """`mine` with what `changed` has different from `base`."""
    if not (isinstance(mine, dict) and isinstance(base, dict) and isinstance(changed, dict)):
        return changed
    keys = [key for key in changed if changed[key] != base.get(key)]
    return {**mine, **{key: _merged(mine.get(key), base.get(key), changed[key]) for key in keys}}


def _overrides(cfg: TrainCommand, job: Member) -> list[str]:
    """The overrides that compose the job's configuration on their own: the variant's, and what else differs."""
    assert cfg.study is not None
    variant = list(cfg.study.variants[job.variant])
    groups = [f"{group}={getattr(job.config, group).name}" for group in ("model", "data")]
    fixed = [
        *variant,
        *(text for text in groups if text.partition("=")[0] not in {v.partition("=")[0] for v in variant}),
    ]
    start = resume.flat(compose.compose("train", fixed).model_dump(mode="json"))
    skipped = {"command", "study", *resume.KEYS}
    wanted = resume.flat(job.config.model_dump(mode="json"))
    return fixed + [
        f"{key}={compose.value(item)}" for key, item in wanted.items() if key not in skipped and start.get(key) != item
    ]


def _finished(job: Member) -> bool:
    return rundir.finished(job.config.out, "train", compose.config_hash(job.config)) is not None
