"""The paired test of `plsh compare`, against SciPy's own, and its verdicts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from plsh_cli.experiments.compare_match import Pair
from plsh_cli.experiments.compare_rows import Difference, Facts, first_line, paired, row, verdict
from plsh_cli.experiments.compare_settings import Setting

FIRST = [0.31, 0.28, 0.35, 0.30, 0.27]
SECOND = [0.33, 0.32, 0.36, 0.35, 0.28]
FACTS = Facts("attention", "union", ("a text with a seed", "a text"), 3, 0)


def test_a_paired_difference_is_scipys():
    found, wanted = paired(FIRST, SECOND), stats.ttest_rel(FIRST, SECOND)
    low, high = wanted.confidence_interval(0.95)
    assert found.p_value == pytest.approx(wanted.pvalue, rel=1e-12)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high), rel=1e-12)
    assert found.pairs == 5
    # Pairing is what decides it: as two samples they do not differ.
    assert found.p_value < 0.05 < stats.ttest_ind(FIRST, SECOND).pvalue


def test_degenerate_differences():
    assert paired(FIRST, FIRST) == Difference(0.0, 0.0, 1.0, 5)
    assert paired([1.0], [2.0]) == Difference(-1.0, None, None, 1)
    alike = paired([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert (alike.mean, alike.ci95, alike.p_value) == (-1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("differences", "wanted"),
    [
        ([(-2.0, 1.0)], "better"),
        ([(2.0, 1.0)], "worse"),
        ([(-2.0, 3.0)], "undecided"),
        ([(-2.0, None)], "undecided"),
        ([(0.0, 0.0)], "undecided"),
        ([(-2.0, 1.0), (-2.0, 1.5)], "better"),
        ([(-2.0, 1.0), (-2.0, 2.5)], "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(differences, wanted):
    assert verdict(*(Difference(mean, half, 0.5, 9) for mean, half in differences), None) == wanted


def test_differences_that_rounding_makes_decide_nothing():
    one = Difference(4.8e-8, 1e-10, 1e-9, 9)
    assert verdict(one) == "worse"
    assert verdict(one, resolution=1e-6) == "undecided"
    assert verdict(Difference(-2e-6, 1e-10, 1e-9, 9), resolution=1e-6) == "better"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_errors_that_are_not_finite_are_said_and_decide_nothing(bad):
    drawn, blocks = [[0.1, 0.2, bad], [0.2, 0.3, 0.4]], [[0.5], [0.7]]
    one = a_row(Setting("plsh", num_samples=3), Setting("fixed_blocks", lengths=(5,)), (drawn, blocks))
    assert (one["verdict"], one["not_finite"], one["pairs"]) == ("undecided", "method", 6)
    assert [one[key] for key in ("method_error", "difference", "difference_ci95", "p_value", "p_value_texts")] == [
        None
    ] * 5
    assert one["baseline_error"] == pytest.approx(0.6)
    json.dumps(one, allow_nan=False)


def a_row(method, baseline, errors, facts=FACTS):
    return row(facts, "m", 7, Pair(method, baseline, 10.0, 10.1, ""), tuple(np.array(one) for one in errors))


def test_what_no_seed_changes_is_paired_with_every_seed_of_its_text():
    drawn = [[0.1, 0.2, 0.3], [0.2, 0.3, 0.4]]
    blocks = [[0.5], [0.7]]
    one = a_row(Setting("plsh", num_samples=3), Setting("fixed_blocks", lengths=(5,)), (drawn, blocks))
    wanted = stats.ttest_rel(np.ravel(drawn), [0.5] * 3 + [0.7] * 3)
    assert (one["pairs"], one["unit"], one["p_value"]) == (6, "a text with a seed", pytest.approx(wanted.pvalue))
    texts = stats.ttest_rel([0.2, 0.3], [0.5, 0.7])
    assert one["p_value_texts"] == pytest.approx(texts.pvalue)
    assert one["verdict"] == "undecided"  # two texts cannot tell
    assert one["baseline_error_ci95"] == pytest.approx(12.706 * 0.1, rel=1e-3)  # of two values, not of six


def test_pairs_of_biases_without_draws_are_texts():
    one = a_row(Setting("window", eps=0.1, pairs_of=9), Setting("alibi"), ([[0.1], [0.2]], [[0.0], [0.0]]))
    assert (one["pairs"], one["seeds"], one["unit"], one["num_samples"]) == (2, 1, "a text", 9)
    assert one["difference_relative"] is None
    seeded = Facts("training", "union", ("a seed", "a seed"), 3, 0, by_seed=True)
    one = a_row(Setting("window", eps=0.1), Setting("alibi"), ([[0.1, 0.2, 0.3]], [[0.0, 0.0, 0.1]]), seeded)
    assert (one["pairs"], one["texts"], one["p_value_texts"]) == (3, 1, None)


def test_the_first_line_tells_equal_from_unequal():
    same = Pair(Setting("plsh", num_samples=3), Setting("window", eps=0.1), 100.0, 101.0, "")
    other = Pair(Setting("plsh", num_samples=3), Setting("alibi"), 100.0, 512.0, "it has no knob")
    assert first_line([same], "union").startswith("equal cost: every baseline is within 2 %")
    assert "1 %" in first_line([same], "union")
    line = first_line([same, other], "draws")
    assert line.startswith("UNEQUAL COST in 1 of 2 comparisons in pairs of all draws")
    assert "alibi: it has no knob; 5.12 times that of plsh s=3" in line
