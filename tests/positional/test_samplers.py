"""Samplers: unbiased for every kernel, pitch and number of draws, and reproducible."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plsh_cli.positional import kernels
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.samplers import SAMPLERS, draw
from plsh_cli.positional.streams import generator

N = 31
KERNELS = [
    kernels.alibi(0.7),
    kernels.alibi(5.0),
    kernels.alibi(200.0),
    kernels.log(1.0, 0.3),
    kernels.log(1 / 256, 1.0),
    kernels.power(0.5, 0.5),
]
TABLE = kernels.table(0.2 + 0.8 * np.exp(-np.arange(N) / 4))
LAWS = [(kernel, pitch) for kernel in KERNELS for pitch in ("real", "integer")] + [(TABLE, "integer")]
LAW_NAMES = [f"{kernel.label}-{pitch}" for kernel, pitch in LAWS]


def together(parts: PartitionSet, first: int) -> np.ndarray:
    """Whether `first` and first + d share a block, (draws, N - first) for d = 0, 1, ..."""
    starts = parts.block_starts_per_token()
    return starts[:, first:] == starts[:, first : first + 1]


@pytest.mark.parametrize(("kernel", "pitch"), LAWS, ids=LAW_NAMES)
def test_independent_draws_have_the_kernel_as_mean(kernel: Kernel, pitch: str) -> None:
    """Hoeffding for binomials; false alarm at most 1e-6 over all distances, places and laws of this test."""
    s = 20_000
    comparisons = len(LAWS) * (N + N - 7)
    bound = math.sqrt(math.log(2 * comparisons / 1e-6) / (2 * s))
    parts = draw(kernel, N, s, generator(1, kernel.label, pitch), "iid", pitch)
    for first in (0, 7):
        mean = together(parts, first).mean(axis=0)
        assert np.abs(mean - kernel.phi(np.arange(N - first))).max() < bound


@pytest.mark.parametrize(("kernel", "pitch"), LAWS, ids=LAW_NAMES)
@pytest.mark.parametrize("sampler", ["stratified", "importance"])
def test_stratified_draws_have_the_kernel_as_mean_for_few_draws(kernel: Kernel, pitch: str, sampler: str) -> None:
    """Sets of s = 1, 2, 3, 4, 7, 13 draws: the mean of the sets' weighted masks lies within 6 standard errors of phi.

    The standard error is the larger of the measured one and the binomial one of s draws per set, so that rare events
    cannot make it too small. False alarm by the normal approximation: 4 000 comparisons of 2e-9 each, below 1e-5.
    """
    sets = 120
    for s in (1, 2, 3, 4, 7, 13):
        means = np.empty((sets, N - 3))
        for i in range(sets):
            parts = draw(kernel, N, s, generator(i, kernel.label, pitch, sampler, s), sampler, pitch)
            assert parts.weights.sum() == pytest.approx(1.0, abs=1e-12)
            means[i] = parts.weights[0] @ together(parts, 3)
        phi = kernel.phi(np.arange(N - 3))
        binomial = np.sqrt(phi * (1 - phi) / (sets * s))
        error = np.maximum(means.std(axis=0, ddof=1) / math.sqrt(sets), binomial)
        assert (np.abs(means.mean(axis=0) - phi) <= 6 * error + 1e-12).all(), s


@pytest.mark.parametrize("sampler", ["stratified", "importance"])
@pytest.mark.parametrize("pitch", ["real", "integer"])
def test_many_stratified_draws_are_closer_than_the_binomial_bound(sampler: str, pitch: str) -> None:
    """One set of s draws against the bound of s independent ones; false alarm below 1e-6 if they are no worse."""
    s = 4001
    bound = math.sqrt(math.log(2 * N / 1e-6) / (2 * s))
    for kernel in KERNELS:
        parts = draw(kernel, N, s, generator(2, kernel.label), sampler, pitch)
        mean = parts.weights[0] @ together(parts, 0)
        assert np.abs(mean - kernel.phi(np.arange(N))).max() < bound / 3, kernel.label


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("pitch", ["real", "integer"])
@pytest.mark.parametrize("s", [1, 2, 3, 4, 5, 7, 19, 83])
def test_weights_groups_and_shapes(sampler: str, pitch: str, s: int) -> None:
    parts = draw(kernels.alibi(6.0), 127, s, generator(3, sampler), sampler, pitch)
    assert parts.widths.shape == parts.shifts.shape == parts.weights.shape == parts.groups.shape == (1, s)
    assert parts.groups.dtype == np.int64
    assert parts.weights.sum() == pytest.approx(1.0, abs=1e-14)
    assert (parts.weights > 0).all()
    for group in np.unique(parts.groups):
        assert np.unique(parts.widths[parts.groups == group]).size == 1
    if sampler == "iid":
        assert (parts.groups == np.arange(s)).all()
    if sampler != "importance":
        assert (parts.weights == 1 / s).all()
    if pitch == "integer":
        assert (parts.widths == np.floor(parts.widths)).all()
        assert (parts.shifts == np.floor(parts.shifts)).all()


@pytest.mark.parametrize("sampler", ["stratified", "importance"])
def test_the_shifts_of_a_group_are_equispaced(sampler: str) -> None:
    parts = draw(kernels.alibi(6.0), 127, 61, generator(4), sampler, "real")
    for group in np.unique(parts.groups):
        mine = parts.groups == group
        fractions = np.sort(parts.shifts[mine] / parts.widths[mine])
        gaps = np.diff(np.append(fractions, fractions[0] + 1.0))
        np.testing.assert_allclose(gaps, 1 / mine.sum(), atol=1e-12)


@pytest.mark.parametrize("pitch", ["real", "integer"])
@pytest.mark.parametrize("kernel", [kernels.alibi(5.0), kernels.log(1.0, 0.3)])
def test_fewer_independent_draws_are_a_prefix_of_more(kernel: Kernel, pitch: str) -> None:
    few, many = (draw(kernel, 257, s, generator(5), "iid", pitch) for s in (13, 101))
    assert (few.widths == many.widths[:, :13]).all()
    assert (few.shifts == many.shifts[:, :13]).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_gives_the_same_boundaries_whatever_else_was_drawn(sampler: str) -> None:
    kernel = kernels.alibi(9.0)
    alone = draw(kernel, 257, 17, generator(6, "partitions", kernel.label), sampler)
    generator(6, "init").standard_normal(1000)
    np.random.default_rng(0).random(10)
    draw(kernels.alibi(3.0), 99, 5, generator(6, "partitions", "other"), sampler)
    again = draw(kernel, 257, 17, generator(6, "partitions", kernel.label), sampler)
    assert (alone.block_starts_per_token() == again.block_starts_per_token()).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("pitch", ["real", "integer"])
def test_limits_of_sigma_and_n(sampler: str, pitch: str) -> None:
    for n in (1, 2, 127):
        tiny = draw(kernels.alibi(1e-6), n, 5, generator(7), sampler, pitch).block_starts_per_token()
        assert (tiny == np.arange(n)).all()
        huge = draw(kernels.alibi(1e9), n, 5, generator(7), sampler, pitch).block_starts_per_token()
        assert (huge == 0).all()


@pytest.mark.parametrize("pitch", ["real", "integer"])
def test_widths_far_beyond_64_bit_integers(pitch: str) -> None:
    """(1 + d)^(-1/256) has a median width of 3e77; at 200 tokens it keeps 98 % of the draws whole."""
    kernel = kernels.log(1 / 256, 1.0)
    parts = draw(kernel, 200, 4000, generator(8), "iid", pitch)
    assert np.median(parts.widths) > 1e70
    whole = (parts.block_starts_per_token()[:, -1] == 0).mean()
    # Hoeffding: false alarm at most 1e-6.
    assert abs(whole - kernel.phi(199)) < math.sqrt(math.log(2e6) / 8000)


def test_a_wide_integer_draw_has_at_most_one_boundary() -> None:
    n = 41
    parts = draw(kernels.alibi(60.0), n, 3000, generator(9), "iid", "integer")
    wide = parts.widths[0] >= n
    starts = parts.block_starts_per_token()[wide]
    assert 0.5 < wide.mean() < 1.0
    assert (np.diff(starts, axis=1) > 0).sum(axis=1).max() == 1
    assert (starts[:, -1] == parts.shifts[0, wide]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n = 0"),
        ({"num_samples": 0}, "num_samples = 0"),
        ({"sampler": "sobol"}, "iid, stratified, importance"),
        ({"pitch": "odd"}, "real, integer"),
        ({"kernel": TABLE, "pitch": "real"}, "integer widths only"),
        ({"kernel": kernels.table([1.0, 0.9, 0.2]), "n": 3, "pitch": "integer"}, "distance 1"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], message: str) -> None:
    chosen = {"kernel": kernels.alibi(2.0), "n": 5, "num_samples": 3, "sampler": "iid", "pitch": "real"} | change
    with pytest.raises(ValueError, match=message):
        draw(chosen["kernel"], chosen["n"], chosen["num_samples"], generator(0), chosen["sampler"], chosen["pitch"])
