"""Repeats a run from its folder and compares the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plsh_cli import rundir
from plsh_cli.config import check, tables
from plsh_cli.config.schema import SCHEMAS, Command
from plsh_cli.errors import MessageError, PlshError
from plsh_cli.rundir import RunFolder


@dataclass(frozen=True)
class Comparison:
    """Whether two runs' rows agree. `difference` is the largest |a-b| / max(|a|, |b|) over numbers, at `where`."""

    equal: bool
    difference: float
    where: str
    mismatches: list[str]

    def __str__(self) -> str:
        if self.equal:
            return "rows are equal to the bit"
        text = (
            f"rows differ: largest relative difference {self.difference:.3g} ({self.where})"
            if self.where
            else "rows differ"
        )
        return text + ("; " + "; ".join(self.mismatches[:5]) if self.mismatches else "")


def load(folder: RunFolder) -> tuple[Command, list[str]]:
    """A run's configuration, validated by this version's schema, and its overrides; MessageError where unreadable."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        plain = OmegaConf.to_container(OmegaConf.load(folder.path / "config.yaml"))
        overrides = (folder.path / "overrides.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise MessageError(f"run {folder.path} cannot be read: {' '.join(str(error).split())}") from None
    command = plain.get("command") if isinstance(plain, dict) else None
    if not isinstance(command, str) or command not in SCHEMAS:
        raise MessageError(f"run {folder.path} is of command {command!r}, which this version does not have")
    try:
        return check.validate(command, tables.inline(plain)), overrides
    except PlshError as error:
        raise MessageError(f"run {folder.path}: its config.yaml does not fit this version: {error}") from None


def check_repeatable(folder: RunFolder) -> None:
    """Raise MessageError for a run of several configurations: no single one gives its rows."""
    earlier = sorted(file.name for file in folder.path.glob("config-*.yaml"))
    if earlier:
        raise MessageError(
            f"run {folder.path} was continued under another configuration (resume_force=true; the earlier ones: "
            f"{', '.join(earlier)}): it cannot be repeated in one go"
        )


def finished_rows(folder: RunFolder) -> list[dict[str, object]] | None:
    """A finished run's rows; None where it has none, or none that can be read."""
    status, result = folder.status() or {}, rundir.read_json(folder.path / "result.json")
    rows = (result or {}).get("rows")
    if status.get("state") != "done" or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return None
    return rows


def compare(before: Sequence[Mapping[str, object]], after: Sequence[Mapping[str, object]]) -> Comparison:
    """Compare rows as they stand in result.json: every field, to the bit, lists element by element."""
    mismatches = [] if len(before) == len(after) else [f"{len(before)} rows before, {len(after)} now"]
    worst, where = 0.0, ""
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        for key in [*old, *(key for key in new if key not in old)]:
            difference = _difference(old.get(key), new.get(key))
            if difference is None:
                mismatches.append(f"row {index} {key}: {old.get(key)!r} before, {new.get(key)!r} now")
            elif difference > worst:
                worst, where = difference, f"row {index}, {key}"
    return Comparison(not mismatches and worst == 0.0, worst, where, mismatches)


def _difference(old: object, new: object) -> float | None:
    """The relative difference of two values; None where they are not comparable numbers and not equal."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = [_difference(a, b) for a, b in zip(old, new, strict=True)]
        return (
            None
            if any(part is None for part in parts)
            else max((part for part in parts if part is not None), default=0.0)
        )
    if old == new and type(old) is type(new):
        return 0.0
    if type(old) is not type(new) or not isinstance(old, (int, float)) or isinstance(old, bool):
        return None
    assert isinstance(new, (int, float))
    if not math.isfinite(old) or not math.isfinite(new):
        return None
    return abs(old - new) / max(abs(old), abs(new))


def why(before: RunFolder, after: RunFolder) -> str:
    """What differs between the two runs' machines, versions and sources, as a clause for a message."""
    old, new = (rundir.read_json(folder.path / "env.json") or {} for folder in (before, after))
    differing = [
        key for key in ("python", "platform", "processor", "cores", "variables") if old.get(key) != new.get(key)
    ]
    packages = [old.get("packages") or {}, new.get("packages") or {}]
    differing += [
        f"{name} {packages[0].get(name)} -> {version}"
        for name, version in packages[1].items()
        if version != packages[0].get(name)
    ]
    sources = [rundir.read_json(folder.path / "git.json") or {} for folder in (before, after)]
    if any(sources[0].get(key) != sources[1].get(key) for key in ("commit", "diff")):
        differing.append("source")
    return f"; what changed since: {', '.join(differing)}" if differing else "; same machine, versions and source"
