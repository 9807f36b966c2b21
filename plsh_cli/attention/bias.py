"""The biases that attention takes, and what each lets a query see: a decay in a band, or the draws of a PartitionSet.

sigma is in tokens: one number for all heads or one per head; a pair at distance d has its weight multiplied by
exp(-d / sigma).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plsh_cli.positional.partitions import PartitionSet, stack

MERGES = ("lse", "mean")


@dataclass(frozen=True)
class NoBias:
    """Every visible pair weighs 1: ordinary attention."""


@dataclass(frozen=True)
class Alibi:
    """Exact ALiBi: weights exp(-d / sigma)."""

    sigma: float | Sequence[float]

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)


@dataclass(frozen=True)
class Window:
    """Exact ALiBi without the keys whose weight is below eps, 0 < eps <= 1."""

    sigma: float | Sequence[float]
    eps: float

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if not 0.0 < self.eps <= 1.0:
            raise ValueError(f"eps = {self.eps!r}: must be above 0 and at most 1")


@dataclass(frozen=True)
class FixedBlocks:
    """Blocks of max(1, round(2 sigma)) tokens from position 0 on, no bias inside."""

    sigma: float | Sequence[float]

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)


@dataclass(frozen=True, eq=False)
class Plsh:
    """Positional LSH: weights M~, the weighted mean of the draws' block masks.

    parts: a set of as many heads as the query has, or of one head that serves all. merge: "lse", attention under M~; or
    "mean", the weighted mean of the draws' outputs, which is a different (and worse) estimator.
    prepared: what backends derive from the draws, kept for as long as this object.
    """

    parts: PartitionSet
    merge: str = "lse"
    prepared: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise ValueError(f"merge = {self.merge!r}: must be one of {', '.join(MERGES)}")

    def __reduce__(self) -> tuple[type[Plsh], tuple[PartitionSet, str]]:
        # Copies prepare anew: what is prepared may be memory of this process and this object.
        return Plsh, (self.parts, self.merge)


@dataclass(frozen=True, eq=False)
class Mixed:
    """Different biases for different query heads.

    groups: (heads, bias) pairs; the heads, numbers from 0, lie in one group each, and the bias is for so many heads.
    """

    groups: tuple[tuple[tuple[int, ...], Bias], ...]

    def __post_init__(self) -> None:
        heads = sorted(i for of_group, _ in self.groups for i in of_group)
        if heads != list(range(len(heads))) or not heads:
            raise ValueError(f"groups: must hold each head 0, 1, .. once, got {heads}")
        if any(isinstance(bias, Mixed) for _, bias in self.groups):
            raise ValueError("groups: must not hold a Mixed bias")

    @property
    def num_heads(self) -> int:
        return sum(len(heads) for heads, _ in self.groups)


Bias = NoBias | Alibi | Window | FixedBlocks | Plsh | Mixed


@dataclass(frozen=True)
class Decay:
    """One head's band: logit - distance / sigma up to `width` tokens away; both may be inf."""

    sigma: float
    width: float


def head_structures(
    bias: NoBias | Alibi | Window | FixedBlocks | Plsh, num_heads: int, positions: int
) -> list[Decay | PartitionSet]:
    """Return what each query head sees: its band, or its draws as a set of one head over `positions` positions.

    Raises ValueError for a sigma or a PartitionSet of another number of heads, and for draws of another capacity.
    """
    if isinstance(bias, NoBias):
        return [Decay(math.inf, math.inf)] * num_heads
    if isinstance(bias, Alibi):
        return [Decay(sigma, math.inf) for sigma in sigma_per_head(bias, num_heads)]
    if isinstance(bias, Window):
        reach = -math.log(bias.eps)
        return [Decay(sigma, float(math.floor(sigma * reach))) for sigma in sigma_per_head(bias, num_heads)]
    parts = partitions(bias, num_heads, positions)
    return [parts.head(i if parts.num_heads > 1 else 0) for i in range(num_heads)]


def partitions(bias: FixedBlocks | Plsh, num_heads: int, positions: int) -> PartitionSet:
    """Return the draws behind a bias, of `num_heads` heads or of one head for all."""
    if isinstance(bias, FixedBlocks):
        widths = np.array([[max(1.0, float(round(2.0 * x)))] for x in sigma_per_head(bias, num_heads)])
        ones = np.ones_like(widths)
        groups = np.zeros(widths.shape, dtype=np.int64)
        return PartitionSet(widths, 0.0 * ones, ones, groups, max(1, positions), "real")
    if bias.parts.num_heads != 1:
        _check_heads("parts", bias.parts.num_heads, num_heads)
    if bias.parts.capacity != positions:
        raise ValueError(
            f"parts: drawn for {bias.parts.capacity} positions, this call has {positions}; "
            f"must be the same, take parts.prefix({positions})"
        )
    return bias.parts


def one_draw(parts: PartitionSet, k: int) -> PartitionSet:
    """Return draw k of all heads as a set of one draw."""
    at = slice(k, k + 1)
    return replace(
        parts,
        widths=parts.widths[:, at],
        shifts=parts.shifts[:, at],
        weights=np.ones_like(parts.weights[:, at]),
        groups=parts.groups[:, at],
    )


def sigma_per_head(bias: Alibi | Window | FixedBlocks, num_heads: int) -> list[float]:
    """Return one sigma per head."""
    if isinstance(bias.sigma, Sequence | np.ndarray):
        _check_heads("sigma", len(bias.sigma), num_heads)
        return [float(x) for x in bias.sigma]
    return [float(bias.sigma)] * num_heads


def take_heads(bias: Bias, heads: Sequence[int]) -> Bias:
    """Return the bias of some of the heads that a bias is for."""
    if isinstance(bias, Plsh) and bias.parts.num_heads > 1:
        return Plsh(stack([bias.parts.head(i) for i in heads]), bias.merge)
    if isinstance(bias, Alibi | Window | FixedBlocks) and isinstance(bias.sigma, Sequence | np.ndarray):
        return replace(bias, sigma=[float(bias.sigma[i]) for i in heads])
    return bias


def _check_heads(name: str, got: int, num_heads: int) -> None:
    if got != num_heads:
        raise ValueError(f"{name}: for {got} heads, the query has {num_heads}; must be the same, or one for all heads")


def _check_sigma(sigma: float | Sequence[float]) -> None:
    values = sigma if isinstance(sigma, Sequence | np.ndarray) else [sigma]
    try:
        fits = len(values) > 0 and all(x > 0.0 and math.isfinite(x) for x in values)
    except (TypeError, ValueError, RuntimeError):  # no numbers, or several in one
        fits = False
    if not fits:
        raise ValueError(f"sigma = {sigma!r}: must be finite numbers > 0, one for all heads or a list of one per head")
