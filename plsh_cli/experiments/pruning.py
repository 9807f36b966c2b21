"""Deletes the folders of runs that did not end well, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plsh_cli.errors import MessageError, UserError
from plsh_cli.report import library
from plsh_cli.report.library import Record
from plsh_cli.rundir import RunFolder

#: States that a run can be deleted in.
PRUNABLE = ("failed", "killed")


@dataclass(frozen=True)
class Pruned:
    """What became of one folder: why it is kept, or None where it is gone. failed: it could not be deleted whole."""

    record: Record
    kept: str | None
    failed: bool = False


def states(text: str) -> list[str]:
    """The states of `--prune failed,killed`; UserError for any other."""
    found = [part.strip() for part in text.split(",")]
    for state in found:
        if state not in PRUNABLE:
            raise UserError("--prune", text, f"must be {' or '.join(PRUNABLE)}, or both with a comma between them")
    return found


def choose(records: Iterable[Record], wanted: Sequence[str], out: Path) -> list[Record]:
    """The runs that would go: in one of these states, and with a folder that is really under `out`."""
    return [record for record in records if record.state in wanted and protected(record.path, out) is None]


def protected(path: Path, out: Path) -> str | None:
    """Why a folder must not be deleted wherever its run stands: it is no plain folder two levels below `out`."""
    if path.parent.parent != out:
        return f"it is not a run folder of {out}"
    if path.is_symlink() or path.parent.is_symlink():
        return "it is reached through a link"
    if path.resolve().parent.parent != out.resolve():
        return f"it does not lie in {out}"
    return None


def delete(records: Sequence[Record], wanted: Sequence[str], out: Path) -> list[Pruned]:
    """Delete these runs' folders; one that has gone on since it was listed is kept, as is what links point to."""
    return [_delete(record, wanted, out) for record in records]


def _delete(record: Record, wanted: Sequence[str], out: Path) -> Pruned:
    reason = protected(record.path, out)
    if reason is not None:
        return Pruned(record, reason)
    state = library.read(record.path).state
    if state not in wanted:
        return Pruned(record, f"it is {state} now")
    try:
        with RunFolder(record.path).claimed():
            shutil.rmtree(record.path)  # links in it are removed, not followed
    except MessageError as error:
        return Pruned(record, str(error))
    except OSError as error:
        return Pruned(record, f"it cannot be deleted: {error.strerror or error}", failed=True)
    return Pruned(record, None)
