"""What a run shows while it works: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console

_PLAIN_SECONDS = 5.0


class Counter(Protocol):
    """Counts finished pieces of work."""

    def advance(self, n: float = 1) -> None: ...


def output() -> Console:
    """The console for results (stdout). Where it is not a terminal it is wide, so that tables keep their columns."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False, soft_wrap=not sys.stdout.isatty())


@contextmanager
def progress(total: float, description: str) -> Iterator[Counter]:
    """A counter shown on stderr with the rate and the time left."""
    if sys.stderr.isatty():
        with _bar(total, description) as counter:
            yield counter
    else:
        yield _Lines(total, description)


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
