"""Finds the run that `resume` means, and makes sure that it is continued under its own configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plsh_cli import ranks, rundir
from plsh_cli.config import compose
from plsh_cli.config.schema import Command
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.errors import MessageError
from plsh_cli.experiments import rerun, train_text
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
    there, still running, finished or of another command, where the configuration differs without resume_force, and,
    whatever is forced, where the files of its text are others now.
    """
    given = {_key(text): text.partition("=")[2].strip("'\"") for text in overrides}
    wanted = given.get("resume", "null")
    if wanted == "null":
        return None
    if wanted == AUTO:
        config = compose.compose(command, list(overrides), extra)
        folder = unfinished(config)
        changed = processes(folder) if folder else []
        if folder and changed and not getattr(config, "resume_force", False):
            raise _refused(folder, changed)
        if folder:
            _check_text(folder, config)
        return Resumption(folder, config, list(overrides), changed) if folder else None
    folder = rundir.find(wanted, given.get("out", "runs"))
    before, old = rerun.load(folder)
    if before.command != command:
        raise MessageError(f"resume: {folder.path} is a run of plsh {before.command}, not of plsh {command}")
    merged = [*(text for text in old if _key(text) not in {*given, *KEYS}), *overrides]
    after = compose.compose(command, merged, extra)
    changed = [*differences(before, after), *processes(folder)]
    _check_fixed(before, after, folder.path.name)
    # The others start while the main process may already have marked the run as running.
    if ranks.main():
        _check_state(folder, bool(changed))
    if changed and not getattr(after, "resume_force", False):
        raise _refused(folder, changed)
    _check_text(folder, after)
    return Resumption(folder, after, merged, changed)


def finished(config: Command) -> RunFolder | None:
    """The newest finished run of this configuration, None where there is none or its text is another now."""
    found = rundir.finished(config.out, config.command.replace("_", "-"), compose.config_hash(config))
    return None if found is None or other_text(found, config) else found


def other_text(folder: RunFolder, config: Command) -> list[str]:
    """What has changed of the files that a run was trained on, one clause each; empty for other commands."""
    return train_text.corpus_changes(folder.path, config) if isinstance(config, TrainingCommand) else []


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


def processes(folder: RunFolder) -> list[str]:
    """How many processes worked on a run and how many would now, as `differences` says it; empty where equal.

    A batch is of all processes, and the place in the data is counted in batches.
    """
    before = (folder.status() or {}).get("processes")
    return [] if before in (None, ranks.count()) else [f"processes: {before} -> {ranks.count()}"]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def overrides_of(config: Command, fixed: Sequence[str]) -> list[str]:
    """The overrides that compose a configuration: `fixed`, and each key in which that alone would differ."""
    start = flat(compose.compose(config.command, list(fixed)).model_dump(mode="json"))
    skipped = {"command", "study", *KEYS}
    wanted = flat(config.model_dump(mode="json"))
    return [*fixed] + [
        f"{key}={compose.value(item)}" for key, item in wanted.items() if key not in skipped and start.get(key) != item
    ]


def _check_fixed(before: Command, after: Command, name: str) -> None:
    """Raise MessageError where a key has changed under which a run is begun for good, such as what it trains."""
    for key in getattr(after, "fixed", ()):
        changed = [line for line in differences(before, after) if line.partition(":")[0].split(".")[0] == key]
        if changed:
            raise MessageError(
                f"resume: {name} was begun with another {key} ({'; '.join(changed)}) and cannot go on with this one, "
                f"whatever is forced: leave it out, or start a new run"
            )


def _check_text(folder: RunFolder, config: Command) -> None:
    changed = other_text(folder, config) if ranks.main() else []
    if changed:
        raise train_text.refused("resume", folder.path.name, changed, "or start a new run")


def _refused(folder: RunFolder, changed: Sequence[str]) -> MessageError:
    return MessageError(
        f"resume: the configuration differs from that of {folder.path.name}: {'; '.join(changed)}. Leave the "
        f"changes out, or add resume_force=true to continue under the new one"
    )


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
