"""Bias kernels: slopes, values, and the width laws that reproduce them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import gamma

from plsh_cli.positional import kernels
from plsh_cli.positional.kernels import Kernel, alibi_slopes

SIGMAS = (0.05, 0.7, 2.0, 16.0, 256.0, 1e9)
LENGTHS = (1, 2, 3, 127, 1025)


def families(n: int) -> list[Kernel]:
    """Kernels of every family; the tables level off above 0, are cut to 0, and are rounded."""
    d = np.arange(n)
    return [
        *(kernels.alibi(sigma) for sigma in SIGMAS),
        kernels.log(1.0, 0.1),
        kernels.log(3.0, 5.0),
        kernels.log(1 / 256, 1.0),
        kernels.power(0.3, 0.5),
        kernels.power(1 / 256, 1 / 256),
        kernels.power(2.0, 1.0),
        kernels.table(0.3 + 0.7 * np.exp(-d / 3)),
        kernels.table(np.maximum(0.0, 1.0 - d / 5)),
        kernels.table(np.exp(-d / 1e6)),
        kernels.table(np.ones(n)),
    ]


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (8, [2.0**-k for k in range(1, 9)]),
        (12, [*(2.0**-k for k in range(1, 9)), *(2.0 ** -(k + 0.5) for k in range(4))]),
        (14, [*(2.0**-k for k in range(1, 9)), *(2.0 ** -(k + 0.5) for k in range(6))]),
        (40, [*(2.0 ** (-k / 4) for k in range(1, 33)), *(2.0 ** (-(2 * k + 1) / 8) for k in range(8))]),
    ],
)
def test_slopes_follow_the_recipe_also_between_powers_of_two(heads: int, slopes: list[float]) -> None:
    np.testing.assert_allclose(alibi_slopes(heads), slopes, rtol=1e-15)


def test_twelve_heads_end_as_published() -> None:
    np.testing.assert_allclose(alibi_slopes(12)[7:], [1 / 256, 0.7071, 0.3536, 0.1768, 0.0884], atol=5e-5)


@pytest.mark.parametrize("heads", [0, -3, 2.5, True])
def test_a_number_of_heads_that_is_none_is_refused(heads: object) -> None:
    with pytest.raises(ValueError, match="num_heads"):
        alibi_slopes(heads)


@pytest.mark.parametrize("n", LENGTHS)
def test_integer_width_law_has_the_kernel_as_collision_probability(n: int) -> None:
    """sum over m of P[m] (1 - d/m)+ plus the wide part is phi(d) at every d < n."""
    for kernel in families(n):
        survival = kernel.survival(n)
        mass = -np.diff(survival)  # P[m] for m = 1..n-2
        m = np.arange(1, mass.size + 1)
        d = np.arange(n)[:, None]
        narrow = (mass * np.maximum(0.0, 1.0 - d / m)).sum(axis=1) if n > 2 else np.zeros(n)
        wide = survival[-1] - np.arange(n) * kernel.drop(n - 2) if n > 1 else np.ones(1)
        np.testing.assert_allclose(narrow + wide, kernel.phi(np.arange(n)), rtol=0, atol=1e-12, err_msg=kernel.label)


@pytest.mark.parametrize("n", [2, 127, 1025])
def test_survival_starts_at_one_and_never_rises(n: int) -> None:
    for kernel in families(n):
        survival = kernel.survival(n)
        assert survival.shape == (n - 1,)
        assert survival[0] == 1.0
        assert (np.diff(survival) <= 0.0).all()
        assert (survival >= 0.0).all()


def test_drops_keep_their_relative_accuracy() -> None:
    d = np.array([0.0, 1.0, 1e3, 1e6])
    sigma = 1e9
    np.testing.assert_allclose(
        kernels.alibi(sigma).drop(d), (1 / sigma - 0.5 / sigma**2) * np.exp(-d / sigma), rtol=1e-12
    )
    far = 1e12
    np.testing.assert_allclose(kernels.log(1.0, 1.0).drop(far), far**-2.0, rtol=1e-10)
    np.testing.assert_allclose(kernels.power(1.0, 0.5).drop(1e4), np.exp(-100.0) * 0.005, rtol=2e-2)


def test_real_widths_of_alibi_are_gamma_distributed() -> None:
    v = np.array([1.0, 1 - 1e-9, 0.9, 0.5, 1e-3, 1e-15])
    np.testing.assert_allclose(kernels.alibi(7.0).real_width(v), gamma.isf(v, 2, scale=7.0), rtol=1e-9)


@pytest.mark.parametrize(
    "kernel", [kernels.log(1.0, 0.1), kernels.log(1 / 8, 3.0), kernels.power(0.3, 0.5), kernels.power(0.1, 1.0)]
)
def test_real_widths_invert_their_survival_function(kernel: Kernel) -> None:
    """P[w > t] = phi(t) - t phi'(t), the derivative by central differences."""
    v = np.array([0.999, 0.9, 0.5, 0.1, 1e-3, 1e-6])
    t = kernel.real_width(v)
    h = 1e-5 * t
    slope = (kernel.phi(t + h) - kernel.phi(t - h)) / (2 * h)
    np.testing.assert_allclose(kernel.phi(t) - t * slope, v, rtol=1e-6)


def test_widths_beyond_floats_are_infinite_and_those_below_are_not() -> None:
    kernel = kernels.log(1 / 256, 1.0)
    widths = kernel.real_width(np.array([0.9, 0.5, 0.1, 1e-3]))
    assert widths[1] == pytest.approx(3.14e77, rel=1e-2)
    assert np.isinf(widths).tolist() == [False, False, False, True]
    assert np.isinf(kernel.integer_width(np.array([1e-3])))[0]


def test_integer_widths_are_the_smallest_below_the_survival_probability() -> None:
    v = np.concatenate([np.linspace(0.02, 1.0, 211), [1 - 1e-12]])
    for kernel in families(2049)[1:]:
        survival = kernel.survival(2049)
        widths = kernel.integer_width(v)
        known = widths < survival.size
        m = widths[known].astype(int)
        assert (survival[m] < v[known]).all(), kernel.label
        assert ((m == 1) | (survival[m - 1] >= v[known] - 1e-14)).all(), kernel.label
        assert (survival[-1] >= v[~known] - 1e-14).all(), kernel.label


@pytest.mark.parametrize(
    ("values", "n", "message"),
    [
        ([1.0, 0.5], 3, "has 2 values"),
        ([0.9, 0.5, 0.2], 3, "distance 0"),
        ([1.0, 0.5, 0.6, 0.1], 4, "distance 2 .*decreasing"),
        ([1.0, 0.9, 0.5, 0.4], 4, "distance 1 .*convex"),
        ([1.0, 0.5, 0.25, 0.2, 0.1, 0.05], 6, "distance 3 .*convex"),
        ([1.0, 0.4, -0.1, -0.2], 4, "distance 2 .*between 0 and 1"),
    ],
)
def test_a_table_that_is_no_kernel_is_refused_where_it_first_fails(values: list[float], n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.table(values, "mine").check(n)


def test_only_the_distances_in_use_are_judged() -> None:
    kernels.table([1.0, 0.5, 0.25, 0.9]).check(3)
    kernels.table([1.0]).check(1)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True])
def test_parameters_must_be_positive_and_finite(value: float) -> None:
    for build in (
        kernels.alibi,
        lambda x: kernels.log(x, 1.0),
        lambda x: kernels.log(1.0, x),
        lambda x: kernels.power(x, 1.0),
    ):
        with pytest.raises(ValueError, match="must be a finite number > 0"):
            build(value)
    with pytest.raises(ValueError, match="at most 1"):
        kernels.power(1.0, 1.01)


def test_labels_and_sigma() -> None:
    assert kernels.alibi(16).label == "alibi(sigma=16)"
    assert kernels.log(1, 0.1).label == "log(a=1, b=0.1)"
    assert kernels.power(0.5, 1).label == "power(a=0.5, p=1)"
    assert kernels.table([1.0], "t5").label == "table(t5)"
    assert kernels.alibi(16).sigma == 16.0
    assert kernels.log(1, 1).sigma is None
    assert kernels.alibi(16) == kernels.alibi(16.0)


def test_a_table_ends_where_it_ends() -> None:
    kernel = kernels.table([1.0, 0.5, 0.25])
    with pytest.raises(ValueError, match=r"distances 0\.\.2 only"):
        kernel.phi(3)
    with pytest.raises(ValueError, match="integer widths only"):
        kernel.real_width(0.5)
    with pytest.raises(ValueError, match="finite"):
        kernels.table([1.0, float("nan")])
    with pytest.raises(ValueError, match="at least one number"):
        kernels.table([])
