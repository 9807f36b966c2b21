"""Intervals and fits over repeated runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float | None]:
    """The mean and the half-width of its Student t interval; the half-width of a single value is None.

    The interval assumes independent values of one roughly normal distribution (Student 1908), here one value per seed.
    Raises ValueError without values or where one is not finite.
    """
    sample = _finite("values", values)
    mean = float(sample.mean())
    if sample.size == 1:
        return mean, None
    quantile = stats.t.ppf(0.5 + confidence / 2, sample.size - 1)
    return mean, float(quantile * sample.std(ddof=1) / np.sqrt(sample.size))


def clustered_mean(
    sums: Sequence[float], counts: Sequence[float], confidence: float = 0.95
) -> tuple[float, float | None]:
    """The mean over all items of several groups and the half-width of its t interval; None for a single group.

    `sums` and `counts` have one entry per group. Groups are taken as independent, items within one not: the standard
    error is that of a ratio of two sums over groups (Cochran 1977, section 6.3). Raises ValueError as `t_interval`
    does, and unless there are as many counts as sums, all positive.
    """
    total, count = _finite("sums", sums), _finite("counts", counts)
    if total.size != count.size or (count <= 0).any():
        raise ValueError(f"counts must be {total.size} positive numbers, one per sum, got {count.tolist()}")
    mean = float(total.sum() / count.sum())
    groups = total.size
    if groups == 1:
        return mean, None
    error = float(np.sqrt(groups / (groups - 1) * ((total - mean * count) ** 2).sum()) / count.sum())
    return mean, float(stats.t.ppf(0.5 + confidence / 2, groups - 1)) * error


def loglog_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of ln y over ln x: the exponent p of a law y = c x^p.

    Raises ValueError unless both are positive and finite, of one length, with at least two different x.
    """
    slope, _ = loglog_line(x, y)
    return slope


def loglog_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope p and intercept ln c of the least-squares line ln y = ln c + p ln x; raises as `loglog_slope` does."""
    first, second = _finite("x", x), _finite("y", y)
    if first.size != second.size:
        raise ValueError(f"x and y must have one length, got {first.size} and {second.size}")
    if (first <= 0).any() or (second <= 0).any():
        raise ValueError("x and y must be positive: a power law has no zeros")
    ln_x, ln_y = np.log(first), np.log(second)
    spread = float(((ln_x - ln_x.mean()) ** 2).sum())
    if spread == 0.0:
        raise ValueError(f"x must hold at least two different values, got {list(x)}")
    slope = float(((ln_x - ln_x.mean()) * (ln_y - ln_y.mean())).sum() / spread)
    return slope, float(ln_y.mean() - slope * ln_x.mean())


def ratio_bootstrap(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    resamples: int,
    generator: np.random.Generator,
    confidence: float = 0.95,
) -> tuple[float, float | None, float | None]:
    """mean(numerator) / mean(denominator) of two independent positive samples with the ends of its bootstrap interval.

    The interval is bias-corrected and accelerated (BCa; Efron 1987), or the percentile interval where the acceleration
    is undefined. Both ends are None where a sample has a single value. With very few values it is too narrow, as every
    bootstrap interval is. Raises ValueError without values, where one is not finite, and for a zero denominator.
    """
    above, below = _finite("numerator", numerator), _finite("denominator", denominator)
    if below.mean() == 0.0:
        raise ValueError("denominator must have a mean other than 0")
    ratio = float(above.mean() / below.mean())
    if min(above.size, below.size) < 2:
        return ratio, None, None
    if np.ptp(above) == 0.0 and np.ptp(below) == 0.0:
        return ratio, ratio, ratio
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (above, below),
            _ratio_of_means,
            n_resamples=resamples,
            batch=1000,
            method="BCa",
            confidence_level=confidence,
            rng=generator,
        )
    ends = np.array(found.confidence_interval)
    if not np.isfinite(ends).all():
        ends = np.quantile(found.bootstrap_distribution, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return ratio, float(ends[0]), float(ends[1])


def _ratio_of_means(above: np.ndarray, below: np.ndarray, axis: int) -> np.ndarray:
    return above.mean(axis=axis) / below.mean(axis=axis)


def _finite(name: str, values: Sequence[float]) -> np.ndarray:
    sample = np.asarray(values, dtype=np.float64).ravel()
    if sample.size == 0:
        raise ValueError(f"{name} must hold at least one value")
    if not np.isfinite(sample).all():
        position = int(np.flatnonzero(~np.isfinite(sample))[0])
        raise ValueError(f"{name}[{position}] = {sample[position]}: must be finite")
    return sample
