"""The rows of `plsh compare`: a flat record per comparison, measure and length, with a paired test.

Fields:
- level, measure (see MEASURES of the level's module; smaller is better), n (tokens)
- method, num_samples (s, or the s whose cost the method was given; null: no knob), knob (in words); baseline,
  baseline_samples, baseline_knob
- cost (union, draws, time, s), method_cost, baseline_cost (compare_costs.NAMES has the unit), cost_ratio (baseline's
  over method's), matched (within 2 %), cost_note (why not; empty where matched)
- method_error, baseline_error: means over texts and seeds. Each with _ci95, half-width of its own 95 % t
  interval
- difference: mean of method - baseline over units, below 0 where the method is better; difference_ci95, half-width of
  its 95 % t interval; difference_relative (over the baseline's mean); p_value of the paired t test (Student 1908)
- pairs (units), unit (what one is), texts, seeds, seed_first
- difference_ci95_texts, p_value_texts: the same over the means of each text; null unless a text has several units
- verdict: better or worse where the whole interval lies on one side of 0, over units and, where there is one, over
  texts too (units of one text share it); undecided otherwise, with a single pair, for a difference that is no larger
  than what the level's arithmetic tells apart (RESOLUTION), and where an error is not finite
- not_finite: in which errors that is, as where a training has diverged; empty where there is none. Errors that have
  such values, and the difference, are null then.

pairs.csv has what the rows are means of: measure, n, bias, num_samples, knob, lengths (tokens of every head's block),
text (from 0), seed (null where none matters), error. Settings that are the same are there once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from plsh_cli.experiments.compare_costs import NAMES
from plsh_cli.experiments.compare_match import TOLERANCE, Pair
from plsh_cli.experiments.compare_settings import Setting
from plsh_cli.stats import t_interval

#: Differences between relative errors that rounding alone makes: float32 outputs, float64 matrices and losses.
RESOLUTION = {"attention": 1e-6, "matrix": 1e-12, "training": 1e-12}


@dataclass(frozen=True)
class Difference:
    """A mean paired difference, the half-width of its 95 % t interval and the p-value; both None for a single pair.

    mean: None where it is not finite.
    """

    mean: float | None
    ci95: float | None
    p_value: float | None
    pairs: int


_NO_DIFFERENCE = Difference(None, None, None, 0)


@dataclass(frozen=True)
class Facts:
    """What all comparisons of a run share.

    units: what a unit is called where seeds matter, and where they do not, as no draws take part. by_seed: seeds matter
    without draws too.
    """

    level: str
    cost: str
    units: tuple[str, str]
    seeds: int
    seed_first: int
    by_seed: bool = False


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The paired difference first - second. Equal pairs differ by 0 with p = 1."""
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    mean, half = t_interval(difference)
    if half is None:
        return Difference(mean, None, None, 1)
    if not difference.any():
        return Difference(0.0, 0.0, 1.0, difference.size)
    with warnings.catch_warnings():
        # Differences that are all alike are no reason for a word: p is 0 then.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_1samp(difference, 0.0)
    return Difference(mean, half, float(found.pvalue), difference.size)


def verdict(*differences: Difference | None, resolution: float = 0.0) -> str:
    """better, worse or undecided, of a difference in something that is better the smaller it is."""
    told = [one for one in differences if one is not None]
    sides = {
        "undecided"
        if one.mean is None or one.ci95 is None or abs(one.mean) <= max(one.ci95, resolution)
        else ("better" if one.mean < 0 else "worse")
        for one in told
    }
    return sides.pop() if len(sides) == 1 else "undecided"


def row(facts: Facts, measure: str, n: int, pair: Pair, errors: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """A record. errors: of method and baseline, (texts, seeds), one seed for what no seed changes."""
    seeded = facts.by_seed or pair.method.drawn or pair.baseline.drawn
    method, baseline = (_units(one, facts.seeds if seeded else 1) for one in errors)
    texts, seeds = method.shape
    whole, over_texts = _NO_DIFFERENCE, None
    not_finite = [name for name, one in (("method", method), ("baseline", baseline)) if not np.isfinite(one).all()]
    if not not_finite:
        whole = paired(method.ravel(), baseline.ravel())
        over_texts = paired(method.mean(axis=1), baseline.mean(axis=1)) if texts > 1 and seeds > 1 else None
    base = float(baseline.mean())
    return {
        "level": facts.level,
        "measure": measure,
        "n": n,
        "method": pair.method.bias,
        "num_samples": pair.method.num_samples or pair.method.pairs_of,
        "knob": pair.method.label(),
        "baseline": pair.baseline.bias,
        "baseline_samples": pair.baseline.num_samples,
        "baseline_knob": pair.baseline.label(),
        "cost": facts.cost,
        "method_cost": pair.method_cost,
        "baseline_cost": pair.baseline_cost,
        "cost_ratio": pair.ratio,
        "matched": not pair.note,
        "cost_note": pair.note,
        **mean_error("method_error", errors[0]),
        **mean_error("baseline_error", errors[1]),
        "difference": whole.mean,
        "difference_ci95": whole.ci95,
        "difference_relative": whole.mean / base if base and whole.mean is not None else None,
        "p_value": whole.p_value,
        "pairs": method.size,
        "unit": facts.units[0 if seeded else 1],
        "texts": texts,
        "seeds": seeds,
        "seed_first": facts.seed_first,
        "difference_ci95_texts": over_texts.ci95 if over_texts else None,
        "p_value_texts": over_texts.p_value if over_texts else None,
        "verdict": verdict(whole, over_texts, resolution=RESOLUTION[facts.level]),
        "not_finite": " and ".join(not_finite),
    }


def every_error(
    measures: Sequence[tuple[str, int]], errors: Mapping[Setting, np.ndarray], first_seed: int
) -> list[dict[str, Any]]:
    """The records of pairs.csv. errors: per setting (measures, texts, seeds)."""
    return [
        {
            "measure": measure,
            "n": n,
            "bias": setting.bias,
            "num_samples": setting.num_samples,
            "knob": setting.label(),
            "lengths": " ".join(map(str, setting.lengths or ())),
            "text": text,
            "seed": None if values.shape[2] == 1 and not setting.drawn else first_seed + seed,
            "error": float(values[place, text, seed]),
        }
        for setting, values in errors.items()
        for place, (measure, n) in enumerate(measures)
        for text in range(values.shape[1])
        for seed in range(values.shape[2])
    ]


def first_line(pairs: Sequence[Pair], cost: str) -> str:
    """Whether all budgets are equal, and if not, whose are not, how far and why."""
    off = [pair for pair in pairs if pair.note]
    if not off:
        most = max(abs(pair.ratio - 1.0) for pair in pairs)
        within = f"equal cost: every baseline is within {100 * TOLERANCE:g} % of its method"
        return f"{within} in {NAMES[cost]} (largest deviation {100 * most:.2g} %)"
    reasons: dict[str, list[str]] = {}
    for pair in off:
        text = f"{pair.ratio:.3g} times that of {pair.method.name()}"
        if pair.method.pairs_of:
            text += f" at s={pair.method.pairs_of}"
        reasons.setdefault(f"{pair.baseline.bias}: {pair.note}", []).append(text)
    told = "; ".join(f"{reason}; {', '.join(of)}" for reason, of in reasons.items())
    return f"UNEQUAL COST in {len(off)} of {len(pairs)} comparisons in {NAMES[cost]}: {told}"


def _units(values: np.ndarray, seeds: int) -> np.ndarray:
    """(texts, seeds): what no seed changes is paired with every seed of its text."""
    return np.broadcast_to(values, (values.shape[0], seeds)) if values.shape[1] == 1 else values


def mean_error(name: str, values: np.ndarray) -> Mapping[str, float | None]:
    """A mean with `_ci95`, the half-width of its 95 % t interval; null where values are not finite."""
    mean, half = t_interval(values.ravel()) if np.isfinite(values).all() else (None, None)
    return {name: mean, f"{name}_ci95": half}
