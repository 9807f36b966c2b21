"""The command that compares biases with a baseline at equal cost."""

from __future__ import annotations

from typing import Annotated

import typer

from plsh_cli.cli.options import ConfigDir, Debug, Device, DryRun, Multirun, Out, Overrides, Samples, Seed, Seeds, Sigma
from plsh_cli.launch import Mode, launch

comparing = typer.Typer()

_BIASES = "plsh, window, fixed_blocks, alibi, none, original"


@comparing.command()
def compare(
    overrides: Overrides = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help=f"What to compare with: {_BIASES}.", show_default=False)
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="What is compared, such as plsh,window.", show_default=False)
    ] = None,
    s: Samples = None,
    level: Annotated[
        str | None, typer.Option("--level", help="matrix, attention or training.", show_default=False)
    ] = None,
    cost: Annotated[
        str | None, typer.Option("--cost", help="What is made equal: union, draws, time or s.", show_default=False)
    ] = None,
    n: Annotated[str | None, typer.Option("--n", help="Context length in tokens.", show_default=False)] = None,
    texts: Annotated[str | None, typer.Option("--texts", help="How many texts.", show_default=False)] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers, such as 0,15,29 (all).", show_default=False)
    ] = None,
    sigma: Sigma = None,
    seeds: Seeds = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """Compare biases with a baseline at equal cost, on the same inputs: paired differences, a Pareto figure."""
    flags = {
        "--baseline": baseline,
        "--methods": methods,
        "--s": s,
        "--level": level,
        "--cost": cost,
        "--n": n,
        "--texts": texts,
        "--layers": layers,
        "--sigma": sigma,
        "--seeds": seeds,
        "--seed": seed,
        "--device": device,
        "--out": out,
    }
    launch("compare", flags, overrides, Mode(dry_run, multirun, config_dir, debug))
