"""Partition sets: boundaries by the stated rule, prefixes, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plsh_cli.positional.partitions import PartitionSet, stack


def make(widths: list[float], shifts: list[float], n: int, pitch: str = "real") -> PartitionSet:
    """An equally weighted set of one head."""
    s = len(widths)
    columns = (np.array([x], dtype=float) for x in (widths, shifts, [1 / s] * s))
    return PartitionSet(*columns, np.arange(s)[None], n, pitch)


def random_set(n: int, s: int, sigma: float, seed: int = 5) -> PartitionSet:
    u = np.random.Generator(np.random.PCG64(seed)).random((s, 3))
    widths = -sigma * np.log((1 - u[:, 0]) * (1 - u[:, 1]))
    return make(widths.tolist(), (widths * u[:, 2]).tolist(), n)


def starts_by_rule(width: float, shift: float, n: int) -> list[int]:
    """The rule as the module states it, one k at a time."""
    if width < 1.0:
        return list(range(n))
    found = {0}
    k = 0
    while (place := shift + k * width if k else shift) <= n - 1:
        if math.ceil(place) >= 1:
            found.add(math.ceil(place))
        k += 1
    return sorted(found)


SIGMAS = (1e-6, 0.2, 0.7, 2.0, 16.0, 300.0, 1e9)


@pytest.mark.parametrize("n", [1, 2, 127, 257])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_blocks_follow_the_rule_and_cover_every_token_once(n: int, sigma: float) -> None:
    parts = random_set(n, 23, sigma)
    for chunk in (1, 100, 2_000_000):
        draw, start, end = (np.concatenate(column) for column in zip(*parts.blocks(chunk_blocks=chunk), strict=True))
        for k in range(parts.num_draws):
            mine = draw == k
            expected = starts_by_rule(parts.widths[0, k], parts.shifts[0, k], n)
            assert start[mine].tolist() == expected
            assert end[mine].tolist() == [*expected[1:], n]
        assert (end > start).all()


@pytest.mark.parametrize("sigma", SIGMAS)
def test_start_tables_hold_the_same_blocks(sigma: float) -> None:
    n = 131
    parts = random_set(n, 37, sigma)
    seen = {}
    for draws, edges in parts.start_tables(tile_entries=200):
        for k, row in zip(draws.tolist(), edges, strict=True):
            seen[k] = sorted(set(row.tolist()))
    for k in range(parts.num_draws):
        if parts.widths[0, k] < 1.0:
            assert k not in seen
        else:
            assert seen[k] == [*starts_by_rule(parts.widths[0, k], parts.shifts[0, k], n), n]


def test_special_widths() -> None:
    parts = make([math.inf, 1e300, 0.0, 1.0, 3.0, 1e9, 4.0], [0.0, 1e299, 0.0, 0.5, 0.0, 2.0, 1.0], 7)
    starts = [sorted(set(row.tolist())) for row in parts.block_starts_per_token()]
    assert starts == [[0], [0], [*range(7)], [*range(7)], [0, 3, 6], [0, 2], [0, 1, 5]]


def test_widths_within_rounding_of_one_leave_no_empty_block() -> None:
    for ulps in range(1, 40):
        width = 1.0
        for _ in range(ulps):
            width = math.nextafter(width, 2.0)
        for shift in (0.0, 2**-53, 0.3, 1 - 2**-53):
            (blocks,) = make([width], [shift], 4099).blocks()
            assert (blocks.end > blocks.start).all()
            assert (blocks.start[1:] == blocks.end[:-1]).all()


def test_ranges_of_draws_keep_their_numbers() -> None:
    parts = random_set(61, 11, 4.0)
    draws = [blocks.draw for blocks in parts.blocks(first=3, stop=7, chunk_blocks=20)]
    assert np.unique(np.concatenate(draws)).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("m", [1, 2, 100, 256, 257])
def test_a_prefix_has_the_same_boundaries_cut_at_its_end(m: int) -> None:
    for sigma in SIGMAS:
        parts = random_set(257, 13, sigma)
        whole, prefix = parts.block_starts_per_token(), parts.prefix(m).block_starts_per_token()
        assert (prefix == whole[:, :m]).all()
        assert parts.prefix(m).capacity == m


@pytest.mark.parametrize("m", [0, -1, 258])
def test_a_prefix_outside_the_capacity_is_refused(m: int) -> None:
    with pytest.raises(ValueError, match="capacity 257"):
        random_set(257, 3, 5.0).prefix(m)


def test_take_keeps_the_first_draws_of_independent_ones_only() -> None:
    parts = random_set(31, 12, 4.0)
    few = parts.take(5)
    assert (few.widths == parts.widths[:, :5]).all()
    assert few.weights.tolist() == [[1 / 5] * 5]
    grouped = PartitionSet(parts.widths, parts.shifts, parts.weights, parts.groups // 2, 31, "real")
    weights = np.arange(12.0)[None] / 66
    weighted = PartitionSet(parts.widths, parts.shifts, weights, parts.groups, 31, "real")
    for other in (grouped, weighted):
        with pytest.raises(ValueError, match=r"only i\.i\.d\. draws"):
            other.take(5)
    with pytest.raises(ValueError, match="number of draws 12"):
        parts.take(13)


def test_stack_and_head_are_inverse() -> None:
    parts = [random_set(31, 5, sigma) for sigma in (1.0, 3.0, 9.0)]
    stacked = stack(parts)
    assert (stacked.num_heads, stacked.num_draws) == (3, 5)
    assert (stacked.head(1).widths == parts[1].widths).all()
    assert (stacked.block_starts_per_token(2) == parts[2].block_starts_per_token()).all()
    with pytest.raises(ValueError, match="agree in capacity"):
        stack([parts[0], random_set(37, 5, 1.0)])
    with pytest.raises(ValueError, match="between 0 and 2"):
        stacked.head(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": [-1.0, 2.0]}, "widths: must be >= 0"),
        ({"widths": [float("nan"), 2.0]}, "widths: must be >= 0"),
        ({"shifts": [0.0, float("inf")]}, "shifts: must be finite"),
        ({"weights": [0.5, 0.4]}, "sum to 1"),
        ({"weights": [1.5, -0.5]}, "weights: must be >= 0"),
        ({"widths": [1.0, 2.0, 3.0]}, "must all be"),
        ({"capacity": 0}, "capacity = 0"),
        ({"pitch": "odd"}, "real, integer"),
    ],
)
def test_what_is_no_partition_is_refused(change: dict[str, object], message: str) -> None:
    fields = {
        "widths": [1.0, 2.0],
        "shifts": [0.0, 0.0],
        "weights": [0.5, 0.5],
        "capacity": 5,
        "pitch": "real",
    } | change
    columns = [np.array([fields[name]]) for name in ("widths", "shifts", "weights")]
    with pytest.raises(ValueError, match=message):
        PartitionSet(*columns, np.arange(2)[None], fields["capacity"], fields["pitch"])
