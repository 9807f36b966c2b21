"""Runs one experiment inside its run folder, whatever way it ends."""

from __future__ import annotations

import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from plsh_cli import console, provenance, ranks, rundir
from plsh_cli.config.compose import config_hash
from plsh_cli.config.schema import Command
from plsh_cli.errors import MessageError
from plsh_cli.experiments import ending
from plsh_cli.experiments.result import Result
from plsh_cli.rundir import RunFolder
from plsh_cli.tracking import Tracker, check_online


@dataclass(frozen=True)
class Run:
    """What an experiment sees of its run: where to write, how to report."""

    folder: RunFolder
    tracker: Tracker
    say: Callable[[str], None]
    resumed: bool = False

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    def log(self, metrics: Mapping[str, object], step: int | None = None) -> None:
        """Record metrics in metrics.jsonl and W&B, as this step or the next."""
        self.tracker.log(metrics, step)

    def progress(self, total: float, description: str) -> AbstractContextManager[console.Counter]:
        """A progress display; call `.advance()` on what it gives."""
        return console.progress(total, description)

    def save_rows(self, name: str, rows: Sequence[Mapping[str, object]]) -> Path:
        """Save flat records as <name>.csv in the run folder, whole."""
        return self.folder.write_csv(f"{name}.csv", rows)

    def save_arrays(self, name: str, **arrays: Any) -> Path:
        """Save arrays as <name>.npz in the run folder, whole; loadable without pickle."""
        import numpy

        return self.folder.write(
            f"{name}.npz", lambda handle: numpy.savez_compressed(handle, allow_pickle=False, **arrays)
        )


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    folder: RunFolder
    result: dict[str, Any]
    figures: list[Path]
    sync: str | None


def module(command: str) -> ModuleType:
    """The experiment module of a command; it has `plan(config)` and `run(config, run)`."""
    return importlib.import_module(f"plsh_cli.experiments.{command}")


def plan(config: Command) -> dict[str, object]:
    """What a run would do. Raises UserError where it cannot run."""
    planned: dict[str, object] = module(config.command).plan(config)
    return planned


def calibrate(config: Command) -> dict[str, object]:
    """What a command can only say after a few measurements, such as about how long it takes; for a dry run."""
    measure = getattr(module(config.command), "calibrate", None)
    return {} if measure is None else measure(config)


def check_overrides(config: Command, overrides: Sequence[str]) -> None:
    """Raise UserError for an override of this configuration that would be without effect."""
    check = getattr(module(config.command), "check_overrides", None)
    if check is not None:
        check(config, overrides)


def check_fit(config: Command) -> None:
    """Raise UserError where a run needs more memory than there is; a dry run says so after its plan."""
    check = getattr(module(config.command), "check_fit", None)
    if check is not None:
        check(config)


def execute(
    config: Command, overrides: Sequence[str], say: Callable[[str], None], into: RunFolder | None = None
) -> Outcome:
    """Run the experiment in a new run folder, or go on in that of an earlier run.

    Raises UserError or MessageError before anything is written where the input is wrong; RunFailed where the experiment
    itself fails; KeyboardInterrupt and Terminated pass through after status.json says so.
    """
    check_overrides(config, overrides)
    plan(config)
    check_fit(config)
    check_online(config.logger)
    opened: list[Tracker] = []
    sync: list[str | None] = []
    with ending.terminable() as signals:
        if into is None:
            folder = RunFolder.create(
                config.out, config.command.replace("_", "-"), config.name, lambda new: _fill(new, config, overrides)
            )
        else:
            folder = into
        with _claimed(folder, config, overrides, into is not None), ending.recorded(folder, opened, signals, sync):
            plain, resumed = config.model_dump(mode="json"), into is not None
            try:
                opened.append(Tracker.open(folder, config.logger, plain, config.command, resume=resumed))
            except MessageError:
                if not resumed:
                    shutil.rmtree(folder.path, ignore_errors=True)
                raise
            say(f"run: {folder.path}{' (resumed)' if resumed else ''}")
            if opened[0].segment_of:
                say(
                    f"W&B is offline and cannot reopen a run: the resumed part is a second one, linked to "
                    f"{opened[0].segment_of} by its group and resumed_from"
                )
            result, figures = _work(config, Run(folder, opened[0], say, resumed))
    return Outcome(folder, result, figures, sync[0])


def follow(config: Command) -> None:
    """Take part in a run as a process other than the main one: nothing is written or printed."""
    with ending.terminable():
        module(config.command).follow(config)


@contextmanager
def _claimed(folder: RunFolder, config: Command, overrides: Sequence[str], resumed: bool) -> Iterator[None]:
    """Within the body the folder is this process's alone, and says that it is running.

    Raises MessageError where another process works in it, or has ended it since this one looked.
    """
    with folder.claimed():
        if resumed:
            status = folder.status(mine=True) or {}
            if status.get("state") == "running":
                raise MessageError(f"resume: {folder.path.name} is still running; stop it first")
            if status.get("state") == "done" and status.get("config_hash") == config_hash(config):
                raise MessageError(f"resume: {folder.path.name} is finished")
            _refill(folder, config, overrides)
        yield


def _facts(config: Command) -> dict[str, object]:
    """What status.json says of a run beside its state; processes: how many work together."""
    own = {"command": config.command, "config_hash": config_hash(config), "processes": ranks.count()}
    return {**own, **rundir.process_facts()}


def _fill(folder: RunFolder, config: Command, overrides: Sequence[str]) -> None:
    from omegaconf import OmegaConf

    folder.set_status("running", **_facts(config))
    folder.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json"))))
    folder.write_text("overrides.txt", "".join(f"{line}\n" for line in overrides))
    folder.write_json("env.json", provenance.environment())
    folder.write_json("git.json", provenance.source())
    folder.write_text("metrics.jsonl", "")


def _refill(folder: RunFolder, config: Command, overrides: Sequence[str]) -> None:
    """Mark an earlier run's folder as running again, under this configuration; the one before is kept beside it."""
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json")))
    before = (folder.path / "config.yaml").read_text(encoding="utf-8")
    folder.set_status("running", **_facts(config))
    if text != before:
        count = len(list(folder.path.glob("config-*.yaml"))) + 1
        folder.write_text(f"config-{count}.yaml", before)
        folder.write_text("config.yaml", text)
        folder.write_text("overrides.txt", "".join(f"{line}\n" for line in overrides))
    (folder.path / "error.txt").unlink(missing_ok=True)


def _work(config: Command, run: Run) -> tuple[dict[str, Any], list[Path]]:
    from plsh_cli import report

    begin = time.perf_counter()
    result: Result = module(config.command).run(config, run)
    timing = {**result.timing, "experiment_seconds": time.perf_counter() - begin}
    record = {
        "schema": 1,
        "command": config.command,
        "name": config.name,
        "config_hash": config_hash(config),
        "rows": result.rows,
        "summary": result.summary,
        "timing": timing,
    }
    run.folder.write_json("result.json", record)
    run.folder.write_csv("rows.csv", result.rows)
    figures = report.draw(run.path)
    run.tracker.table("rows", result.rows)
    run.tracker.figures(figures)
    run.tracker.summary(result.summary)
    return rundir.finite(record), figures


def show(outcome: Outcome) -> None:
    """Print a finished run's tables, figures and how to sync it."""
    from plsh_cli import report

    with console.whole_run():
        out = console.output()
        for table in report.tables(outcome.result):
            out.print(table)
        if outcome.figures:
            names = ", ".join(sorted({file.stem for file in outcome.figures}))
            print(f"figures: {outcome.folder.path / 'figures'} ({names})")
        failed = outcome.folder.path / "figures" / "failed.txt"
        if failed.exists():
            print(f"some figures could not be drawn: {failed}")
        print(f"rows: {outcome.folder.path / 'rows.csv'}")
        if outcome.sync:
            print(f"W&B was offline; to upload this run: {outcome.sync}")
        sys.stdout.flush()
