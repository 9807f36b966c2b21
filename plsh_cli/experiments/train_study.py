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


#: The sections that a variant can choose anew, and what it cannot set.
_GROUPS = ("bias", "model", "data")
_OWN = ("seed", "name", "study", "experiment", "resume", "resume_force")


@dataclass(frozen=True)
class Member:
    """One job of a study."""

    variant: str
    seed: int
    config: TrainCommand


def members(cfg: TrainCommand) -> list[Member]:
    """The jobs, all variants of a seed before those of the next.

    Raises UserError for a variant that does not compose, and for settings that variants replace.
    """
    assert cfg.study is not None
    _check_heeded(cfg)
    plain = {variant: _plain(cfg, variant, overrides) for variant, overrides in cfg.study.chosen.items()}
    seeds = range(cfg.seed, cfg.seed + cfg.study.seeds)
    return [Member(variant, seed, _config(plain[variant], seed)) for seed in seeds for variant in plain]


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


def _config(plain: dict[str, Any], seed: int) -> TrainCommand:
    made = check.validate("train", {**plain, "seed": seed})
    assert isinstance(made, TrainCommand)
    return made


def _plain(cfg: TrainCommand, variant: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The study's configuration with a variant's overrides on top; what they say wins, whatever the defaults are."""
    keys = _keys(variant, overrides)
    common = [] if "bias" in keys else [f"bias={cfg.bias.name}"]
    base, settable = compose.load("train", common), compose.load("train", [*common, *overrides])
    plain = cfg.model_dump()
    if cfg.train.sigma is not None and plain["bias"].get("sigma") == [cfg.train.sigma]:
        plain["bias"]["sigma"] = None  # it came from train.sigma, which the variant may set
    for key, value in settable.items():
        if value != base[key]:
            plain[key] = _merged(plain[key], base[key], value)
    for key in keys:
        _set(plain, settable, key.split("."))
    plain |= {"study": None, "name": check_name(variant), "resume": None, "resume_force": False}
    plain["logger"] = {**plain["logger"], "group": plain["logger"]["group"] or cfg.name}
    return plain


def check_overrides(cfg: TrainCommand, overrides: Sequence[str]) -> None:
    """Raise UserError for an override that no variant would heed."""
    assert cfg.study is not None
    replaced = _replaced(cfg)
    for one in compose.parse(list(overrides)):
        group = one.key_or_group.split(".")[0]
        if group in replaced:
            raise _unheeded(one.key_or_group, str(one.get_value_element_as_str()), group, replaced[group])


def _check_heeded(cfg: TrainCommand) -> None:
    """Raise UserError for a setting of a section that a variant replaces, wherever it was set."""
    usual = check.validate("train", compose.load("train", [])).model_dump(mode="json")
    for group, variant in _replaced(cfg).items():
        section = getattr(cfg, group)
        values = section.model_dump(mode="json")
        if section.name != usual[group]["name"]:
            raise _unheeded(group, section.name, group, variant)
        if group == "bias" and cfg.train.sigma is not None and values.get("sigma") == [cfg.train.sigma]:
            values["sigma"] = None  # it came from train.sigma, which holds for all variants
        before = resume.flat(usual[group])
        for key, value in resume.flat(values).items():
            if value != before.get(key):
                raise _unheeded(f"{group}.{key}", value, group, variant)


def _replaced(cfg: TrainCommand) -> dict[str, str]:
    """The sections that a variant chooses anew, each with the first such variant."""
    assert cfg.study is not None
    found: dict[str, str] = {}
    for variant, overrides in cfg.study.chosen.items():
        for group in _GROUPS:
            if group in _keys(variant, overrides):
                found.setdefault(group, variant)
    return found


def _unheeded(key: str, value: object, group: str, variant: str) -> UserError:
    allowed = f"would not hold in the study's variant {variant}, which sets its own {group}; give it in study.variants"
    if key == "bias.sigma":
        allowed += ", or train.sigma for all of them"
    return UserError(key, value, allowed, "study.variants={NAME: [" + f"{group}=..., ...]" + "}")


def _keys(variant: str, overrides: Sequence[str]) -> list[str]:
    """What a variant sets; UserError for what the study sets itself."""
    keys = [one.key_or_group for one in compose.parse(list(overrides))]
    own = [key for key in keys if key.split(".")[0] in _OWN]
    if own:
        raise UserError("study.variants", variant, f"sets {own[0]}, which a study sets itself for all variants")
    return keys


def _set(plain: dict[str, Any], source: dict[str, Any], path: list[str]) -> None:
    """Take over one value of a nested configuration."""
    for part in path[:-1]:
        plain, source = plain[part], source[part]
    if path[-1] in source:
        plain[path[-1]] = source[path[-1]]


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
    groups = [f"{group}={getattr(job.config, group).name}" for group in _GROUPS]
    fixed = [
        *variant,
        *(text for text in groups if text.partition("=")[0] not in {v.partition("=")[0] for v in variant}),
    ]
    return resume.overrides_of(job.config, fixed)


def _finished(job: Member) -> bool:
    return resume.finished(job.config) is not None
