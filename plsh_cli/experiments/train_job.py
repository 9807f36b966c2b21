"""Training runs in processes of their own, several at a time; none of them outlives the one that started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plsh_cli import console, rundir
from plsh_cli.config.schema.train import TrainingCommand

_POLL_SECONDS = 0.2
_TERMINATE_SECONDS = 20.0


@dataclass(frozen=True)
class Job:
    """A run to do: its configuration, the overrides that stand for it, and the file that its output goes to."""

    name: str
    config: TrainingCommand
    overrides: list[str]
    log: Path


@dataclass(frozen=True)
class Ended:
    """How a job ended: state is done | failed; run is its folder, None where it did not get so far."""

    state: str
    run: str | None
    reused: bool
    text: str


class Pool:
    """Runs jobs, so many at a time, in processes that end with this one whatever way it ends."""

    def __init__(self, processes: int) -> None:
        self._most = processes
        self._running: list[tuple[Job, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for _, process in self._running:
            process.terminate()
        deadline = time.monotonic() + _TERMINATE_SECONDS
        for _, process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Ended]]:
        """Yield each job as it ends."""
        waiting = list(jobs)
        while waiting or self._running:
            while waiting and len(self._running) < self._most:
                job = waiting.pop(0)
                self._running.append((job, _start(job)))
            for place, (job, process) in enumerate(self._running):
                if process.poll() is not None:
                    del self._running[place]
                    yield job, _ended(job, process)
                    break
            else:
                time.sleep(_POLL_SECONDS)


def _start(job: Job) -> subprocess.Popen[bytes]:
    answer = job.log.with_suffix(".json")
    answer.unlink(missing_ok=True)
    order = {"config": job.config.model_dump(mode="json"), "overrides": job.overrides, "answer": str(answer.resolve())}
    with open(job.log, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "plsh_cli.experiments.train_job"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Its own group: Ctrl-C reaches this process, which then ends the others in order.
            start_new_session=True,
        )
    assert process.stdin is not None
    # The pipe stays open: its end tells the other process that this one is gone.
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    return process


def _ended(job: Job, process: subprocess.Popen[bytes]) -> Ended:
    assert process.stdin is not None
    process.stdin.close()
    answer = rundir.read_json(job.log.with_suffix(".json")) or {}
    if answer.get("state") == "done":
        reused = bool(answer.get("reused"))
        return Ended("done", answer["run"], reused, "done before" if reused else "done")
    reason = answer.get("reason") or f"it ended with code {process.returncode}"
    return Ended("failed", answer.get("run"), False, f"{reason}; its output is in {job.log}")


def main() -> None:
    """Do the job that comes on the standard input, and write how it ended into the file that it names."""
    console.mend_streams()
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = Path(order["answer"])
    answer.write_text(json.dumps(_do(order)), encoding="utf-8")


def _do(order: dict[str, Any]) -> dict[str, object]:
    from plsh_cli.config import check
    from plsh_cli.errors import PlshError
    from plsh_cli.experiments import harness, resume

    config = check.validate(order["config"]["command"], order["config"])
    before = resume.finished(config)
    if before is not None:
        return {"state": "done", "run": str(before.path.resolve()), "reused": True}
    run: str | None = None

    def say(text: str) -> None:
        nonlocal run
        run = text.removeprefix("run: ").removesuffix(" (resumed)") if text.startswith("run: ") else run
        console.say(text)

    begun = resume.unfinished(config)
    if begun is not None and (resume.processes(begun) or resume.other_text(begun, config)):
        begun = None  # what several processes have begun goes on with several, and on its own text
    try:
        outcome = harness.execute(config, order["overrides"], say, begun)
    except PlshError as error:
        console.say(f"failed: {error}")
        return {"state": "failed", "run": run, "reason": str(error)}
    return {"state": "done", "run": str(outcome.folder.path.resolve()), "reused": False}


def _end_with_parent() -> None:
    """Wait for the end of the standard input, which comes when the process that holds its other end is gone."""
    # Not through sys.stdin, whose lock this thread would hold when the interpreter ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
