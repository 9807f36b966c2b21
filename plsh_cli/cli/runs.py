"""The commands about the runs that there are, and the one that makes them all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plsh_cli import console
from plsh_cli.cli.options import ConfigDir, Debug
from plsh_cli.launch import guarded

if TYPE_CHECKING:
    from plsh_cli.report.library import Record

running = typer.Typer()

Folder = Annotated[str, typer.Option("--out", help="Folder of the run folders.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@running.command()
def runs(
    command: Annotated[
        str | None, typer.Option("--command", help="Runs of one command, such as train.", show_default=False)
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="done, failed, killed, running or foreign.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A part of the run's name.", show_default=False)] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Not older than 90m, 12h, 2d or a date (UTC).", show_default=False)
    ] = None,
    as_json: Json = False,
    prune: Annotated[
        str | None,
        typer.Option(
            "--prune", help="Delete the runs that failed and/or were killed, after asking.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Prune without asking.")] = False,
    out: Folder = "runs",
    debug: Debug = False,
) -> None:
    """List the runs, newest first: command, name, state, age, size and key metric."""

    def work() -> None:
        from datetime import UTC, datetime

        from plsh_cli.config.schema import SCHEMAS
        from plsh_cli.errors import MessageError
        from plsh_cli.report import listing

        if prune is None and yes:
            raise MessageError("--yes goes with --prune")
        if prune is not None and as_json:
            raise MessageError("--json lists runs: it does not go with --prune")
        records = listing.scan(out)
        wanted = listing.wanted(command, state, name, since, {*SCHEMAS, *(record.command for record in records)})
        chosen = [record for record in records if wanted.fits(record)]
        if prune is not None:
            _prune(chosen, prune, Path(os.path.expanduser(out)), yes)
        elif as_json:
            _print_json([listing.plain(record) for record in chosen])
        else:
            for line in listing.lines(chosen, datetime.now(UTC), console.output().width):
                console.say(line)

    guarded(work, debug)


@running.command()
def show(
    run: Annotated[str, typer.Argument(help="A run folder, or a part of its name.")],
    as_json: Json = False,
    out: Folder = "runs",
    debug: Debug = False,
) -> None:
    """Print one run: state, configuration, source, its tables, and its metrics as small plots."""

    def work() -> None:
        from plsh_cli.experiments import show_run
        from plsh_cli.report import listing

        record = listing.find(run, out)
        if as_json:
            _print_json(show_run.plain(record))
        else:
            show_run.show(record)

    guarded(work, debug)


@running.command()
def reproduce(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", show_default=False, help="seed, device or logger.*, for every step of a study."
        ),
    ] = None,
    scale: Annotated[str, typer.Option("--scale", help="smoke, cpu or paper.")] = "smoke",
    only: Annotated[
        str | None, typer.Option("--only", help="Some of the steps, such as matrix,output.", show_default=False)
    ] = None,
    out: Folder = "runs",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, run nothing.")] = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """Run the whole study at one size, skipping what is done, and write the report."""

    def work() -> None:
        from plsh_cli.experiments import reproduce, reproduce_plan

        order = reproduce_plan.Order(scale, only, out, config_dir, list(overrides or []))
        if not reproduce.carry_out(order, dry_run):
            raise typer.Exit(1)

    guarded(work, debug)


def _print_json(value: object) -> None:
    from plsh_cli.rundir import finite

    with console.whole_run():
        print(json.dumps(finite(value), indent=1, default=str))


def _asks() -> bool:
    """Whether there is someone to ask."""
    return sys.stdin.isatty()


def _prune(records: list[Record], prune: str, out: Path, yes: bool) -> None:
    """List what would go, ask, delete; exit code 1 where something that should go could not be deleted."""
    from plsh_cli.errors import MessageError
    from plsh_cli.experiments import pruning
    from plsh_cli.report import listing

    states = pruning.states(prune)
    going = pruning.choose(records, states, out)
    if not going:
        console.say(f"nothing to delete: no run here is {' or '.join(states)}")
        return
    for record in going:
        console.say(f"{record.state:8s}{listing.size(record.size()):>9}  {record.path}")
    text = f"{len(going)} run{'s' * (len(going) > 1)}, {listing.size(sum(record.size() for record in going))}"
    if not yes:
        if not _asks():
            raise MessageError(f"{text} would be deleted: there is no terminal to ask on; add --yes to delete them")
        if not typer.confirm(f"delete {text}?"):
            console.say("nothing was deleted")
            return
    pruned = pruning.delete(going, states, out)
    for one in pruned:
        console.say(f"{'kept' if one.kept else 'deleted'}: {one.record.path}{f' ({one.kept})' if one.kept else ''}")
    if any(one.failed for one in pruned):
        raise typer.Exit(1)
