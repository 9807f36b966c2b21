"""The commands that run whole models."""

from __future__ import annotations

from typing import Annotated

import typer

from plsh_cli import console
from plsh_cli.cli.options import ConfigDir, Debug, Device, DryRun, Multirun, Out, Samples, Seed, Sigma
from plsh_cli.launch import Mode, guarded, launch

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


@models.command()
def export(
    run: Annotated[
        str, typer.Argument(help="A finished run of plsh train or finetune (its folder or part of its name).")
    ],
    to: Annotated[str, typer.Option("--to", help="A new or empty folder.", show_default=False)],
    merge: Annotated[
        bool, typer.Option("--merge", help="Add an adapter to its base's weights: a whole model.")
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="Of a whole model's weights: float32, bfloat16 or float16.", show_default="as in the run"
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="Where an adapter's base is, if it has moved.", show_default=False)
    ] = None,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Write the model of a run as a folder for transformers or peft, and say how to get its logits from it."""

    def write() -> None:
        from plsh_cli.experiments import export as exporting

        exporting.run(run, to, merge, dtype, base, out or "runs", console.say)

    guarded(write, debug)
