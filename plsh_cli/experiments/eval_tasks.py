"""The tasks of `plsh eval --tasks`, under each bias, by lm-evaluation-harness."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from plsh_cli.config.schema.models import EvalCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments.eval_biases import Variant, build, under
from plsh_cli.experiments.eval_source import Opened


def check(cfg: EvalCommand) -> None:
    """Raise MessageError where lm-evaluation-harness is not there, UserError for a folder of tasks that is not."""
    from plsh_cli.evaluation.tasks import check_installed

    check_installed()
    _folder(cfg)


def score(cfg: EvalCommand, opened: Opened, chosen: list[Variant], run: Any) -> list[dict[str, object]]:
    """The records of every bias and task; plsh runs under its first set of draws."""
    from plsh_cli.evaluation.tasks import run_tasks

    records = []
    for one in chosen:
        made = build(one, opened.model, cfg.eval.tasks_length, cfg.seed, "eval", first=True)
        with under(one, opened.model, made, cfg.eval.backend):
            found = run_tasks(
                opened.model,
                opened.tokenizer,
                cfg.eval.tasks or [],
                folder=_folder(cfg),
                limit=cfg.eval.tasks_limit,
                max_length=cfg.eval.tasks_length,
                batch=cfg.eval.batch,
                seed=cfg.seed,
            )
        records += [{**one.fields(), **record} for record in found]
        run.say(f"tasks under {one.label} done")
    return records


def _folder(cfg: EvalCommand) -> Path | None:
    folder = Path(os.path.expanduser(cfg.eval.tasks_path)).absolute() if cfg.eval.tasks_path else None
    if folder is not None and not folder.is_dir():
        raise UserError("eval.tasks_path", str(cfg.eval.tasks_path), "must be a folder with task files")
    return folder
