"""Runs one command over all combinations of swept values, through Hydra's own multirun and launchers."""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plsh_cli import console
from plsh_cli.config import check, tables
from plsh_cli.config.compose import hydra_context, parse, search_path
from plsh_cli.errors import MessageError, PlshError
from plsh_cli.experiments import ending, harness, resume
from plsh_cli.rundir import RunFolder


@dataclass(frozen=True)
class Job:
    """How one job of a sweep ended: state is done | skipped | failed."""

    overrides: list[str]
    state: str
    run: str | None
    reason: str | None


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended: its folder and its jobs, in the order of their combinations."""

    folder: RunFolder
    jobs: list[Job]


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of every job, spelled and ordered as Hydra's own sweeper does; those for Hydra itself left out."""
    choices = []
    for override in parse(list(overrides)):
        key = override.get_key_element()
        if override.key_or_group.startswith(("hydra.", "hydra/")):
            continue
        if override.is_sweep_override():
            choices.append([f"{key}={text}" for text in override.sweep_string_iterator()])
        else:
            choices.append([f"{key}={override.get_value_element_as_str()}"])
    return [list(words) for words in itertools.product(*choices)]


def sweep(
    command: str, overrides: Sequence[str], extra: Path | None, parts: Sequence[Sequence[str]] | None = None
) -> Swept:
    """Run every combination; a job that fails stops no other, and one that is already done (config hash) is skipped.

    `overrides` are checked already. parts: the sweep as several, one after the other, whose combinations are run in
    place of those of `overrides`. Writes <out>/sweeps/<time>-<id>/ (sweep.json, and Hydra's multirun.yaml, the last
    part's). Raises MessageError where the combinations cannot be composed at all.
    """
    sweep_id = f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(3)}"
    returned = [job for part in parts or [overrides] for job in _multirun(command, part, extra, sweep_id)]
    jobs = [job.return_value for job in returned]
    folder = RunFolder(Path(returned[0].cfg.out) / "sweeps" / sweep_id)
    folder.write_json(
        "sweep.json", {"command": command, "overrides": list(overrides), "jobs": [vars(job) for job in jobs]}
    )
    return Swept(folder, jobs)


def _multirun(command: str, overrides: Sequence[str], extra: Path | None, sweep_id: str) -> list[Any]:
    """What Hydra returns of every job of one multirun."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    ours = [
        f"hydra.sweep.dir=${{out}}/sweeps/{sweep_id}",
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra.job.chdir=false",
        "hydra/hydra_logging=disabled",
        "hydra/job_logging=disabled",
        *search_path(extra),
    ]
    task = functools.partial(_job, command=command, sweep_id=sweep_id)
    try:
        with ending.terminable(), hydra_context():
            batches = GlobalHydra.instance().hydra.multirun(
                command, task, [*overrides, *ours], with_log_configuration=False
            )
    except (HydraException, OmegaConfBaseException) as error:
        if "hydra/launcher" in str(error):
            raise MessageError("hydra/launcher: not installed; pip install 'plsh-cli[sweep]' brings joblib") from None
        raise MessageError(f"sweep: {' '.join(str(error).split())[:300]}") from None
    except OSError as error:
        raise MessageError(f"out: the sweep's folder cannot be written ({error.strerror}: {error.filename})") from None
    return [job for batch in batches for job in batch]


def show(jobs: Sequence[Job]) -> None:
    """Print one line per job and the counts."""
    for job in jobs:
        reason = f"  {job.reason}" if job.reason else ""
        console.say(f"{job.state:8s}{' '.join(job.overrides)}  {job.run or ''}{reason}")
    counts = {state: sum(job.state == state for job in jobs) for state in ("done", "skipped", "failed")}
    if len(jobs) == 1:
        console.say("one combination only: values to sweep over are given as key=a,b (a flag's list is one value)")
    console.say(f"sweep of {len(jobs)} jobs: {', '.join(f'{count} {state}' for state, count in counts.items())}")


def _job(tree: Any, *, command: str, sweep_id: str) -> Job:
    """One job, never raising an Exception: Hydra would let it end the sweep. Runs in the launcher's process."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    overrides = list(HydraConfig.get().overrides.task)
    run: str | None = None

    def say(text: str) -> None:
        nonlocal run
        run = text.removeprefix("run: ") if text.startswith("run: ") else run
        console.say(text)

    console.say(f"job: {' '.join(overrides)}")
    try:
        plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        if plain["logger"]["group"] is None:
            plain["logger"]["group"] = sweep_id
        config = check.validate(command, tables.inline(plain))
        before = resume.finished(config)
        if before is not None:
            return Job(overrides, "skipped", str(before.path), "done before")
        outcome = harness.execute(config, overrides, say)
        return Job(overrides, "done", str(outcome.folder.path), None)
    except PlshError as error:
        console.say(f"job failed: {error}")
        return Job(overrides, "failed", run, str(error))
    except Exception as error:
        console.say(f"job failed: {type(error).__name__}: {error}")
        return Job(overrides, "failed", run, f"{type(error).__name__}: {error}")
