"""How a run ends: what status.json says of it, and what the one at the terminal is told."""

from __future__ import annotations

import errno
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from plsh_cli import disk
from plsh_cli.errors import PlshError, Terminated
from plsh_cli.rundir import RunFolder
from plsh_cli.tracking import Tracker

_DISK_TROUBLE = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO)


class RunFailed(PlshError):
    """An experiment raised; the traceback is in the run folder's error.txt, where its disk could still be written."""


@contextmanager
def recorded(
    folder: RunFolder, opened: Sequence[Tracker], signals: Sequence[str], sync: list[str | None]
) -> Iterator[None]:
    """Write into status.json how the body ended, and close the tracker that it opened."""
    try:
        yield
        folder.set_status("done")
        sync.append(opened[0].finish(0))
    except BaseException as error:
        # What is said here and what status.json says are the same.
        failure = _explained(error, folder)
        state, reason, code = _ending(failure, signals)
        unexpected = isinstance(failure, Exception) and not isinstance(failure, PlshError)
        if folder.path.is_dir():
            with suppress(OSError):
                folder.set_status(state, reason)
            if unexpected and not signals:
                with suppress(OSError):
                    folder.write_text("error.txt", traceback.format_exc())
        for tracker in opened:
            with suppress(Exception):
                tracker.finish(code)
        if signals:
            raise Terminated from error
        if failure is not error:
            raise failure from error
        if unexpected:
            raise RunFailed(
                f"run {folder.path} failed: {reason}; the traceback is in {folder.path / 'error.txt'}"
            ) from error
        raise


def _explained(error: BaseException, folder: RunFolder) -> BaseException:
    """The error, or in place of one that comes from the run folder's disk, one that says so."""
    if not isinstance(error, Exception) or isinstance(error, PlshError):
        return error
    if not disk.says_full(error) and not (isinstance(error, OSError) and error.errno in _DISK_TROUBLE):
        return error
    name = getattr(error, "filename", None)
    if isinstance(name, str) and not Path(name).absolute().is_relative_to(folder.path.absolute()):
        return error  # another file's trouble, such as a text that may not be read
    why = disk.reason(error, folder.path)
    return RunFailed(f"out: the run folder {folder.path} cannot be written any more ({why})")


def _ending(error: BaseException, signals: Sequence[str]) -> tuple[str, str, int]:
    """State, reason and exit code. A signal counts whatever it turned into on its way (an import makes it an error)."""
    if signals:
        return "killed", f"terminated ({signals[0]})", 143
    if isinstance(error, KeyboardInterrupt):
        return "killed", "interrupted from the keyboard (SIGINT)", 130
    text = " ".join(str(error).split())
    return "failed", text if isinstance(error, PlshError) else f"{type(error).__name__}: {text}", 1


@contextmanager
def terminable() -> Iterator[list[str]]:
    """Within the body SIGTERM and SIGHUP raise Terminated; the list given holds the names of those that came.

    Only in the main thread, which signal handlers belong to.
    """
    came: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number).name)
        raise Terminated

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
