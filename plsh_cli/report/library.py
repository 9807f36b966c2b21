"""What lies under runs/: one record per run folder, read from its files. Nothing here raises over a bad folder."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from plsh_cli import rundir
from plsh_cli.rundir import RunFolder

SWEEPS = "sweeps"
REPRODUCTIONS = "reproduce"  # logs of plsh reproduce: no runs
_MAX_CONFIG_BYTES = 2_000_000
_MAX_RESULT_BYTES = 200_000_000


@dataclass(frozen=True, eq=False)
class Record:
    """One run folder, or the folder of a sweep that has a table of its own.

    state: done | failed | killed | running | foreign (no run folder of plsh, or one that cannot be read at all).
    started: UTC, ISO 8601, or None. seconds: from its start, or when it was resumed, to its end; None where it has not
    ended. commit: the full git hash or None; dirty: whether the source differed from it. hash: of the configuration.
    damage: what is wrong with the small files; `problem` also looks at result.json.
    """

    path: Path
    command: str
    name: str
    state: str
    started: str | None = None
    seconds: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    commit: str | None = None
    dirty: bool | None = None
    hash: str | None = None
    damage: str | None = None

    @property
    def result(self) -> dict[str, Any]:
        """The content of result.json (command, rows, summary, timing); empty where there is none or it is damaged."""
        return self._read[0]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The result's flat records."""
        rows = self.result.get("rows")
        return rows if isinstance(rows, list) else []

    @property
    def summary(self) -> dict[str, Any]:
        """The result's summary."""
        summary = self.result.get("summary")
        return summary if isinstance(summary, dict) else {}

    @property
    def problem(self) -> str | None:
        """Why the run did not end well, or what is wrong with its files; None where all is in order."""
        return self.damage or (self._read[1] if self.state == "done" else None)

    @property
    def figures(self) -> list[Path]:
        """The SVG files of its figures, and the PNG of those that have no SVG, by name."""
        folder = self.path if self.path.parent.name == SWEEPS else self.path / "figures"
        try:
            files = [file for file in folder.iterdir() if file.suffix in (".svg", ".png") and file.is_file()]
        except OSError:
            return []
        drawn = {file.stem for file in files if file.suffix == ".svg"}
        shown = [file for file in files if file.suffix == ".svg" or file.stem not in drawn]
        return sorted(file for file in shown if not file.name.startswith("."))

    def size(self) -> int:
        """Bytes of all its files; links are counted as links, and files that are gone meanwhile as nothing."""
        total = 0
        for folder, folders, files in os.walk(self.path):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in [*files, *links]:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

    def forget(self) -> None:
        """Let go of result.json, which is read again when it is asked for."""
        self.__dict__.pop("_read", None)

    @cached_property
    def _read(self) -> tuple[dict[str, Any], str | None]:
        file = self.path / ("summary.json" if self.path.parent.name == SWEEPS else "result.json")
        try:
            if not file.is_file():
                return {}, f"{file.name} is missing"
            if file.stat().st_size > _MAX_RESULT_BYTES:
                return {}, f"{file.name} is too large to read"
        except OSError as error:
            return {}, f"{file.name}: {error.strerror}"
        found = rundir.read_json(file)
        if found is None:
            return {}, f"{file.name} cannot be read"
        rows = found.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return {}, f"{file.name} holds no rows"
        return {"summary": {}, "timing": {}, **found, "command": self.command}, None


def scan(out: Path) -> list[Record]:
    """A record of every folder where a run folder belongs, <out>/<command>/<run>/, oldest first.

    Sweeps count where they have a table of their own (summary.json). Empty where `out` is no folder.
    """
    found = []
    for parent in _folders(out):
        if parent.name == REPRODUCTIONS:
            continue
        children = _folders(parent)
        if parent.name == SWEEPS:
            found += [read(child) for child in children if (child / "summary.json").is_file()]
        elif (parent / "config.yaml").is_file() or not children:
            found.append(read(parent))
        else:
            found += [read(child) for child in children]
    return sorted(found, key=lambda record: (record.started or "", record.path.name))


def scales(out: Path) -> list[str]:
    """The sizes of the studies that plsh reproduce has made or begun under `out`."""
    return [folder.name for folder in _folders(out / REPRODUCTIONS)]


def read(path: Path) -> Record:
    """The record of one folder, whatever is in it."""
    try:
        return _read(path)
    except Exception as error:  # nothing that lies in one folder may lose the others
        return Record(path, path.parent.name, path.name, "foreign", damage=f"cannot be read ({type(error).__name__})")


def _read(path: Path) -> Record:
    if path.parent.name == SWEEPS and (path / "summary.json").is_file():
        return _sweep(path)
    status = rundir.read_json(path / "status.json") and RunFolder(path).status()
    config, trouble = _config(path / "config.yaml")
    guess = path.parent.name.replace("-", "_")
    if status is None and not config:
        return Record(path, guess, path.name, "foreign", damage=f"no run folder of plsh ({trouble})")
    status = status or {}
    state = status.get("state")
    if state not in rundir.STATES:
        state, trouble = "foreign", trouble or "status.json is missing or cannot be read"
    reason = status.get("reason") if state in ("failed", "killed") else None
    source = rundir.read_json(path / "git.json") or {}
    return Record(
        path=path,
        command=_text(status.get("command")) or _text(config.get("command")) or guess,
        name=_text(config.get("name")) or path.name,
        state=str(state),
        started=_text(status.get("started")),
        seconds=_seconds(status.get("started"), status.get("ended")),
        config=config,
        overrides=_lines(path / "overrides.txt"),
        commit=_text(source.get("commit")),
        dirty=source.get("dirty") if isinstance(source.get("dirty"), bool) else None,
        hash=_text(status.get("config_hash")),
        damage=trouble or _text(reason),
    )


def _sweep(path: Path) -> Record:
    """A sweep's folder as a record: its jobs are runs with records of their own."""
    told = rundir.read_json(path / "sweep.json") or {}
    found = rundir.read_json(path / "summary.json") or {}
    overrides = told.get("overrides")
    return Record(
        path=path,
        command=_text(found.get("command")) or f"{_text(told.get('command')) or 'unknown'}_sweep",
        name=path.name,
        state="done" if found else "foreign",
        started=_stamp(path.name),
        overrides=[str(line) for line in overrides] if isinstance(overrides, list) else [],
        damage=None if found else "summary.json cannot be read",
    )


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError:
        return []


def _config(file: Path) -> tuple[dict[str, Any], str | None]:
    """config.yaml as plain values, and what is wrong with it."""
    import yaml

    try:
        if not file.is_file():
            return {}, "config.yaml is missing"
        if file.stat().st_size > _MAX_CONFIG_BYTES:
            return {}, "config.yaml is too large to read"
        text = file.read_text(encoding="utf-8")
        if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, _yaml_loader())):
            return {}, "config.yaml repeats parts by reference, which no configuration does"  # they can multiply
        plain = yaml.load(text, _yaml_loader())
    except Exception as error:  # also of yaml's own constructors: KeyError, AttributeError, ...
        return {}, f"config.yaml cannot be read ({type(error).__name__})"
    if not isinstance(plain, dict) or rundir.nested(plain):
        return {}, "config.yaml holds no configuration"
    return {str(key): value for key, value in plain.items()}, None


def _yaml_loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    except (OSError, UnicodeDecodeError):
        return []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _seconds(started: object, ended: object) -> float | None:
    try:
        taken = (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(started))).total_seconds()
    except (ValueError, TypeError):
        return None
    return taken if taken >= 0 else None


def _stamp(name: str) -> str | None:
    """The start that a folder's name begins with, as status.json spells it."""
    try:
        return datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
