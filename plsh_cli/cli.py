"""The commands and their options. Nothing heavy is imported here: `plsh --help` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from plsh_cli import __version__, console
from plsh_cli.launch import Mode, as_yaml, guarded, known, launch

app = typer.Typer(
    name="plsh",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A laboratory for Positional LSH: ALiBi attention as an expectation of random block masks.",
)
bench_app = typer.Typer(no_args_is_help=True, help="Speed and memory, as ratios within one run.")
app.add_typer(bench_app, name="bench")


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


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"plsh {__version__}")
        raise typer.Exit


@app.command()
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


@app.command("attn-error")
def attn_error(
    overrides: Overrides = None,
    s: Samples = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="Length of the text in tokens.", show_default=False)
    ] = None,
    layers: Annotated[str | None, typer.Option("--layers", help="Layers, such as 0,15,29.", show_default=False)] = None,
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
    """How far a trained model's attention output under positional LSH is from exact ALiBi, on its real Q, K and V."""
    flags = {
        "--s": s,
        "--tokens": tokens,
        "--layers": layers,
        "--sigma": sigma,
        "--seeds": seeds,
        "--seed": seed,
        "--device": device,
        "--out": out,
    }
    launch("attn_error", flags, overrides, Mode(dry_run, multirun, config_dir, debug))


@bench_app.command("matrix")
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


@app.command("config")
def config_(
    command: Annotated[str, typer.Argument(help="A command, such as approx.")],
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    debug: Debug = False,
) -> None:
    """Print a command's resolved configuration."""

    def show() -> None:
        from plsh_cli.config.compose import compose

        words = [command, *(overrides or [])]
        count = 2 if words[0] == "bench" and len(words) > 1 else 1
        print(as_yaml(compose(known(" ".join(words[:count])), words[count:], config_dir)), end="")

    guarded(show, debug)


@app.command()
def ls(config_dir: ConfigDir = None, debug: Debug = False) -> None:
    """List the commands with their configuration groups, options and experiments."""

    def show() -> None:
        from plsh_cli.experiments import overview

        overview.listing(config_dir)

    guarded(show, debug)


@app.command()
def doctor(debug: Debug = False) -> None:
    """Print versions, devices, cores, memory, which backends can run, the W&B state and the cache folders."""

    def show() -> None:
        from plsh_cli.experiments import overview

        overview.doctor()

    guarded(show, debug)


@app.command()
def rerun(
    run: Annotated[str, typer.Argument(help="A run folder, or a part of its name.")],
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Repeat a run from its folder and say whether its rows come out equal to the bit."""

    def again() -> None:
        from plsh_cli import rundir
        from plsh_cli.config import check
        from plsh_cli.experiments import harness, rerun

        folder = rundir.find(run, "runs")
        config, overrides = rerun.load(folder)
        before = rerun.finished_rows(folder)
        if out is not None:
            config = check.validate(config.command, {**config.model_dump(), "out": out})
        outcome = harness.execute(config, overrides, console.say)
        harness.show(outcome)
        after = rerun.finished_rows(outcome.folder)
        if before is None or after is None:
            state = (folder.status() or {}).get("state", "unknown")
            console.say(f"nothing to compare with: {folder.path} has no result (state: {state})")
            return
        comparison = rerun.compare(before, after)
        reason = "" if comparison.equal else rerun.why(folder, outcome.folder)
        console.say(f"compared with {folder.path}: {comparison}{reason}")
        if comparison.mismatches:
            raise typer.Exit(1)

    guarded(again, debug)


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
