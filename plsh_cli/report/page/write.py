"""Writes the report: which runs, in which format, into which file."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from plsh_cli import rundir
from plsh_cli.errors import MessageError, UserError
from plsh_cli.report import library
from plsh_cli.report.library import Record
from plsh_cli.report.page import html, markdown, rows
from plsh_cli.report.page.content import gather

FORMATS = ("html", "md", "csv")
REMAINS_AFTER_SECONDS = 3600  # an unfinished page that old was left by a killed report, not one that still writes


def write(names: Sequence[str], out: Path, format_: str | None, to: Path | None) -> list[str]:
    """Write the report over these runs, or over all under `out`; lines that say what was written.

    format_: html, md or csv; None: as the ending of `to` says, otherwise html.

    Raises UserError or MessageError for an unknown format or run, a folder that is not there, and a file that cannot
    be written.
    """
    ending = to.suffix[1:].lower() if to is not None else ""
    format_ = format_ or (ending if ending in FORMATS else FORMATS[0])
    if format_ not in FORMATS:
        raise UserError("--format", format_, f"must be one of {', '.join(FORMATS)}")
    target = to if to is not None else out / f"report.{format_}"
    with _written(target):
        _check(target)
    records = _chosen(names, out)
    if format_ == "csv":
        pieces: Iterable[str] = rows.table(records)
    else:
        content = gather(records, bool(names), () if names else library.scales(out))
        base = Path(f"report.{format_}") if is_stream(target) else target  # what links start from
        pieces = html.page(content, base) if format_ == "html" else markdown.page(content, base)
    try:
        with _written(target):
            size = _into(target, pieces) if is_stream(target) else _whole(Path(os.path.realpath(target)), pieces)
    except BrokenPipeError:
        return [f"report: who read {target} has gone"]
    states = {state: sum(one.state == state for one in records) for state in (*rundir.STATES, "foreign")}
    counts = ", ".join(f"{number} {state}" for state, number in states.items() if number) or "no runs yet"
    return [f"report: {target} ({counts}; {size / 1e6:.1f} MB)"]


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
    direct = Path(os.path.expanduser(name))
    if direct.is_dir() and (direct.name != name or not (out / name).is_dir()):
        return direct
    sweeps = [path.parent for path in sorted(out.glob(f"{library.SWEEPS}/*/summary.json")) if name in path.parent.name]
    try:
        return rundir.find(name, str(out)).path
    except MessageError:
        if len(sweeps) == 1:
            return sweeps[0]
        raise


@contextmanager
def _written(target: Path) -> Iterator[None]:
    """What the system refuses in the body is said of this file, as UserError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError("--to", str(target), f"cannot be written ({error.strerror or error})") from None


def _check(target: Path) -> None:
    """Raise UserError where this is there and is neither a file nor something to write into."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise UserError("--to", str(target), "is a folder; give the file to write")
    if not stat.S_ISREG(mode) and not is_stream(target):
        raise UserError("--to", str(target), "is neither a file nor a pipe; give the file to write")


def is_stream(target: Path) -> bool:
    """Whether this is a pipe or a character device, such as /dev/stdout: something that is written into."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _into(target: Path, pieces: Iterable[str]) -> int:
    """Write into a pipe or device, which keeps its place; the bytes written."""
    with open(target, "wb") as handle:
        return _fill(handle, pieces)


def _whole(target: Path, pieces: Iterable[str]) -> int:
    """Write a file whole: into a temporary file beside it, then renamed; the bytes written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_remains(target)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            size = _fill(handle, pieces)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return size


def _fill(handle: IO[bytes], pieces: Iterable[str]) -> int:
    return sum(handle.write(piece.encode("utf-8", errors="replace")) for piece in pieces)


def _remove_remains(target: Path) -> None:
    """Remove the temporary files that killed reports have left beside this file."""
    for path in target.parent.iterdir():
        random_part = path.name.removeprefix(f".{target.name}-")
        if random_part == path.name or len(random_part) != 8 or path.is_symlink() or not path.is_file():
            continue
        if time.time() - path.stat().st_mtime > REMAINS_AFTER_SECONDS:
            path.unlink(missing_ok=True)
