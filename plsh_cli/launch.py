"""From a parsed command line to a run: compose, call one function, map errors to exit codes."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from plsh_cli import console, ranks
from plsh_cli.errors import MessageError, PlshError, Terminated

if TYPE_CHECKING:
    from plsh_cli.config.schema import Command
    from plsh_cli.experiments.resume import Resumption

#: No room: on the disk, in a quota, or for a file of that size.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: What is wrong with a path that was given.
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR)


@dataclass(frozen=True)
class Mode:
    """How a command is to be carried out."""

    dry_run: bool = False
    multirun: bool = False
    config_dir: Path | None = None
    debug: bool = False


def launch(command: str, flags: Mapping[str, str | None], overrides: list[str] | None, mode: Mode) -> None:
    """Run `command` with its flags and overrides, as a sweep or once."""

    def work() -> None:
        from plsh_cli.config import compose
        from plsh_cli.experiments import resume

        sugar = compose.flag_overrides(command, flags)
        every = [*sugar, *(overrides or [])]
        if mode.multirun:
            compose.check_overrides(command, every, mode.config_dir, sweep=True)
            _echo(command, sugar, every, mode)
            _sweep(command, compose.with_implied(command, every), mode)
        else:
            found = resume.find(command, every, mode.config_dir)
            config = found.config if found else compose.compose(command, every, mode.config_dir)
            _echo(command, sugar, every, mode)
            _single(config, every, mode, found)

    guarded(work, mode.debug)


def _echo(command: str, sugar: list[str], overrides: list[str], mode: Mode) -> None:
    """Print the line of overrides that the flags stand for, where there were flags."""
    if sugar and ranks.main():
        from plsh_cli.config import check

        words = ["plsh", *check.spelled(command).split(), *overrides, *(["--multirun"] if mode.multirun else [])]
        console.say(f"same as: {shlex.join(words)}")


def _single(config: Command, overrides: list[str], mode: Mode, found: Resumption | None) -> None:
    from plsh_cli.experiments import harness

    if found is not None:
        overrides = found.overrides
    if not ranks.main():
        harness.follow(config)
        return
    if mode.dry_run:
        harness.check_overrides(config, overrides)
        planned = harness.plan(config) | harness.calibrate(config)
        print(as_yaml(config), end="")
        for key, value in planned.items():
            console.say(f"# {key}: {value}")
        harness.check_fit(config)
        return
    for line in found.differences if found else []:
        console.say(f"resumed with {line}")
    if found is None and getattr(config, "resume", None):
        console.say("no unfinished run of this configuration: a new one starts")
    harness.show(harness.execute(config, overrides, console.say, found.folder if found else None))


def _sweep(command: str, overrides: list[str], mode: Mode) -> None:
    from plsh_cli.experiments import finetune_sweep, sweep

    over_s = finetune_sweep.plan(overrides, mode.config_dir) if command == finetune_sweep.COMMAND else None
    if over_s is not None:
        finetune_sweep.describe(over_s, dry_run=mode.dry_run)
        if mode.dry_run:
            return
    elif mode.dry_run:
        raise MessageError("--dry-run shows one run; with --multirun leave one of them out")
    swept = sweep.sweep(command, overrides, mode.config_dir, over_s.parts if over_s else None)
    sweep.show(swept.jobs)
    if over_s is not None:
        finetune_sweep.finish(over_s, swept)
    if any(job.state == "failed" for job in swept.jobs):
        raise typer.Exit(1)


def guarded(work: Callable[[], None], debug: bool) -> None:
    """Run a command; an error becomes one message on stderr and an exit code: 2 for input, 1 for a failure."""
    try:
        work()
    except typer.Exit:
        raise
    except PlshError as error:
        if debug:
            raise
        if ranks.main():
            console.note(f"plsh: {error}")
        elif error.exit_code != 2:
            console.note(f"plsh: process {ranks.rank()}: {error}")
        raise typer.Exit(error.exit_code) from None
    except Terminated:
        console.note("plsh: terminated")
        raise typer.Exit(143) from None
    except KeyboardInterrupt:
        console.note("plsh: interrupted")
        raise typer.Exit(130) from None
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.errno in _FULL:
            console.note(f"plsh: the output cannot be written: {error.strerror}")
        elif isinstance(error, OSError) and error.errno in _NO_PATH and error.filename is not None:
            console.note(f"plsh: {str(error.filename)[:120]}: {error.strerror}")
            raise typer.Exit(2) from None
        else:
            console.note(f"plsh: unexpected {type(error).__name__}: {error} (run it with --debug for the traceback)")
        raise typer.Exit(1) from None


def known(command: str) -> str:
    """The schema name of a command as the user spells it; MessageError where there is none."""
    from plsh_cli.config import check
    from plsh_cli.config.schema import SCHEMAS

    name = command.replace("-", "_").replace(" ", "_")
    if name not in SCHEMAS:
        raise MessageError(
            f"no command {command!r} with a configuration; known: {', '.join(check.spelled(name) for name in SCHEMAS)}"
        )
    return name


def as_yaml(config: Command) -> str:
    """A configuration as YAML that composes again."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json")))
