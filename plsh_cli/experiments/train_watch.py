"""Shows the steps of a run as they end, from the first one on: only then the number of steps is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plsh_cli import console
from plsh_cli.experiments import train_speed
from plsh_cli.experiments.train_progress import Progress
from plsh_cli.experiments.train_subject import Subject

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run
    from plsh_cli.experiments.train_model import Biased
    from plsh_cli.training.trainer import PlshTrainer


class Watched:
    """Takes the records of a trainer, within a `with` block that closes the display; `trainer` is set before."""

    def __init__(self, subject: Subject, run: Run | None, device: str, biased: Biased) -> None:
        self._subject, self._run, self._device, self._biased = subject, run, device, biased
        self.trainer: PlshTrainer | None = None
        self._progress: Progress | None = None
        self._display: Any = None

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._display is not None:
            self._display.__exit__(*error)

    @property
    def seconds(self) -> list[float]:
        """What every step took."""
        return self._progress.seconds if self._progress else []

    def report(self, record: dict[str, Any]) -> None:
        """Take the record of a step."""
        if self._progress is None:
            self._progress = self._open(record["step"] - 1)
        self._progress.report(record)

    def _open(self, first: int) -> Progress:
        assert self.trainer is not None
        assert self._run is not None
        total = self.trainer.state.max_steps
        self._display = console.steps(total, first, f"plsh {self._subject.cfg.command}")
        shown = self._display.__enter__()
        return train_speed.progress(self._subject, self._run, self._biased, self._device, shown, (first, total))
