"""Which settings are compared: every method at every s, beside the baseline with its knob set to the method's cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from plsh_cli.experiments.compare_settings import KNOBS, Ladder, Setting, ladder, own

#: Costs that differ by a smaller share are called equal.
TOLERANCE = 0.02
_STEPS = 44


@dataclass(frozen=True)
class Matched:
    """A setting found for a target, and what both cost."""

    setting: Setting
    target_cost: float
    cost: float

    @property
    def off(self) -> float:
        """How far its cost is from the target's, as a share of that."""
        return abs(self.cost / self.target_cost - 1.0)

    @property
    def equal(self) -> bool:
        """Whether both cost the same, within the tolerance."""
        return self.off <= TOLERANCE


@dataclass(frozen=True)
class Pair:
    """A method and its baseline. note: why their costs differ by more than the tolerance; empty where they do not."""

    method: Setting
    baseline: Setting
    method_cost: float
    baseline_cost: float
    note: str

    @property
    def ratio(self) -> float:
        """The baseline's cost over the method's."""
        return self.baseline_cost / self.method_cost


class Matcher(Protocol):
    """Finds the setting of a ladder whose cost is nearest to a target's, or says what two settings cost."""

    def match(self, target: Setting, rungs: Ladder) -> Matched: ...

    def both(self, target: Setting, setting: Setting) -> Matched: ...


class ByCount:
    """Matches costs that are counted."""

    def __init__(self, cost: Callable[[Setting], float]) -> None:
        self._cost = cost

    def match(self, target: Setting, rungs: Ladder) -> Matched:
        """By bisection; fixed blocks are then settled head by head."""
        wanted = self._cost(target)
        found = bisect(rungs, lambda setting: self._cost(setting) - wanted)
        if found.lengths is not None:
            found = settle(found, lambda setting: self._cost(setting) - wanted, rungs(1.0).lengths or ())
        return Matched(found, wanted, self._cost(found))

    def both(self, target: Setting, setting: Setting) -> Matched:
        """What both cost."""
        return Matched(setting, self._cost(target), self._cost(setting))


def bisect(rungs: Ladder, excess: Callable[[Setting], float], steps: int = _STEPS) -> Setting:
    """The setting of least |excess| among those that bisection meets; excess never falls along the ladder."""
    low, high = 0.0, 1.0
    least, best = math.inf, rungs(low)
    for _ in range(steps):
        middle = (low + high) / 2.0
        setting = rungs(middle)
        value = excess(setting)
        if abs(value) < least:
            least, best = abs(value), setting
        if value == 0.0:
            break
        low, high = (middle, high) if value < 0.0 else (low, middle)
    return best


def settle(setting: Setting, excess: Callable[[Setting], float], longest: Sequence[int]) -> Setting:
    """Fixed blocks with single tokens added to or taken from heads for as long as |excess| falls, at most one each."""
    lengths = list(setting.lengths or ())
    best = abs(excess(setting))
    free = set(range(len(lengths)))
    while free and best > 0.0:
        tried = []
        for head in sorted(free):
            for step in (-1, 1):
                if 1 <= lengths[head] + step <= longest[head]:
                    changed = [*lengths[:head], lengths[head] + step, *lengths[head + 1 :]]
                    tried.append((abs(excess(replace(setting, lengths=tuple(changed)))), head, changed))
        least = min(tried, default=None)
        if least is None or least[0] >= best:
            break
        best, head, lengths = least
        free.discard(head)
    return replace(setting, lengths=tuple(lengths))


def pairs(
    methods: Sequence[str],
    baseline: str,
    sizes: Sequence[int],
    kind: str,
    matcher: Matcher,
    shape: tuple[Sequence[float], int, float],
    share: float = 0.0,
) -> list[Pair]:
    """Every comparison. shape: sigma per head, n, and the window's own eps.

    share: a baseline that was set for an earlier method is taken again where its cost differs by no more than that.
    """
    found: list[Pair] = []
    for method in _methods(methods, sizes, kind, matcher, shape):
        known = [pair.baseline for pair in found if pair.baseline.bias == baseline]
        found.append(_pair(method, baseline, kind, matcher, shape, known if share else [], share))
    return found


def _methods(
    names: Sequence[str],
    sizes: Sequence[int],
    kind: str,
    matcher: Matcher,
    shape: tuple[Sequence[float], int, float],
) -> list[Setting]:
    sigmas, n, eps = shape
    found: list[Setting] = []
    for name in names:
        if name == "plsh":
            found += [Setting(name, num_samples=size) for size in sorted(sizes)]
        elif name in KNOBS and kind != "s":
            for size in sorted(sizes):
                one = matcher.match(Setting("plsh", num_samples=size), ladder(name, sigmas, n))
                found.append(replace(one.setting, pairs_of=size if one.equal else None))
        else:
            found.append(own(name, sigmas, n, eps))
    # Several s may be beyond the knob's end.
    return list(dict.fromkeys(found))


def _pair(
    method: Setting,
    baseline: str,
    kind: str,
    matcher: Matcher,
    shape: tuple[Sequence[float], int, float],
    known: Sequence[Setting],
    share: float,
) -> Pair:
    sigmas, n, eps = shape
    if method.bias == baseline:
        one = matcher.both(method, method.same)
        # The same setting: whatever a clock says, it costs the same.
        return Pair(method, method.same, one.target_cost, one.target_cost, "")
    matchable = baseline == "plsh" or (baseline in KNOBS and kind != "s")
    if not matchable:
        one = matcher.both(method, own(baseline, sigmas, n, eps))
    else:
        near = [matcher.both(method, setting) for setting in known]
        near = [one for one in near if one.off <= share]
        one = near[0] if near else matcher.match(method, ladder(baseline, sigmas, n))
    return Pair(method, one.setting, one.target_cost, one.cost, _note(baseline, kind, matchable, one))


def _note(baseline: str, kind: str, matchable: bool, one: Matched) -> str:
    if one.equal:
        return ""
    if matchable:
        return "its knob reaches no nearer" if kind != "time" else "its measured time came no nearer"
    if baseline in KNOBS:
        return "its knob does not change the number of attentions"
    return "it has no knob"
