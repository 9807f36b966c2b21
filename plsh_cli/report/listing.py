"""Runs as a list: which are meant, and the table and records that show them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plsh_cli.console import printable
from plsh_cli.errors import MessageError, UserError
from plsh_cli.report import library
from plsh_cli.report.key_metrics import key_metric
from plsh_cli.report.library import REPRODUCTIONS, SWEEPS, Record

STATES = ("done", "failed", "killed", "running", "foreign")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SHOWN = 10  # candidates named where a part of a name fits several runs


@dataclass(frozen=True)
class Wanted:
    """Which runs are meant; None leaves a thing open. name: a part of the run's name or folder. since: UTC, ISO."""

    command: str | None = None
    state: str | None = None
    name: str | None = None
    since: str | None = None

    def fits(self, record: Record) -> bool:
        """Whether a run is one of those."""
        return (
            (self.command is None or record.command == self.command)
            and (self.state is None or record.state == self.state)
            and (self.name is None or self.name in record.name or self.name in record.path.name)
            and (self.since is None or (record.started or "") >= self.since)
        )


def scan(out: str) -> list[Record]:
    """Every record under `out`, newest first; MessageError where that is no folder."""
    folder = Path(os.path.expanduser(out))
    if not folder.is_dir():
        raise MessageError(f"no folder of runs at {out}: run something first, or say where with --out")
    return sorted(library.scan(folder), key=lambda record: (record.started or "", record.path.name), reverse=True)


def wanted(
    command: str | None, state: str | None, name: str | None, since: str | None, commands: Collection[str]
) -> Wanted:
    """What the filters of the command line mean. UserError for a state, an age or a command that is none."""
    if state is not None and state not in STATES:
        raise UserError("--state", state, f"must be one of {', '.join(STATES)}")
    found = None if command is None else command.strip().replace("-", "_").replace(" ", "_")
    if found is not None and found not in commands:
        raise UserError("--command", command, f"must be one of {', '.join(sorted(commands))}")
    return Wanted(found, state, name, None if since is None else moment(since, datetime.now(UTC)))


def moment(since: str, now: datetime) -> str:
    """The time that --since means, UTC, ISO 8601: an age such as 2d or 90m before `now`, or a date (UTC)."""
    age = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", since.strip())
    try:
        if age:
            then = now - timedelta(seconds=float(age[1]) * _SECONDS[age[2]])
        else:
            then = datetime.fromisoformat(since.strip())
            then = then.replace(tzinfo=UTC) if then.tzinfo is None else then.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError("--since", since, "must be an age such as 90m, 12h, 2d or 3w, or a date such as 2026-05-31")  # noqa: B904
    return f"{then.replace(tzinfo=None).isoformat(timespec='seconds')}Z"  # strftime does not fill up years


def find(spec: str, out: str) -> Record:
    """The run that a path, a folder's name or a unique part of one means; MessageError where none or several fit."""
    direct = Path(os.path.expanduser(spec))
    if direct.is_dir() and any((direct / name).is_file() for name in ("config.yaml", "status.json", "summary.json")):
        return library.read(direct)
    root = Path(os.path.expanduser(out))
    if not root.is_dir():
        raise MessageError(f"no run {spec!r}: there is no folder of runs at {out}; say where with --out")
    there = [path for path in root.glob("*/*") if path.is_dir() and not path.name.startswith(".")]
    there = [
        path
        for path in there
        if path.parent.name != REPRODUCTIONS and (path.parent.name != SWEEPS or (path / "summary.json").is_file())
    ]
    fitting = [path for path in there if path.name == spec] or [path for path in there if spec in path.name]
    if len(fitting) == 1:
        return library.read(fitting[0])
    if not fitting or not spec:
        raise MessageError(f"no run {spec!r} under {out}: give its folder or a part of its name; plsh runs lists them")
    names = [str(path) for path in sorted(fitting, key=lambda path: path.name, reverse=True)]
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise MessageError(f"{spec!r} fits {len(names)} runs: {', '.join(names[:_SHOWN])}{more}; give more of the name")


def lines(records: Sequence[Record], now: datetime, width: int) -> list[str]:
    """The list of runs for the terminal: foreign folders apart, and under a run its key metric where it has no room.

    The first column is enough for `plsh show`.
    """
    foreign = [record for record in records if record.state == "foreign"]
    runs = [record for record in records if record.state != "foreign"]
    shorts = _short_names(records)
    cells = [
        [shorts[run.path], run.command, run.name, run.state, age(run.started, now), size(run.size())] for run in runs
    ]
    notes = [note(run) for run in runs]
    table = _aligned([["run", "command", "name", "state", "age", "size"], *cells])
    shown = [f"{table[0]}  key metric, ± half-width of its 95 % interval"] if runs else ["no runs"]
    for text, said in zip(table[1:], notes, strict=True):
        fits = len(text) + 2 + len(said) <= width
        shown += [f"{text}  {said}"] if fits else [text, f"  {said}"]
    shown += ["", "not runs of plsh, or damaged:"] if foreign else []
    return shown + [f"  {one.path}  {size(one.size())}  {one.damage or 'its state is unknown'}" for one in foreign]


def note(record: Record) -> str:
    """A run's key metric, or what is wrong with it; "-" for neither."""
    metric = key_metric(record)
    text = metric.label if metric else record.problem or "-"
    record.forget()
    return " ".join(text.split())


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with columns flush left, ages and sizes flush right."""
    cells = [[printable(" ".join(text.split())) for text in row] for row in cells]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(
            text.rjust(width) if column >= len(row) - 2 else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]


def plain(record: Record) -> dict[str, object]:
    """A run as a flat record of plain values, for JSON. size in bytes; metric null where it has no key number."""
    metric = key_metric(record)
    problem = record.problem
    record.forget()
    return {
        "run": str(record.path),
        "command": record.command,
        "name": record.name,
        "state": record.state,
        "started": record.started,
        "seconds": record.seconds,
        "metric": metric and metric.name,
        "value": metric and metric.value,
        "ci95": metric and metric.half,
        "unit": metric and metric.unit,
        "of": metric and metric.of,
        "config_hash": record.hash,
        "commit": record.commit,
        "problem": problem,
        "size": record.size(),
    }


def _short_names(records: Sequence[Record]) -> dict[Path, str]:
    """The last part of each folder's name where no other's has it, else the whole name."""
    parts = [record.path.name.rpartition("-")[2] for record in records]
    return {
        record.path: part if sum(part in other.path.name for other in records) == 1 else record.path.name
        for record, part in zip(records, parts, strict=True)
    }


def age(started: str | None, now: datetime) -> str:
    """How long ago a time was: "3 min", "5 h", "12 days"; "-" for none."""
    try:
        seconds = (now - datetime.fromisoformat(started or "")).total_seconds()
    except (ValueError, TypeError):
        return "-"
    for limit, unit, text in ((120, 1, "s"), (120 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(0, seconds) // unit:.0f} {text}"
    return f"{seconds // 86400:,.0f} days"


def size(count: float) -> str:
    """A number of bytes as text: "12 KiB", "3.4 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if count >= 10 or unit == "B" else f"{count:,.1f} {unit}"
