"""`plsh finetune`: a pretrained model fine-tuned under one positional bias, and how well it predicts before and after.

The rows of the result are those of its evaluations (see finetune_final.py); metrics.jsonl has every step; model/ has
the adapter with what it belongs to (plsh.json), or the whole model, and the tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plsh_cli.config.schema.finetune import FinetuneCommand
from plsh_cli.experiments import finetune_baselines, pretrained, train_plan
from plsh_cli.experiments.result import Result

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run


def plan(cfg: FinetuneCommand) -> dict[str, object]:
    """What a run would do, without fetching or loading anything. Raises UserError for what cannot run."""
    planned, missing = train_plan.plan(cfg), pretrained.to_fetch(cfg.model)
    if missing is not None:
        planned["to_fetch"] = missing
    return planned | finetune_baselines.plan(cfg)


def calibrate(cfg: FinetuneCommand) -> dict[str, object]:
    """The estimated time of a run, from a few measured operations; only for a dry run."""
    from plsh_cli.experiments import train_speed

    return train_speed.calibrate(cfg)


def check_fit(cfg: FinetuneCommand) -> None:
    """Raise UserError where the run needs more memory than there is."""
    train_plan.check_fit(cfg)


def run(cfg: FinetuneCommand, run: Run) -> Result:
    """Fine-tune and evaluate, then the baselines where there are any."""
    from plsh_cli.experiments.train_session import session

    result = session(cfg, run)
    assert result is not None
    rows, runs, seconds = finetune_baselines.run(cfg, run)
    timing = {**result.timing, "baselines_seconds": seconds} if cfg.baselines else result.timing
    return Result([*result.rows, *rows], {**result.summary, "runs": runs}, timing)


def follow(cfg: FinetuneCommand) -> None:
    """Take part in training as a process other than the main one, which says what is wrong for all."""
    from plsh_cli.experiments.train_session import session

    session(cfg, None)
