"""The commands of the laboratory: errors of M~ and of attention outputs, speed and memory."""

from __future__ import annotations

from typing import Annotated

import typer

from plsh_cli.cli.options import ConfigDir, Debug, Device, DryRun, Multirun, Out, Overrides, Samples, Seed, Seeds, Sigma
from plsh_cli.launch import Mode, launch

lab = typer.Typer()
bench = typer.Typer(no_args_is_help=True, help="Speed and memory, as ratios within one run.")


@lab.command()
def approx(
    overrides: Overrides = None,
    s: Samples = None,
    n: Annotated[str | None, typer.Option("--n", help="Context lengths in tokens.", show_default=False)] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", help="Head count that gives the ALiBi slopes.", show_default=False)
    ] = None,
    sigma: Sigma = None,
    seeds: Seeds = None,
    seed: Seed = None,
    samplers: Annotated[
        str | None,
        typer.Option("--samplers", help="iid, stratified, importance; several are compared.", show_default=False),
    ] = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """How well s random block masks approximate the ALiBi bias matrix: errors, costs and the paper's bounds."""
    flags = {
        "--s": s,
        "--n": n,
        "--heads": heads,
        "--sigma": sigma,
        "--seeds": seeds,
        "--seed": seed,
        "--samplers": samplers,
        "--device": device,
        "--out": out,
    }
    launch("approx", flags, overrides, Mode(dry_run, multirun, config_dir, debug))


@lab.command("attn-error")
def attn_error(
    overrides: Overrides = None,
    s: Samples = None,
    biases: Annotated[
        str | None,
        typer.Option("--biases", help="plsh, and at its cost window and fixed_blocks.", show_default=False),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="Length of a text in tokens.", show_default=False)
    ] = None,
    inputs: Annotated[str | None, typer.Option("--inputs", help="How many texts.", show_default=False)] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers, such as 0,15,29 (all).", show_default=False)
    ] = None,
    sigma: Sigma = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="corrected, or paper: as in its code.", show_default=False)
    ] = None,
    seeds: Seeds = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """How far a trained model's attention output under positional LSH is from exact ALiBi, on its real Q, K and V."""
    flags = {
        "--s": s,
        "--biases": biases,
        "--tokens": tokens,
        "--inputs": inputs,
        "--layers": layers,
        "--sigma": sigma,
        "--protocol": protocol,
        "--seeds": seeds,
        "--seed": seed,
        "--device": device,
        "--out": out,
    }
    launch("attn_error", flags, overrides, Mode(dry_run, multirun, config_dir, debug))


@bench.command("matrix")
def bench_matrix(
    overrides: Overrides = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """How fast the mask average and its norms are computed, against the obvious ways."""
    launch(
        "bench_matrix",
        {"--seed": seed, "--device": device, "--out": out},
        overrides,
        Mode(dry_run, multirun, config_dir, debug),
    )


@bench.command("attention")
def bench_attention(
    overrides: Overrides = None,
    s: Samples = None,
    n: Annotated[str | None, typer.Option("--n", help="Context lengths in tokens.", show_default=False)] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", help="Heads; their count gives the ALiBi slopes.", show_default=False)
    ] = None,
    sigma: Sigma = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    dry_run: DryRun = False,
    multirun: Multirun = False,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """How fast, large and accurate attention under each bias is, beside dense SDPA, FlexAttention and exact ALiBi."""
    flags = {
        "--s": s,
        "--n": n,
        "--heads": heads,
        "--sigma": sigma,
        "--seed": seed,
        "--device": device,
        "--out": out,
    }
    launch("bench_attention", flags, overrides, Mode(dry_run, multirun, config_dir, debug))


lab.add_typer(bench, name="bench")
