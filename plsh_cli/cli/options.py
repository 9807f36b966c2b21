"""The options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        show_default=False,
        help="Any configuration key; see `plsh config COMMAND` and `plsh ls`.",
    ),
]
Seed = Annotated[str | None, typer.Option("--seed", help="First seed.", show_default=False)]
Seeds = Annotated[str | None, typer.Option("--seeds", help="How many seeds.", show_default=False)]
Samples = Annotated[str | None, typer.Option("--s", help="Numbers of draws, such as 10,20,40.", show_default=False)]
Sigma = Annotated[
    str | None, typer.Option("--sigma", help="ALiBi scales in tokens, such as 2,16,256.", show_default=False)
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.", show_default=False)]
Out = Annotated[str | None, typer.Option("--out", help="Folder of the run folders (runs).", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the configuration and the plan, run nothing.")]
Multirun = Annotated[
    bool, typer.Option("--multirun", "-m", help="Run every combination of the values of swept keys: key=a,b.")
]
ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir",
        help="A folder with your own configuration files, such as experiment/mine.yaml.",
        show_default=False,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
