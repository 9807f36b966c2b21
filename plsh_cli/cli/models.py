"""The commands that run whole models."""

from __future__ import annotations

from typing import Annotated

import typer

from plsh_cli.cli.options import ConfigDir, Debug, Device, DryRun, Multirun, Out, Samples, Seed, Sigma
from plsh_cli.launch import Mode, launch

models = typer.Typer()


@models.command("eval")
def eval_(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [KEY=VALUE]...",
            show_default=False,
            help="A finished training run (its folder or part of its name), and any configuration keys; "
            "see `plsh config eval` and `plsh ls`.",
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", help="Window lengths in tokens, such as 256,512.", show_default=False)
    ] = None,
    biases: Annotated[
        str | None,
        typer.Option(
            "--biases",
            help="Side by side: original, alibi, plsh, window, fixed_blocks, none.",
            show_default=False,
        ),
    ] = None,
    s: Samples = None,
    draws: Annotated[
        str | None, typer.Option("--draws", help="Sets of draws that plsh is scored under.", show_default=False)
    ] = None,
    sigma: Sigma = None,
    windows: Annotated[str | None, typer.Option("--windows", help="matched or paper.", show_default=False)] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="lm-evaluation-harness tasks.", show_default=False)
    ] = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """How well a model predicts text under each bias: perplexity, bits per byte, ranks, entropy, at several lengths."""
    words = list(words or [])
    run = words.pop(0) if words and "=" not in words[0] and not words[0].startswith("~") else None
    flags = {
        "RUN": run,
        "--lengths": lengths,
        "--biases": biases,
        "--s": s,
        "--draws": draws,
        "--sigma": sigma,
        "--windows": windows,
        "--tasks": tasks,
        "--seed": seed,
        "--device": device,
        "--out": out,
    }
    launch("eval", flags, words, Mode(dry_run, multirun, config_dir, debug))
