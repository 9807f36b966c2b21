"""What training reports of every step, and what ends it: a loss or gradient that is not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from plsh_cli.errors import PlshError


class Diverged(PlshError):
    """The loss or the gradient is not finite any more."""


class Watch(TrainerCallback):
    """Gives one record per optimiser step to `report`, with the held-out loss where the step ends with one.

    A record has `step` (from 1), `loss` (nats per token, mean over the batch of the step), `grad_norm` (before
    clipping), `learning_rate`, `epoch`, `step_seconds` (the passes and the update), and `eval_loss` where measured. It
    is given when the step is over, and before
    its checkpoint is complete, so that no step is ever reported twice or left out after a resume. Raises Diverged.
    """

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report
        self._record: dict[str, Any] = {}
        self._begin = self._end = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            self.flush()
            values = {key: float(logs[key]) for key in ("loss", "grad_norm", "learning_rate", "epoch") if key in logs}
            self._record = {"step": state.global_step, **values, "step_seconds": self._end - self._begin}
            _check(self._record)
        elif "eval_loss" in logs:
            self._record = self._record or {"step": state.global_step, "epoch": float(logs.get("epoch", 0.0))}
            self._record["eval_loss"] = float(logs["eval_loss"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.flush()
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end = time.perf_counter()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.flush()

    def flush(self) -> None:
        """Report the record that is waiting, if there is one."""
        record, self._record = self._record, {}
        if record:
            self._report(record)


def _check(record: dict[str, Any]) -> None:
    for name, what in (("loss", "the loss"), ("grad_norm", "the gradient norm")):
        value = record.get(name)
        if value is not None and not math.isfinite(value):
            raise Diverged(f"{what} is {value} at step {record['step']}")
