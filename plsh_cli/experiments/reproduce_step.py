"""A step of `plsh reproduce` in processes of its own, which do not outlive the one that started them.

What is started is this module: it runs `plsh ...` and waits for it, and ends it in order when its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from plsh_cli import rundir

_POLL_SECONDS = 0.2
_END_SECONDS = 30.0


def run(words: Sequence[str], log: Path, line: str, tell: Callable[[float, str], None]) -> int:
    """Run `plsh` with these words, its output appended to a log file under a heading; the exit code.

    tell: called now and then with the seconds so far and the last line of the output. Whatever ends this process, or
    is raised in it, ends the step too.
    """
    with open(log, "ab") as output:
        output.write(f"--- {rundir.now()} {line}\n".encode())
        output.flush()
        step = subprocess.Popen(
            [sys.executable, "-m", "plsh_cli.experiments.reproduce_step", *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C reaches this process, which then ends the step in order.
            start_new_session=True,
        )
    begin = told = time.monotonic()
    try:
        while (code := step.poll()) is None:
            time.sleep(_POLL_SECONDS)
            if time.monotonic() - told >= max(60.0, 0.1 * (told - begin)):
                told = time.monotonic()
                tell(told - begin, last_line(log))
        return code
    finally:
        _end(step)


def last_line(log: Path, most: int = 4096) -> str:
    """The last line of a log that is not empty; "" where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - most))
            lines = file.read().decode("utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((text.strip() for text in reversed(lines) if text.strip()), "")


def _end(step: subprocess.Popen[bytes]) -> None:
    """End a step that still runs: in order, and after a while by force."""
    assert step.stdin is not None
    step.stdin.close()
    if step.poll() is not None:
        return
    try:
        step.wait(_END_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(step.pid, signal.SIGKILL)
        step.wait()


def main() -> int:
    """Run `plsh` with the words of this command line; its exit code."""
    work = subprocess.Popen([sys.executable, "-m", "plsh_cli", *sys.argv[1:]], stdin=subprocess.DEVNULL)

    def watch() -> None:
        # Not through sys.stdin, whose lock this thread would hold when the interpreter ends.
        while os.read(0, 4096):
            pass
        work.terminate()

    threading.Thread(target=watch, daemon=True).start()
    code = work.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
