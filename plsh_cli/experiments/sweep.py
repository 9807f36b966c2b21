"""Runs one command over all combinations of swept values, through Hydra's own multirun and launchers."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plsh_cli import console, rundir
from plsh_cli.config import check, tables
from plsh_cli.config.compose import config_hash, hydra_context, search_path
from plsh_cli.errors import MessageError, PlshError
from plsh_cli.experiments import harness
from plsh_cli.rundir import RunFolder


@dataclass(frozen=True)
class Job:
    """How one job of a sweep ended: state is done | skipped | failed."""

    overrides: list[str]
    state: str
    run: str | None
    reason: str | None


def sweep(command: str, overrides: Sequence[str], extra: Path | None) -> list[Job]:
    """Run every combination; a job that fails stops no other, and one that is already done (config hash) is skipped.

    `overrides` are checked already. Writes <out>/sweeps/<time>-<id>/ (Hydra's multirun.yaml, and sweep.json).
    Raises MessageError where the combinations cannot be composed at all.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    sweep_id = f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(3)}"
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
        with harness.terminable(), hydra_context():
            batches = GlobalHydra.instance().hydra.multirun(
                command, task, [*overrides, *ours], with_log_configuration=False
            )
    except (HydraException, OmegaConfBaseException) as error:
        if "hydra/launcher" in str(error):
            raise MessageError("hydra/launcher: not installed; pip install 'plsh-cli[sweep]' brings joblib") from None
        raise MessageError(f"sweep: {' '.join(str(error).split())[:300]}") from None
    except OSError as error:
        raise MessageError(f"out: the sweep's folder cannot be written ({error.strerror}: {error.filename})") from None
    returned = [job for batch in batches for job in batch]
    jobs = [job.return_value for job in returned]
    folder = RunFolder(Path(returned[0].cfg.out) / "sweeps" / sweep_id)
    folder.write_json(
        "sweep.json", {"command": command, "overrides": list(overrides), "jobs": [vars(job) for job in jobs]}
    )
    return jobs


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
        before = rundir.finished(config.out, command.replace("_", "-"), config_hash(config))
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
