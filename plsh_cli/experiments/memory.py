"""How much memory a run may take, and how much it has taken."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plsh_cli.errors import PlshError

_REFUSED = re.compile(r"can't allocate memory|not enough memory|[Cc]annot allocate memory")


def available_bytes() -> int | None:
    """The bytes that can be allocated without swapping, or None where the system does not say.

    Linux: MemAvailable, lowered to what the control group still grants (containers). Elsewhere: the physical memory.
    """
    found = [value for value in (_mem_available(), _group_available()) if value is not None]
    if found:
        return min(found)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def gibibytes(count: float) -> str:
    """A number of bytes as text in GiB (MiB below 0.1 GiB)."""
    return f"{count / 2**30:,.1f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:,.1f} MiB"


def peak_bytes() -> int:
    """The largest resident memory this process has had."""
    try:
        # Linux: unlike getrusage, this starts anew with exec, so it leaves out what the parent held.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _mem_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(values[0]) * 1024 if values else None


def _group_available() -> int | None:
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Cached files count as used although the kernel drops them on demand.
    used -= int(statistics.get("inactive_file", 0))
    return max(0, int(limit) - used) if limit != "max" else None


@contextmanager
def exhaustion_explained(advice: str) -> Iterator[None]:
    """Within the body, memory that runs out (of the processor or a GPU) is a PlshError that ends with `advice`."""
    try:
        yield
    except Exception as error:
        told = _exhausted(error)
        if told is None:
            raise
        raise PlshError(f"out of memory ({told}): {advice}") from error


def _exhausted(error: BaseException | None) -> str | None:
    """What an error, or one that it comes from, says about memory that ran out; None where it is about something else.

    torch's allocator of the CPU raises a plain RuntimeError; loading wraps whatever it meets.
    """
    while error is not None:
        kind, text = type(error).__name__, " ".join(str(error).split())
        if isinstance(error, MemoryError) or kind == "OutOfMemoryError" or _REFUSED.search(text):
            found = re.search(r"[Tt]ried to allocate (\d[\d.,]* ?\w+)", text)
            return f"{found[1]} more could not be had" if found else "no more could be had"
        error = error.__cause__ or error.__context__
    return None
