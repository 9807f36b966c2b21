"""What a run shows while it works: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_SECONDS = 5.0
# All but line ends and tabs that a terminal obeys: C0, C1, and what turns the direction of text.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Counter(Protocol):
    """Counts finished pieces of work."""

    def advance(self, n: float = 1) -> None: ...


def output() -> Console:
    """The console for results (stdout), without markup. No terminal: wide, so that tables keep their columns."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 140
    return Console(width=width, highlight=False, markup=False, soft_wrap=width is not None)


def printable(text: str) -> str:
    """The text with what a terminal would obey written out, such as \\x1b: names and messages may be anybody's."""
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def say(text: str = "") -> None:
    """Print a line at once. A reader that has gone away (a closed pipe) does not end the run."""
    with whole_run():
        print(printable(text), flush=True)


def note(text: str) -> None:
    """Print a line to stderr: a remark beside the results, or an error."""
    print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def whole_run() -> Iterator[None]:
    """Printing in the body survives a closed pipe: what follows goes nowhere."""
    try:
        yield
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def mend_streams() -> None:
    """Give every standard stream that is closed, or cannot write all characters, something that works."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


@contextmanager
def progress(total: float, description: str) -> Iterator[Counter]:
    """A counter shown on stderr with the rate and the time left."""
    if sys.stderr.isatty():
        with _bar(total, description) as counter:
            yield counter
    else:
        yield _Lines(total, description)


class Steps(Protocol):
    """Shows how far a run has come."""

    def show(self, done: int, note: str) -> None: ...


@contextmanager
def steps(total: int, done: int, description: str) -> Iterator[Steps]:
    """A display of steps on stderr, each with a note such as its loss; `done` of them lie behind already."""
    if sys.stderr.isatty():
        with _steps_bar(total, done, description) as bar:
            yield bar
    else:
        yield _StepLines(total, description)


class _StepLines:
    """A line every few seconds, ever more rarely in a long run, and one for the last step."""

    def __init__(self, total: int, description: str) -> None:
        self._total, self._description = total, description
        self._begin = self._last = time.monotonic()

    def show(self, done: int, note: str) -> None:
        moment = time.monotonic()
        pause = max(_PLAIN_SECONDS, 0.05 * (moment - self._begin))
        if done > 1 and done < self._total and moment - self._last < pause:
            return
        self._last = moment
        print(f"{self._description}: step {done}/{self._total}, {note}", file=sys.stderr, flush=True)


@contextmanager
def _steps_bar(total: int, done: int, description: str) -> Iterator[Steps]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task(description, total=total, completed=done, note="")

        class Bar:
            def show(self, done: int, note: str) -> None:
                bar.update(task, completed=done, note=note)

        yield Bar()


class _Lines:
    def __init__(self, total: float, description: str) -> None:
        self._total, self._description = total, description
        self._done, self._begin = 0.0, time.monotonic()
        self._last = self._begin

    def advance(self, n: float = 1) -> None:
        self._done += n
        moment = time.monotonic()
        pause = max(_PLAIN_SECONDS, 0.05 * (moment - self._begin))
        if moment - self._last < pause and self._done < self._total:
            return
        self._last = moment
        rate = self._done / max(moment - self._begin, 1e-9)
        left = max(self._total - self._done, 0) / rate if rate else 0.0
        print(
            f"{self._description}: {self._done:g}/{self._total:g}, {rate:.3g}/s, {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def _bar(total: float, description: str) -> Iterator[Counter]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:.3g}/s" if speed else "-/s")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=total)

        class Bar:
            def advance(self, n: float = 1) -> None:
                bar.advance(task, n)

        yield Bar()
