"""What training reports of every step, and what ends it: a loss, gradient or weight that is not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from plsh_cli.errors import PlshError
from plsh_cli.training.hf_trainer import TrainerCallback

#: What has to be finite, and how it is called.
_CHECKED = {"loss": "the loss", "grad_norm": "the gradient norm", "eval_loss": "the held-out loss"}


class Diverged(PlshError):
    """A loss, the gradient or the weights are not finite any more."""


class Watch(TrainerCallback):
    """Gives one record per optimiser step to `report`, with the held-out loss where the step ends with one.

    A record has `step` (from 1), `loss` (nats per token, mean over the batch of the step), `grad_norm` (before
    clipping), `learning_rate`, `epoch`, `step_seconds` (the passes and the update), `tokens` (of all processes; fewer
    where an epoch ends in the middle of a step's batches), and `eval_loss` where measured. It is given when the step is
    over, and before its checkpoint is complete, so that no step is ever reported twice or left out after a resume.
    Raises Diverged, for a held-out loss too.
    """

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report
        self._record: dict[str, Any] = {}
        self._begin = self._end = time.perf_counter()
        self._seen = self._tokens = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            self.flush()
            values = {key: float(logs[key]) for key in ("loss", "grad_norm", "learning_rate", "epoch") if key in logs}
            self._record = {"step": state.global_step, **values}
            self._record |= {"step_seconds": self._end - self._begin, "tokens": self._tokens}
            _check(self._record)
        elif "eval_loss" in logs:
            measured = {"eval_loss": float(logs["eval_loss"])}
            _check({"step": state.global_step, **measured})
            if self._record:
                self._record |= measured

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.flush()
        self._begin, self._seen = time.perf_counter(), state.num_input_tokens_seen

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end, self._tokens = time.perf_counter(), state.num_input_tokens_seen - self._seen

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.flush()

    def flush(self) -> None:
        """Report the record that is waiting, if there is one."""
        record, self._record = self._record, {}
        if record:
            self._report(record)


def _check(record: dict[str, Any]) -> None:
    for name, what in _CHECKED.items():
        value = record.get(name)
        if value is not None and not math.isfinite(value):
            raise Diverged(f"{what} is {value} at step {record['step']}")
