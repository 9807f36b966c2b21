"""The command line. Nothing heavy is imported here: `plsh --help` answers at once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from plsh_cli import __version__, console
from plsh_cli.cli.compare import comparing
from plsh_cli.cli.lab import lab
from plsh_cli.cli.models import models
from plsh_cli.cli.report import reporting
from plsh_cli.cli.runs import running
from plsh_cli.cli.tools import tools
from plsh_cli.cli.train import training

app = typer.Typer(
    name="plsh",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A laboratory for Positional LSH: ALiBi attention as an expectation of random block masks.",
)
for commands in (lab, training, models, comparing, reporting, running, tools):
    app.add_typer(commands)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"plsh {__version__}")
        raise typer.Exit


def main() -> None:
    """The console script."""
    console.mend_streams()
    for argument in sys.argv[1:]:
        name = argument.partition("=")[0]
        if name.startswith("--") and "." in name:
            print(
                f"plsh: {argument}: configuration keys are given without dashes, as {argument.lstrip('-')}",
                file=sys.stderr,
            )
            raise SystemExit(2)
    app()
