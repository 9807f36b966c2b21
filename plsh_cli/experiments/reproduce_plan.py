"""What `plsh reproduce` would do: the steps of a scale, the line of each, and whether it is done already."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plsh_cli import assets, rundir
from plsh_cli.config import check, compose, scales
from plsh_cli.config.scales import Scale, Step
from plsh_cli.config.schema import FLAGS, SCHEMAS, Command
from plsh_cli.errors import MessageError, PlshError, UserError
from plsh_cli.experiments import finetune_sweep, resume, sweep
from plsh_cli.report.sections import SECTIONS

#: States of a step before it runs.
DONE, TO_RUN, GOES_ON, RUNNING, REFUSED = "done", "to run", "goes on", "is running", "cannot run"
_SWEEP = ("--multirun", "-m")
#: Keys that the whole study can be given.
_COMMON = ("seed", "device", "logger")


@dataclass(frozen=True)
class Order:
    """What the user asked for. overrides: of every step, such as device=cuda."""

    scale: str
    only: str | None
    out: str
    config_dir: Path | None
    overrides: list[str]


@dataclass(frozen=True)
class Planned:
    """A step with its place in the plan.

    words: of its command line after `plsh`. note: the run that is there already or goes on, or why it cannot run.
    """

    number: int
    step: Step
    words: list[str]
    state: str
    note: str | None = None

    @property
    def line(self) -> str:
        """The command line."""
        return f"plsh {shlex.join(self.words)}"


@dataclass(frozen=True)
class _Line:
    """A command line, read. command: of SCHEMAS, or None for `plsh fetch`, whose names are the overrides."""

    command: str | None
    overrides: list[str]
    sweep: bool = False
    words: list[str] = field(default_factory=list)


def scale_of(order: Order) -> Scale:
    """The scale that was asked for, with the steps that were; UserError where there is none of that name."""
    if order.config_dir is not None:
        compose.search_path(order.config_dir)
    scale = scales.load(order.scale, order.config_dir)
    for text in order.overrides:
        key = text.partition("=")[0].split(".")[0]
        if "=" not in text or key not in _COMMON:
            raise MessageError(
                f"{text}: of a whole study only {', '.join(_COMMON)} can be set; other keys belong to a step"
            )
    if order.only is None:
        return scale
    wanted, there = [name.strip() for name in order.only.split(",")], [step.name for step in scale.steps]
    for name in wanted:
        if name not in there:
            raise UserError("--only", name, f"must be among the steps {', '.join(there)}")
    return scale.model_copy(update={"steps": [step for step in scale.steps if step.name in wanted]})


def plan(order: Order, scale: Scale) -> list[Planned]:
    """Every step with its state."""
    return [planned(order, number, step) for number, step in enumerate(scale.steps, start=1)]


def planned(order: Order, number: int, step: Step) -> Planned:
    """A step as it stands now; one that is wrong, or that this version cannot run, has the state "cannot run"."""
    words = step.run.split()
    try:
        words = _split(step.run)
        line = _read(order, words)
        words = line.words
        state, note, resumes = _state(order, line)
    except PlshError as error:
        return Planned(number, step, words, REFUSED, str(error))
    return Planned(number, step, [*words, "resume=auto"] if resumes else words, state, note)


def title(step: Step) -> str:
    """The section of the report that a step belongs to, as it is called there."""
    return next((section.title for section in SECTIONS if section.key == step.section), step.section)


def _split(run: str) -> list[str]:
    try:
        words = shlex.split(run)
    except ValueError as error:
        raise MessageError(f"{run!r} cannot be read: {error}") from None
    if not words or not words[0].strip():
        raise MessageError(f"{run!r} names no command")
    return words


def _read(order: Order, words: Sequence[str]) -> _Line:
    """A step's words as a command with overrides, and all the words that it is run with."""
    if words[0] == "fetch":
        return _Line(None, list(words[1:]), words=list(words))
    command, rest = _command(words)
    flags: dict[str, str | None] = {}
    overrides: list[str] = []
    left: Iterator[str] = iter(rest)
    is_sweep = False
    if "RUN" in FLAGS[command] and rest and "=" not in rest[0] and not rest[0].startswith(("-", "~")):
        flags["RUN"] = next(left)
    for word in left:
        name, equals, value = word.partition("=")
        if word in _SWEEP:
            is_sweep = True
        elif word.startswith("--"):
            if name not in FLAGS[command]:
                raise MessageError(f"plsh {check.spelled(command)} has no flag {name} that stands for a key")
            flags[name] = value if equals else next(left, "")
        else:
            overrides.append(word)
    added = [] if order.out == "runs" else ["--out", order.out]
    flags |= {"--out": order.out} if added else {}
    own = {text.partition("=")[0] for text in overrides}
    common = [text for text in order.overrides if text.partition("=")[0] not in own]
    extra = [] if order.config_dir is None else ["--config-dir", str(order.config_dir)]
    every = [*compose.flag_overrides(command, flags), *overrides, *common]
    return _Line(command, every, is_sweep, [*words, *common, *added, *extra])


def _command(words: Sequence[str]) -> tuple[str, list[str]]:
    count = 2 if words[0] == "bench" and len(words) > 1 else 1
    name = "_".join(words[:count]).replace("-", "_")
    if name not in SCHEMAS:
        raise MessageError(f"plsh {' '.join(words[:count])}: this version has no such command")
    return name, list(words[count:])


def _state(order: Order, line: _Line) -> tuple[str, str | None, bool]:
    """State and note of a step, and whether resume=auto belongs to its line."""
    if line.command is None:
        return _fetched(line.overrides)
    if line.sweep:
        return (*_swept(order, line), False)
    config = compose.compose(line.command, line.overrides, order.config_dir)
    # A study's jobs go on by themselves.
    resumes = hasattr(config, "resume") and config.resume is None and getattr(config, "study", None) is None
    return (*_single(config, resumes), resumes)


def _fetched(names: Sequence[str]) -> tuple[str, str | None, bool]:
    for name in names:
        folder = assets.cached_repo(name) if assets.is_hub_id(name) else assets.cached(name)
        if folder is None:
            return TO_RUN, None, False
    return DONE, "in the cache", False


def _single(config: Command, resumes: bool) -> tuple[str, str | None]:
    folder, wanted = config.command.replace("_", "-"), compose.config_hash(config)
    done = rundir.finished(config.out, folder, wanted)
    if done is not None:
        return DONE, str(done.path)
    for run in rundir.every(config.out, folder):
        status = run.status() or {}
        if status.get("config_hash") == wanted and status.get("state") == "running":
            return RUNNING, str(run.path)
    before = resume.unfinished(config) if resumes else None
    return (TO_RUN, None) if before is None else (GOES_ON, str(before.path))


def _swept(order: Order, line: _Line) -> tuple[str, str | None]:
    """A sweep is done where one of the same line ended without a failure and the runs of this version are there."""
    assert line.command is not None
    compose.check_overrides(line.command, line.overrides, order.config_dir, sweep=True)
    every = compose.with_implied(line.command, line.overrides)
    over_s = finetune_sweep.plan(every, order.config_dir) if line.command == finetune_sweep.COMMAND else None
    jobs = [member.overrides for member in over_s.members] if over_s else sweep.expand(every)
    configs = [compose.compose(line.command, words, order.config_dir) for words in jobs]
    states = [_single(config, resumes=False)[0] for config in configs]
    out = Path(os.path.expanduser(configs[0].out))
    for file in sorted(out.glob("sweeps/*/sweep.json"), reverse=True):
        told = rundir.read_json(file) or {}
        if told.get("command") == line.command and told.get("overrides") == every and _all_done(told.get("jobs")):
            if set(states) == {DONE}:
                return DONE, str(file.parent)
            break
    there = states.count(DONE)
    return TO_RUN, f"{there} of its runs are there" if there else None


def _all_done(jobs: object) -> bool:
    """Whether a sweep's jobs all ended well and their runs are still there."""
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        return False
    return all(
        job.get("state") in ("done", "skipped") and (Path(str(job.get("run"))) / "result.json").is_file()
        for job in jobs
    )
