"""Intervals and fits against closed forms, and their coverage with stated false-alarm probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from plsh_cli.stats import clustered_mean, loglog_line, loglog_slope, ratio_bootstrap, t_interval


def test_t_interval_matches_the_textbook_value():
    mean, half = t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(2.7764451051977987 * np.sqrt(2.5) / np.sqrt(5), rel=1e-12)


def test_t_interval_of_one_value_has_no_width():
    assert t_interval([0.25]) == (0.25, None)


def test_t_interval_of_equal_values_has_zero_width():
    assert t_interval([2.0, 2.0, 2.0]) == (2.0, 0.0)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_t_interval_refuses(values):
    with pytest.raises(ValueError, match="values"):
        t_interval(values)


def test_t_interval_covers_at_its_stated_rate():
    # 2000 intervals at 95 %: outside 92.5 .. 97.2 % with probability 1e-6 (binomial, both tails).
    draws = np.random.default_rng(7).normal(3.0, 2.0, size=(2000, 5))
    hits = sum(abs(mean - 3.0) <= half for mean, half in map(t_interval, draws))
    low, high = scipy_stats.binom.ppf([5e-7, 1 - 5e-7], 2000, 0.95)
    assert low <= hits <= high


def test_slope_and_line_of_an_exact_power_law():
    x = np.array([1.0, 7.0, 31.0, 1000.0])
    slope, intercept = loglog_line(x, 3.0 * x**-0.5)
    assert slope == pytest.approx(-0.5, abs=1e-12)
    assert intercept == pytest.approx(np.log(3.0), abs=1e-12)
    assert loglog_slope(x, 3.0 * x**-0.5) == slope


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1, 0], "positive"),
        ([3, 3], [1, 2], "two different"),
        ([1, 2, 3], [1, 2], "one length"),
        ([], [], "at least one"),
    ],
)
def test_slope_refuses(x, y, message):
    with pytest.raises(ValueError, match=message):
        loglog_slope(x, y)


def test_ratio_bootstrap_brackets_the_ratio_and_repeats():
    rng = np.random.default_rng(11)
    above, below = rng.gamma(50, 1, 40) * 3, rng.gamma(50, 1, 37)
    first = ratio_bootstrap(above, below, resamples=2000, generator=np.random.default_rng(1))
    second = ratio_bootstrap(above, below, resamples=2000, generator=np.random.default_rng(1))
    assert first == second
    ratio, low, high = first
    assert ratio == pytest.approx(above.mean() / below.mean(), rel=1e-12)
    assert low < ratio < high


def test_ratio_bootstrap_covers_at_its_stated_rate():
    # True ratio 2. 300 intervals of nominal 95 %: BCa with 30 + 30 values covers about 94 %; below 89 % or above 99 %
    # has probability under 1e-3 each even at a true coverage of 94 %.
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(300):
        _, low, high = ratio_bootstrap(rng.gamma(9, 2, 30), rng.gamma(9, 1, 30), resamples=500, generator=rng)
        hits += low <= 2.0 <= high
    assert 0.89 * 300 <= hits <= 0.99 * 300


def test_ratio_bootstrap_without_spread_or_with_one_value():
    generator = np.random.default_rng(0)
    assert ratio_bootstrap([3.0], [2.0, 2.5], resamples=100, generator=generator)[1:] == (None, None)
    assert ratio_bootstrap([3.0, 3.0], [2.0, 2.0], resamples=100, generator=generator) == (1.5, 1.5, 1.5)


def test_ratio_bootstrap_survives_a_sample_of_two():
    ratio, low, high = ratio_bootstrap([1.0, 2.0], [1.0, 1.0], resamples=200, generator=np.random.default_rng(3))
    assert 1.0 <= low <= ratio <= high <= 2.0


def test_ratio_bootstrap_refuses_a_zero_denominator():
    with pytest.raises(ValueError, match="denominator"):
        ratio_bootstrap([1.0, 2.0], [0.0, 0.0], resamples=100, generator=np.random.default_rng(0))


def test_a_clustered_mean_with_equal_groups_is_the_t_interval_of_their_means():
    values = np.random.default_rng(5).normal(size=(7, 11))
    mean, half = clustered_mean(values.sum(axis=1), np.full(7, 11))
    wanted = t_interval(values.mean(axis=1))
    assert (mean, half) == pytest.approx(wanted, rel=1e-12)


def test_a_clustered_mean_weighs_groups_by_their_items():
    mean, half = clustered_mean([2.0, 30.0], [1, 10])
    assert mean == pytest.approx(32 / 11)
    assert half > 0
    assert clustered_mean([6.0], [3]) == (2.0, None)


def test_intervals_of_clustered_means_cover_the_truth_as_often_as_they_say():
    # 400 repetitions, 12 groups of unequal size with effects of their own; outside of 366 .. 394 hits with probability
    # 0.2 % if 95 % are covered. Items taken as independent would cover far less often.
    generator, hits = np.random.default_rng(6), 0
    for _ in range(400):
        counts = generator.integers(20, 40, 12)
        sums = [size * generator.normal() + generator.normal(size=size).sum() for size in counts]
        mean, half = clustered_mean(sums, counts)
        hits += abs(mean) <= half
    assert 366 <= hits <= 394


@pytest.mark.parametrize(("sums", "counts"), [([1.0], [1, 2]), ([1.0, 2.0], [0, 1]), ([np.nan], [1]), ([], [])])
def test_a_clustered_mean_refuses_what_has_none(sums, counts):
    with pytest.raises(ValueError, match=r"counts|sums"):
        clustered_mean(sums, counts)
