"""Writes the report: which runs, in which format, into which file."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from plsh_cli import rundir
from plsh_cli.errors import MessageError, UserError
from plsh_cli.report import library
from plsh_cli.report.library import Record
from plsh_cli.report.page import html, markdown, rows
from plsh_cli.report.page.content import gather

FORMATS = ("html", "md", "csv")
REMAINS_AFTER_SECONDS = 3600  # an unfinished page that old was left by a killed report, not one that still writes


def write(names: Sequence[str], out: Path, format_: str, to: Path | None) -> list[str]:
    """Write the report over these runs, or over all under `out`; lines that say what was written.

    Raises UserError or MessageError for an unknown format or run, a folder that is not there, and a file that cannot
    be written.
    """
    if format_ not in FORMATS:
        raise UserError("--format", format_, f"must be one of {', '.join(FORMATS)}")
    target = to if to is not None else out / f"report.{format_}"
    if target.is_dir():
        raise UserError("--to", str(target), "is a folder; give the file to write")
    records = _chosen(names, out)
    if format_ == "csv":
        pieces: Iterable[str] = rows.table(records)
    else:
        content = gather(records, named=bool(names))
        pieces = html.page(content, target) if format_ == "html" else markdown.page(content, target)
    _whole(target, pieces)
    states = {state: sum(one.state == state for one in records) for state in (*rundir.STATES, "foreign")}
    counts = ", ".join(f"{number} {state}" for state, number in states.items() if number) or "no runs yet"
    return [f"report: {target} ({counts}; {target.stat().st_size / 1e6:.1f} MB)"]


def _chosen(names: Sequence[str], out: Path) -> list[Record]:
    """The records that were asked for, each once, oldest first."""
    if not names:
        if not out.is_dir() and out != Path("runs"):
            raise UserError("--out", str(out), "must be the folder of run folders")
        return library.scan(out)
    found: dict[Path, Record] = {}
    for name in names:
        path = _folder(name, out)
        found.setdefault(path.resolve(), library.read(path))
    return sorted(found.values(), key=lambda record: (record.started or "", record.path.name))


def _folder(name: str, out: Path) -> Path:
    """The folder that a name means: a path, or a part of a run's or sweep's name."""
    direct = Path(name).expanduser()
    if direct.is_dir() and (direct.name != name or not (out / name).is_dir()):
        return direct
    sweeps = [path.parent for path in sorted(out.glob(f"{library.SWEEPS}/*/summary.json")) if name in path.parent.name]
    try:
        return rundir.find(name, str(out)).path
    except MessageError:
        if len(sweeps) == 1:
            return sweeps[0]
        raise


def _whole(target: Path, pieces: Iterable[str]) -> None:
    """Write a text file whole: into a temporary file beside it, then renamed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_remains(target)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    except OSError as error:
        raise UserError("--to", str(target), f"cannot be written ({error.strerror or error})") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as handle:
            handle.writelines(pieces)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UserError("--to", str(target), f"cannot be written ({error.strerror or error})") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _remove_remains(target: Path) -> None:
    """Remove the temporary files that killed reports have left beside this file."""
    for path in target.parent.iterdir():
        random_part = path.name.removeprefix(f".{target.name}-")
        if random_part == path.name or len(random_part) != 8 or path.is_symlink() or not path.is_file():
            continue
        if time.time() - path.stat().st_mtime > REMAINS_AFTER_SECONDS:
            path.unlink(missing_ok=True)
