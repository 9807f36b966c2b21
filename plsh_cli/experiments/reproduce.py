"""`plsh reproduce`: a whole study, one command after the other, and the report at its end.

Every step is a `plsh` command in a process of its own, whose output is kept in <out>/reproduce/<scale>/. What is done
already is skipped, a failed step stops no other, and the same command again does what is missing. steps.json there has,
by step, command, state (done | failed), code, seconds and log.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from plsh_cli import console, rundir
from plsh_cli.config.scales import Scale
from plsh_cli.errors import MessageError, Terminated
from plsh_cli.experiments import ending, reproduce_plan, reproduce_step
from plsh_cli.experiments.reproduce_plan import DONE, GOES_ON, REFUSED, RUNNING, Order, Planned
from plsh_cli.experiments.train_progress import clock
from plsh_cli.report import library
from plsh_cli.report.key_metrics import key_metric
from plsh_cli.rundir import RunFolder


@dataclass(frozen=True)
class Ended:
    """How a step ended: state is done | skipped | failed, text why or which run."""

    planned: Planned
    state: str
    text: str


def carry_out(order: Order, dry_run: bool) -> bool:
    """Print the plan and, unless it is a dry run, follow it; whether all is done.

    Raises UserError or MessageError where the order is wrong, or another one is being carried out in the same folder.
    """
    scale = reproduce_plan.scale_of(order)
    steps = reproduce_plan.plan(order, scale)
    for line in describe(order, scale, steps):
        console.say(line)
    if dry_run:
        return True
    logs = Path(os.path.expanduser(order.out)) / library.REPRODUCTIONS / order.scale
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with FileLock(logs.parent / ".lock", timeout=0), ending.terminable():
            ended = [_step(order, logs, one, len(steps)) for one in steps]
            trouble = _report(order, logs)
    except (KeyboardInterrupt, Terminated):
        console.note("plsh: stopped; the same command does what is missing")
        raise
    except Timeout:
        raise MessageError(
            f"out: another plsh reproduce works in {order.out}; wait for it, or give another --out"
        ) from None
    except OSError as error:
        raise MessageError(f"out: {logs} cannot be written ({error.strerror or error})") from None
    return _summary(order, ended, trouble, logs)


def describe(order: Order, scale: Scale, steps: Sequence[Planned]) -> list[str]:
    """The plan as lines."""
    done = sum(one.state == DONE for one in steps)
    left = [one.step.minutes for one in steps if one.state != DONE]
    known = sum(minutes for minutes in left if minutes is not None)
    time_left = f"about {clock(60 * known)} left on 2 cores" if left else "nothing left to run"
    unknown = sum(minutes is None for minutes in left)
    lines = [
        f"plsh reproduce --scale {order.scale}: {scale.about}",
        f"{_steps(len(steps))}, {done} done already, {time_left}"
        + (f", and {_steps(unknown)} whose time depends on the machine" if unknown else ""),
    ]
    for one in steps:
        minutes = "" if one.step.minutes is None else f", about {one.step.minutes:g} min"
        needs = f", needs {one.step.needs}" if one.step.needs else ""
        lines.append(f"{one.number:>3}  {one.step.name} ({reproduce_plan.title(one.step)}){minutes}{needs}")
        lines.append(f"     {one.line}")
        lines.append(f"     {one.state}{f': {one.note}' if one.note else ''}")
    lines.append(f"     then the report: plsh {shlex.join(_report_words(order))}")
    return lines


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _step(order: Order, logs: Path, first: Planned, count: int) -> Ended:
    """Do one step, unless it is done by now."""
    one = reproduce_plan.planned(order, first.number, first.step)
    label = f"{one.number}/{count} {one.step.name}"
    if one.state in (DONE, REFUSED, RUNNING):
        ended = Ended(one, "skipped", one.note or "") if one.state == DONE else Ended(one, "failed", _why(one))
        console.say(f"{label}: {'done before' if one.state == DONE else ended.text}")
        _record(logs, one, "done" if one.state == DONE else "failed", None, None)
        return ended
    log = logs / f"{one.step.name}.log"
    console.say(f"{label}: {one.line}{' (goes on)' if one.state == GOES_ON else ''}")

    def tell(seconds: float, last: str) -> None:
        console.say(f"{label}: {clock(seconds)} so far: {last[:100]}")

    begin = time.monotonic()
    code = reproduce_step.run(one.words, log, one.line, tell)
    seconds = time.monotonic() - begin
    _record(logs, one, "failed" if code else "done", code, seconds)
    if code:
        ended = Ended(one, "failed", f"exit code {code}: {reproduce_step.last_line(log)[:300]} (all of it: {log})")
        console.say(f"{label}: failed after {clock(seconds)}, {ended.text}")
        return ended
    after = reproduce_plan.planned(order, first.number, first.step)
    console.say(f"{label}: done in {clock(seconds)}{_key(after)}")
    return Ended(one, "done", after.note or "")


def _why(one: Planned) -> str:
    return f"another process is at it already ({one.note})" if one.state == RUNNING else f"cannot run: {one.note}"


def _key(one: Planned) -> str:
    """The key metric of a step's run, as the end of a sentence."""
    folder = Path(one.note or "")
    if one.state != DONE or not (folder / "config.yaml").is_file():
        return ""
    metric = key_metric(library.read(folder))
    return f"; {metric.label}" if metric else ""


def _record(logs: Path, one: Planned, state: str, code: int | None, seconds: float | None) -> None:
    told = rundir.read_json(logs / "steps.json") or {}
    log = None if seconds is None else str(logs / f"{one.step.name}.log")
    fresh = {"command": one.line, "state": state, "code": code, "seconds": seconds, "log": log, "note": one.note}
    before = told.get(one.step.name)
    if one.state == DONE and isinstance(before, dict) and before.get("state") == "done":
        return  # its time is that of when it ran
    RunFolder(logs).write_json("steps.json", {**told, one.step.name: fresh})


def _report_words(order: Order) -> list[str]:
    return ["report", "--out", order.out, "--to", str(_page(order))]


def _page(order: Order) -> Path:
    return Path(os.path.expanduser(order.out)) / "report.html"


def _report(order: Order, logs: Path) -> str | None:
    """Write the page; what went wrong, or None."""
    words, log = _report_words(order), logs / "report.log"
    console.say("report: all runs on one page")
    code = reproduce_step.run(words, log, f"plsh {shlex.join(words)}", lambda seconds, last: None)
    if code == 0 and _page(order).is_file():
        return None
    return f"the report was not written: exit code {code}: {reproduce_step.last_line(log)[:300]} (all of it: {log})"


def _summary(order: Order, ended: Sequence[Ended], trouble: str | None, logs: Path) -> bool:
    """Say how it ended, and where the page is; whether all is done."""
    count = {state: sum(one.state == state for one in ended) for state in ("done", "skipped", "failed")}
    console.say(
        f"{_steps(len(ended))}: {count['done']} done, {count['skipped']} done before, {count['failed']} failed; "
        f"their output is in {logs}"
    )
    for one in ended:
        if one.state == "failed":
            console.say(f"failed: {one.planned.step.name}: {one.text}")
    if count["failed"] or trouble:
        console.say("the same command again does what is missing")
    console.say(trouble or f"page: {_page(order)}")
    return not count["failed"] and trouble is None
