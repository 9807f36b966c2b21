"""What a training run shows and records of every step: loss, speed, utilisation, time left, and the draws' sizes.

A record of metrics.jsonl: step (from 1), loss (nats per token), grad_norm, learning_rate, epoch, eval_loss (where
measured), step_seconds, tokens (of this step, all processes), tokens_per_second, mfu (useful operations per second over
those of a matrix product on the same device and threads, attention counted as if windows had no document mask; null
where unknown), and for plsh block_mean and block_max (tokens) and pairs_per_token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plsh_cli.console import Steps


@dataclass
class Progress:
    """Completes the records of steps, logs them and shows them.

    tokens: of a whole step of all processes; the last step of an epoch may have fewer. flops: of a whole step. rate:
    operations per second of a matrix product, of all processes. statistics: of the draws of the step that has just
    ended. log: takes (record, step).
    """

    total: int
    first: int
    tokens: int
    flops: Callable[[], float]
    rate: float
    statistics: Callable[[], dict[str, float]]
    log: Callable[[dict[str, Any], int], None]
    display: Steps

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self.seconds: list[float] = []

    def report(self, record: dict[str, Any]) -> None:
        """Take the record of a step, as `training.watch` gives it."""
        values = {key: value for key, value in record.items() if key != "step"}
        seconds = values.get("step_seconds")
        if seconds:
            self.seconds.append(seconds)
            values["tokens_per_second"] = values["tokens"] / seconds
            values["mfu"] = self.flops() * values["tokens"] / self.tokens / seconds / self.rate
        values |= self.statistics()
        self.log(values, record["step"])
        self.display.show(record["step"], self._note(record["step"], values))

    def _note(self, step: int, values: dict[str, Any]) -> str:
        done = step - self.first
        left = (time.monotonic() - self._begin) / max(done, 1) * (self.total - step)
        parts = [f"loss {values['loss']:.3f}"] if "loss" in values else []
        if "eval_loss" in values:
            parts.append(f"held-out {values['eval_loss']:.3f}")
        if "tokens_per_second" in values:
            parts += [f"{values['tokens_per_second']:,.0f} tokens/s", f"MFU {100 * values['mfu']:.0f} %"]
        return ", ".join([*parts, f"{clock(left)} left"])


def clock(seconds: float) -> str:
    """A duration as text: 42 s, 3:05 min, 2:10 h, 12 days."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole >= 72 * 3600:
        return f"{whole / 86400:,.0f} days"
    return f"{whole // 60}:{whole % 60:02d} min" if whole < 6000 else f"{whole // 3600}:{whole % 3600 // 60:02d} h"
