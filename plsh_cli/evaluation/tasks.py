"""Tasks of lm-evaluation-harness on a loaded model, whatever its attention."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli.errors import MessageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_installed() -> None:
    """Raise MessageError where lm-evaluation-harness is missing."""
    if importlib.util.find_spec("lm_eval") is None:
        raise MessageError("tasks need lm-evaluation-harness, which is not installed: pip install 'plsh-cli[eval]'")


def run_tasks(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    names: Sequence[str],
    *,
    folder: Path | None,
    limit: int | None,
    max_length: int,
    batch: int,
    seed: int,
) -> list[dict[str, object]]:
    """One record per task and metric: task, metric, value, stderr (null where the task has none) and examples.

    folder: task files beside the ones that lm-evaluation-harness ships. limit: examples per task. max_length: tokens of
    an example, whose beginning is cut. Raises MessageError where the harness is missing, knows no such task, or cannot
    get a task's data.
    """
    check_installed()
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    manager = _manager(names, folder)
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, max_length=max_length)
    options: dict[str, Any] = {"limit": limit, "task_manager": manager, "log_samples": False, "bootstrap_iters": 1000}
    seeds = dict.fromkeys(("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed"), seed)
    try:
        found = simple_evaluate(model=wrapped, tasks=list(names), **options, **seeds)
    except (ConnectionError, FileNotFoundError) as error:
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise MessageError(f"the data of {', '.join(names)} cannot be had: {reason}") from error
    assert found is not None
    return [record for task in found["results"] for record in _records(task, found)]


def _manager(names: Sequence[str], folder: Path | None) -> Any:
    """The harness's task manager that knows these tasks; MessageError where there is none of a name."""
    from lm_eval.tasks import TaskManager

    if folder is not None:
        # Reading the thousands of task files that the harness ships takes long.
        own = TaskManager(include_path=str(folder), include_defaults=False)
        if set(names) <= set(own.all_tasks):
            return own
    manager = TaskManager(include_path=None if folder is None else str(folder))
    unknown = sorted(set(names) - set(manager.all_tasks))
    if unknown:
        raise MessageError(f"lm-evaluation-harness knows no task {unknown[0]}; `lm-eval ls tasks` lists them")
    return manager


def _records(task: str, found: dict[str, Any]) -> list[dict[str, object]]:
    """The metrics of one task; the harness writes them as "acc,none" beside "acc_stderr,none"."""
    values = found["results"][task]
    counts = found.get("n-samples", {}).get(task, {})
    records = []
    for key, value in values.items():
        metric, comma, filtered = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        stderr = values.get(f"{metric}_stderr,{filtered}")
        records.append(
            {
                "task": task,
                "metric": metric if filtered == "none" else f"{metric} ({filtered})",
                "value": float(value),
                "stderr": float(stderr) if isinstance(stderr, int | float) else None,
                "examples": counts.get("effective"),
            }
        )
    return records
