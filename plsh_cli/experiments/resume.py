"""Finds the run that `resume` means, and makes sure that it is continued under its own configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plsh_cli import ranks, rundir
from plsh_cli.config import compose
from plsh_cli.config.schema import Command
from plsh_cli.errors import MessageError
from plsh_cli.experiments import rerun
from plsh_cli.rundir import RunFolder

AUTO = "auto"
#: Keys that say how to resume; they are no part of what is resumed.
KEYS = ("resume", "resume_force")


@dataclass(frozen=True)
class Resumption:
    """A run to continue, the configuration to continue it under, and what differs from before ("key: old -> new")."""

    folder: RunFolder
    config: Command
    overrides: list[str]
    differences: list[str]


def find(command: str, overrides: Sequence[str], extra: Path | None) -> Resumption | None:
    """The run that an override `resume=` means; None without one, and where `auto` finds none to continue.

    The overrides of that run hold where none is given for the same key. Raises MessageError for a run that is not
    there, still running, finished or of another command, and where the configuration differs without resume_force.
    """
    given = {_key(text): text.partition("=")[2].strip("'\"") for text in overrides}
    wanted = given.get("resume", "null")
    if wanted == "null":
        return None
    if wanted == AUTO:
        config = compose.compose(command, list(overrides), extra)
        folder = unfinished(config)
        return Resumption(folder, config, list(overrides), []) if folder else None
    folder = rundir.find(wanted, given.get("out", "runs"))
    before, old = rerun.load(folder)
    if before.command != command:
        raise MessageError(f"resume: {folder.path} is a run of plsh {before.command}, not of plsh {command}")
    merged = [*(text for text in old if _key(text) not in {*given, *KEYS}), *overrides]
    after = compose.compose(command, merged, extra)
    changed = differences(before, after)
    # The others start while the main process may already have marked the run as running.
    if ranks.main():
        _check_state(folder, bool(changed))
    if changed and not getattr(after, "resume_force", False):
        raise MessageError(
            f"resume: the configuration differs from that of {folder.path.name}: {'; '.join(changed)}. Leave the "
            f"changes out, or add resume_force=true to continue under the new one"
        )
    return Resumption(folder, after, merged, changed)


def unfinished(config: Command) -> RunFolder | None:
    """The latest run of this configuration that was killed or failed, None where the latest one is finished."""
    wanted = compose.config_hash(config)
    for run in reversed(list(rundir.every(config.out, config.command.replace("_", "-")))):
        status = run.status() or {}
        if status.get("config_hash") == wanted and status.get("state") != "running":
            return None if status.get("state") == "done" else run
    return None


def differences(before: Command, after: Command) -> list[str]:
    """Every key whose value differs, as "key: old -> new", without those that decide no number."""
    old, new = (flat(one.model_dump(mode="json", exclude=set(compose.NOT_SCIENCE))) for one in (before, after))
    keys = list(dict.fromkeys([*old, *new]))
    return [f"{key}: {old.get(key, '-')} -> {new.get(key, '-')}" for key in keys if old.get(key) != new.get(key)]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _check_state(folder: RunFolder, changed: bool) -> None:
    state = (folder.status() or {}).get("state")
    if state == "running":
        raise MessageError(f"resume: {folder.path.name} is still running; stop it first")
    if state == "done" and not changed:
        raise MessageError(
            f"resume: {folder.path.name} is finished; to train it further give more steps (train.steps=...) and "
            f"resume_force=true"
        )


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
