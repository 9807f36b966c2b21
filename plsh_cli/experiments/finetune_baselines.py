"""The same fine-tuning under other biases: runs of their own, one after the other, whose rows join the run's."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import ranks, rundir
from plsh_cli.config.schema.finetune import FinetuneCommand
from plsh_cli.errors import MessageError, PlshError
from plsh_cli.experiments import resume
from plsh_cli.experiments.finetune_final import other_bias
from plsh_cli.experiments.train_job import Job, Pool

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run


def plan(cfg: FinetuneCommand) -> dict[str, object]:
    """Which there are, and how many are there already; MessageError in one of several processes."""
    if not cfg.baselines:
        return {}
    if ranks.count() > 1:
        raise MessageError("baselines: they are runs of their own; start each without torchrun, or leave them out")
    there = sum(_finished(baseline(cfg, name)) for name in cfg.baselines)
    return {"baselines": f"{', '.join(cfg.baselines)}, each a run as long as this one; {there} are there already"}


def run(cfg: FinetuneCommand, run: Run) -> tuple[list[dict[str, Any]], dict[str, str], float]:
    """Their rows, each under its own bias, their run folders by bias, and seconds.

    Raises PlshError where one failed; the others and the run's own model are kept.
    """
    names, begin = list(cfg.baselines or []), time.perf_counter()
    if not names:
        return [], {}, 0.0
    # The run's own model is still here, in reference cycles of the trainer.
    gc.collect()
    logs = run.path / "jobs"
    logs.mkdir(exist_ok=True)
    jobs = [_job(baseline(cfg, name), logs) for name in names]
    failed, runs = [], {}
    with Pool(1) as pool:
        for number, (job, ended) in enumerate(pool.run(jobs), start=1):
            run.say(f"baseline {number}/{len(jobs)} {job.name}: {ended.text}")
            if ended.run is None or ended.state != "done":
                failed.append(f"{job.name}: {ended.text}")
            else:
                runs[job.name] = ended.run
    if failed:
        raise PlshError(f"{len(failed)} of {len(jobs)} baselines failed ({'; '.join(failed)[:500]}); the rest is kept")
    return [row for name in names for row in _rows(runs[name])], runs, time.perf_counter() - begin


def baseline(cfg: FinetuneCommand, name: str) -> FinetuneCommand:
    """The run's configuration under another bias, scored under that alone: that of a job of a sweep, too."""
    final = cfg.final.model_copy(update={"before": False, "biases": []})
    changes = {"bias": other_bias(cfg, name), "final": final, "baselines": None, "resume": None, "resume_force": False}
    logger = cfg.logger.model_copy(update={"group": cfg.logger.group or cfg.name})
    return cfg.model_copy(update={**changes, "logger": logger, "name": f"{cfg.name[:50]}-{name}"})


def _job(config: FinetuneCommand, logs: Path) -> Job:
    name = config.bias.name
    lora = f"lora={'none' if config.lora is None else 'default'}"
    fixed = [f"model={config.model.name}", f"data={config.data.name}", f"bias={name}", lora]
    return Job(name, config, resume.overrides_of(config, fixed), logs / f"{name}.log")


def _rows(folder: str) -> Sequence[dict[str, Any]]:
    """The rows of a finished run that score it under its own bias."""
    record = rundir.read_json(Path(folder) / "result.json") or {}
    return [row for row in record.get("rows", []) if row["stage"] == "after" and row["own"]]


def _finished(config: FinetuneCommand) -> bool:
    return resume.finished(config) is not None
