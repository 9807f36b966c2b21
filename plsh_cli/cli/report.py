"""`plsh report`: the page over runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from plsh_cli import console
from plsh_cli.cli.options import Debug
from plsh_cli.launch import guarded

reporting = typer.Typer()


@reporting.command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", show_default=False, help="Run folders, or parts of their names; all of them."
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="html, md or csv (html, or what TO ends with).", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="The file to write (report.html, .md or .csv in OUT).", show_default=False),
    ] = None,
    out: Annotated[str, typer.Option("--out", help="Folder of the run folders.")] = "runs",
    debug: Debug = False,
) -> None:
    """One page over runs: the paper's claims, and every table and figure with the run that it is from."""

    def make() -> None:
        from plsh_cli.report.page import write

        target = None if to is None else Path(os.path.expanduser(to))
        say = console.note if target is not None and write.is_stream(target) else console.say  # it may be our stdout
        for line in write.write(runs or [], Path(os.path.expanduser(out)), format_, target):
            say(line)

    guarded(make, debug)
