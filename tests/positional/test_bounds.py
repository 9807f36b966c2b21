"""Bounds against values computed apart (30 digits, by mpmath, from the formulas in the paper)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plsh_cli.positional import bounds, kernels
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator


@pytest.mark.parametrize(
    ("sigma", "value"), [(2, 7.0829881650735966), (16, 49.010415988561331), (256, 769.0006510415011)]
)
def test_psi(sigma: float, value: float) -> None:
    assert bounds.psi(sigma) == pytest.approx(value, rel=1e-14)


def test_reference_values() -> None:
    assert bounds.expectation_bound(16, 2048, 40) == pytest.approx(30.739862026315141, rel=1e-14)
    assert bounds.tail_probability(2, 2048, 400, 20.0) == pytest.approx(3.6839010862312021e-48, rel=1e-11)
    assert bounds.max_norm_bound(2048, 40, 0.05) == pytest.approx(0.48654544271877541, rel=1e-14)
    assert bounds.max_norm_probability(2048, 160, 0.3) == pytest.approx(2.6062064871378865e-6, rel=1e-12)
    assert bounds.rule_of_thumb_samples(16, 4500, 3.2) == 211


def test_probabilities_are_clipped_and_bounds_meet() -> None:
    assert bounds.tail_probability(16, 2048, 10, 0.0) == 1.0
    assert bounds.tail_probability(16, 2048, 10, 1e9) == 0.0
    assert bounds.max_norm_probability(2048, 10, 0.0) == 1.0
    assert bounds.max_norm_probability(2048, 40, bounds.max_norm_bound(2048, 40, 0.05)) == pytest.approx(
        0.05, rel=1e-12
    )
    assert bounds.expectation_bound(16, 1, 5) == 0.0
    assert bounds.rule_of_thumb_samples(16, 1, 0.5) == 1
    assert bounds.rule_of_thumb_samples(1e9, 4500, 1e-9) == pytest.approx(1e36 * math.log(4500), rel=1e-12)


@pytest.mark.parametrize(
    ("s", "median", "upper"),
    [
        (1, 1.67834699002, 6.63835206799),
        (10, 4.38766779138, 9.22840549688),
        (20, 5.20485604561, 9.99343062686),
        (100, 7.06235218945, 11.7509776078),
        (1000, 9.63915590132, 14.2312593855),
    ],
)
def test_quantiles_of_the_widest_width(s: int, median: float, upper: float) -> None:
    """Roots of (1 - (1 + t) e^-t)^s = q."""
    kernel = kernels.alibi(3.0)
    assert bounds.max_width_quantile(kernel, s, 0.5) == pytest.approx(3 * median, rel=1e-10)
    assert bounds.max_width_quantile(kernel, s, 0.99) == pytest.approx(3 * upper, rel=1e-10)


def test_quantiles_of_integer_and_heavy_widths() -> None:
    assert bounds.max_width_quantile(kernels.alibi(256.0), 20, 0.5, "integer") == pytest.approx(256 * 5.2049, abs=2)
    assert bounds.max_width_quantile(kernels.log(1 / 256, 1.0), 20, 0.5) == math.inf
    table = kernels.table(np.maximum(0.0, 1.0 - np.arange(9) / 5))
    assert bounds.max_width_quantile(table, 3, 0.5, "integer") == 5.0
    with pytest.raises(ValueError, match="integer widths only"):
        bounds.max_width_quantile(table, 3, 0.5)


@pytest.mark.parametrize("pitch", ["real", "integer"])
def test_half_of_all_sets_exceed_the_median_width(pitch: str) -> None:
    """Hoeffding: false alarm at most 1e-6 for 2000 sets."""
    kernel, s, sets = kernels.alibi(9.0), 20, 2000
    widths = draw(kernel, 5000, s * sets, generator(1), "iid", pitch).widths.reshape(sets, s)
    share = (widths.max(axis=1) > bounds.max_width_quantile(kernel, s, 0.5, pitch)).mean()
    # Integer widths: the share above the median may be below one half by the mass of one integer, at most 2 %.
    assert abs(share - 0.5) < math.sqrt(math.log(2e6) / (2 * sets)) + (0.02 if pitch == "integer" else 0.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: bounds.psi(0.0),
        lambda: bounds.psi(math.nan),
        lambda: bounds.expectation_bound(1.0, 0, 5),
        lambda: bounds.expectation_bound(1.0, 5, 0),
        lambda: bounds.tail_probability(1.0, 5, 5, -1.0),
        lambda: bounds.tail_probability(1.0, 5, 5, math.nan),
        lambda: bounds.max_norm_bound(5, 5, 1.0),
        lambda: bounds.max_norm_probability(5, 5, -0.1),
        lambda: bounds.rule_of_thumb_samples(1.0, 5, 0.0),
        lambda: bounds.max_width_quantile(kernels.alibi(1.0), 5, 1.0),
        lambda: bounds.max_width_quantile(kernels.alibi(1.0), 5, 0.5, "odd"),
    ],
)
def test_arguments_out_of_range_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()


def test_the_rule_of_thumb_beyond_all_floats_is_none() -> None:
    assert bounds.rule_of_thumb_samples(1e155, 64, 0.1) is None
    assert bounds.rule_of_thumb_samples(1e300, 64, 1e-300) is None
    assert bounds.rule_of_thumb_samples(1e300, 1, 1e-300) == 1
