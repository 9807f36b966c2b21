"""Matches settings by measured time: attention of both is called in turn, and the ratio of the medians is compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from plsh_cli.experiments.compare_match import Matched
from plsh_cli.experiments.compare_settings import Ladder, Setting

#: Calls of each of the two: while the knob is sought, and for the times that are reported.
_ROUGH, _FINE = 7, 41
_ROUGH_STEPS, _FINE_STEPS = 7, 8


class ByTime:
    """Matches the time of one attention; costs are in milliseconds."""

    def __init__(self, call: Callable[[Setting], Callable[[], object]]) -> None:
        """call: what runs attention once under a setting, everything prepared."""
        self._call = call

    def match(self, target: Setting, rungs: Ladder) -> Matched:
        """Bisection with few calls, then smaller and smaller steps with many, until the times agree.

        What is returned was measured anew: the nearest of several measurements would look nearer than it is.
        """
        low, high = 0.0, 1.0
        for _ in range(_ROUGH_STEPS):
            middle = (low + high) / 2.0
            one = self._measure(target, rungs(middle), _ROUGH)
            low, high = (middle, high) if one.cost < one.target_cost else (low, middle)
        at, step = (low + high) / 2.0, (high - low) / 2.0
        best: Matched | None = None
        for _ in range(_FINE_STEPS):
            one = self._measure(target, rungs(min(1.0, max(0.0, at))), _FINE)
            if one.equal:
                again = self.both(target, one.setting)
                if again.equal:
                    return again
            best = one if best is None or one.off < best.off else best
            at += step if one.cost < one.target_cost else -step
            step *= 0.7
        assert best is not None
        return self.both(target, best.setting)

    def both(self, target: Setting, setting: Setting) -> Matched:
        """What both take."""
        return self._measure(target, setting, _FINE)

    def _measure(self, target: Setting, setting: Setting, times: int) -> Matched:
        calls = (self._call(target), self._call(setting))
        for call in calls:
            call()
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(times):
            for call, taken in zip(calls, seconds, strict=True):
                begin = time.perf_counter()
                call()
                taken.append(time.perf_counter() - begin)
        first, second = (1000.0 * statistics.median(taken) for taken in seconds)
        return Matched(setting, first, second)
