"""The commands that train: from scratch, and from a pretrained model."""

from __future__ import annotations

from typing import Annotated

import typer

from plsh_cli.cli.options import ConfigDir, Debug, Device, DryRun, Multirun, Out, Overrides, Seed, Sigma
from plsh_cli.launch import Mode, launch

training = typer.Typer()


Draws = Annotated[str | None, typer.Option("--s", help="Draws of bias=plsh, such as 10.", show_default=False)]
Steps = Annotated[str | None, typer.Option("--steps", help="Optimiser steps.", show_default=False)]
Context = Annotated[str | None, typer.Option("--context", help="Tokens of a training window.", show_default=False)]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        help="Continue a run: its folder, a part of its name, or auto (the latest unfinished one of the same "
        "configuration).",
        show_default=False,
    ),
]


@training.command()
def train(
    overrides: Overrides = None,
    s: Draws = None,
    sigma: Sigma = None,
    steps: Steps = None,
    context: Context = None,
    resume: Resume = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """Train a decoder from scratch under one positional bias, and evaluate it at 1, 2 and 4 times the length."""
    flags = {
        "--s": s,
        "--sigma": sigma,
        "--steps": steps,
        "--context": context,
        "--resume": resume,
        "--seed": seed,
        "--device": device,
        "--out": out,
    }
    launch("train", flags, overrides, Mode(dry_run, multirun, config_dir, debug))


@training.command()
def finetune(
    overrides: Overrides = None,
    s: Draws = None,
    sigma: Sigma = None,
    steps: Steps = None,
    context: Context = None,
    resume: Resume = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Fine-tune under exact ALiBi, window and fixed blocks as well.")
    ] = False,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """Fine-tune a pretrained model under one positional bias, and evaluate it before and after."""
    flags = {
        "--s": s,
        "--sigma": sigma,
        "--steps": steps,
        "--context": context,
        "--resume": resume,
        "--baselines": "alibi,window,fixed_blocks" if baselines else None,
        "--seed": seed,
        "--device": device,
        "--out": out,
    }
    launch("finetune", flags, overrides, Mode(dry_run, multirun, config_dir, debug))
