"""`plsh train`: a decoder from scratch under one positional bias, and what it reaches beyond its training length.

The rows of the result are those of its evaluation (see train_final.py); metrics.jsonl has every step (see
train_progress.py); the model is in model/, its checkpoints in checkpoints/.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plsh_cli import ranks
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import MessageError
from plsh_cli.experiments import train_plan
from plsh_cli.experiments.result import Result

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run


def plan(cfg: TrainCommand) -> dict[str, object]:
    """What a run would do, without making anything. Raises UserError for what cannot run."""
    if cfg.study is not None:
        from plsh_cli.experiments import train_study

        if ranks.count() > 1:
            raise MessageError("study: it runs its variants side by side itself; start it without torchrun")
        return train_study.plan(cfg)
    return train_plan.plan(cfg)


def calibrate(cfg: TrainCommand) -> dict[str, object]:
    """The estimated time of a run, from a few measured operations; only for a dry run."""
    from plsh_cli.experiments import train_speed

    return {} if cfg.study is not None else train_speed.calibrate(cfg)


def check_overrides(cfg: TrainCommand, overrides: Sequence[str]) -> None:
    """Raise UserError for an override that would be without effect."""
    if cfg.study is not None:
        from plsh_cli.experiments import train_study

        train_study.check_overrides(cfg, overrides)


def check_fit(cfg: TrainCommand) -> None:
    """Raise UserError where the run needs more memory than there is."""
    if cfg.study is None:
        train_plan.check_fit(cfg)


def run(cfg: TrainCommand, run: Run) -> Result:
    """Train and evaluate; where the configuration has a study, all of its variants."""
    if cfg.study is not None:
        from plsh_cli.experiments import train_study

        return train_study.run(cfg, run)
    from plsh_cli.experiments.train_session import session

    result = session(cfg, run)
    assert result is not None
    return result


def follow(cfg: TrainCommand) -> None:
    """Take part in training as a process other than the main one, which says what is wrong for all."""
    from plsh_cli.experiments.train_session import session

    session(cfg, None)
