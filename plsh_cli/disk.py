"""Whether a write failed because the disk is full, which libraries say in words of their own."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

#: Less than this is as good as nothing: what could not be written is larger.
_NOTHING_LEFT = 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def says_full(error: BaseException) -> str:
    """The system's words where an error, or one that it came from, says that a disk or quota is full; "" otherwise."""
    for one in _chain(error):
        for code in _FULL:
            if getattr(one, "errno", None) == code or os.strerror(code) in str(one):
                return os.strerror(code)
    return ""


def reason(error: BaseException, folder: Path) -> str:
    """Why something could not be written into `folder`, in one line: that the disk is full where it is, else the error.

    Call it before anything is deleted there.
    """
    if says := says_full(error):
        return f"the disk is full: {says}"
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = _NOTHING_LEFT
    if free < _NOTHING_LEFT:
        return f"the disk is full: {free:,} bytes are left"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it came from."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__
