"""A bias made for many positions, cut to the length of a call.

Full passes take the exact prefix. With cached keys, lengths are rounded up to a step, so that the tables behind the
draws are built once in a while and not for every token; keys are then filled up, behind the last query, where causal
attention sees nothing.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from plsh_cli.attention.bias import Bias, FixedBlocks, Mixed, NoBias, Plsh, partitions
from plsh_cli.errors import MessageError

#: Positions between two lengths in generation.
STEP = 256
#: Prefixes kept per bias: a few lengths take turns in evaluation.
KEPT = 4


class TooFewPositions(MessageError, ValueError):
    """The draws are for fewer positions than a call has."""


class Lengths:
    """The prefixes that were needed last; forgets the older ones.

    growing: biases whose draws serve any number of positions, whatever their capacity.
    """

    def __init__(self, growing: Sequence[Bias] = ()) -> None:
        # Weak: those that are no longer set live as long as a pass that is computed again needs them.
        self._growing: weakref.WeakSet[Bias] = weakref.WeakSet()
        self.grow(growing)
        self._made: OrderedDict[tuple[int, int, int], tuple[Bias, Bias]] = OrderedDict()

    def grow(self, biases: Sequence[Bias]) -> None:
        """Add biases whose draws serve any number of positions."""
        self._growing.update(one for one in biases if isinstance(one, Plsh))

    def clear(self) -> None:
        self._made.clear()

    def fit(self, bias: Bias, heads: int, positions: int) -> Bias:
        """Return the bias for so many positions; ValueError where it was drawn for fewer."""
        if not has_blocks(bias) or (isinstance(bias, Plsh) and bias.parts.capacity == positions):
            return bias
        key = (id(bias), heads, positions)
        if key not in self._made:
            # The bias itself is kept too: another object must not get its id.
            self._made[key] = (bias, _cut(self._grown(bias, positions), heads, positions))
            mine = [one for one in self._made if one[0] == id(bias)]
            for old in mine[:-KEPT]:
                del self._made[old]
        self._made.move_to_end(key)
        return self._made[key][1]

    def rounded(self, bias: Bias, positions: int) -> int:
        """Return `positions` rounded up to the next step, at most the capacity; ValueError if the bias has fewer."""
        limit = None if self._grows(bias) else capacity(bias)
        up = -(-positions // STEP) * STEP
        if limit is None:
            return up
        if positions > limit:
            _refuse(positions, limit)
        return min(up, limit)

    def _grows(self, bias: Bias) -> bool:
        return isinstance(bias, Plsh) and bias in self._growing

    def _grown(self, bias: Bias, positions: int) -> Bias:
        """Return the bias for at least so many positions where its draws allow it."""
        if not isinstance(bias, Plsh) or not self._grows(bias):
            return bias
        return Plsh(replace(bias.parts, capacity=max(positions, bias.parts.capacity)), bias.merge)


def has_blocks(bias: Bias) -> bool:
    """Whether it depends on where positions start to count, as blocks do and distances do not."""
    if isinstance(bias, Mixed):
        return any(has_blocks(one) for _, one in bias.groups)
    return isinstance(bias, Plsh | FixedBlocks)


def capacity(bias: Bias) -> int | None:
    """The most positions that the bias serves; None for no limit."""
    if isinstance(bias, Mixed):
        limits = [limit for _, one in bias.groups if (limit := capacity(one)) is not None]
        return min(limits, default=None)
    return bias.parts.capacity if isinstance(bias, Plsh) else None


def _cut(bias: Bias, heads: int, positions: int) -> Bias:
    if isinstance(bias, Mixed):
        return Mixed(tuple((of, _cut(one, len(of), positions)) for of, one in bias.groups))
    if isinstance(bias, FixedBlocks):
        # As draws, so that their tables are kept from call to call.
        return Plsh(partitions(bias, heads, positions))
    if not isinstance(bias, Plsh):
        return bias
    if positions > bias.parts.capacity:
        _refuse(positions, bias.parts.capacity)
    return Plsh(bias.parts.prefix(positions), bias.merge)


def _refuse(positions: int, limit: int) -> None:
    raise TooFewPositions(
        f"the draws are for {limit} positions, this call has {positions}: draw them for more, as "
        f"BiasSpec(..., capacity={positions}) does, or give the model fewer tokens"
    )


def check_heads(bias: Bias, heads: int) -> None:
    """Raise ValueError unless the bias is for so many query heads, or for all alike."""
    if isinstance(bias, NoBias):
        return
    if isinstance(bias, Mixed):
        given = bias.num_heads
    elif isinstance(bias, Plsh):
        given = bias.parts.num_heads if bias.parts.num_heads > 1 else heads
    else:
        given = heads if isinstance(bias.sigma, int | float) else len(bias.sigma)
    if given != heads:
        raise ValueError(
            f"bias: for {given} heads, the model has {heads} query heads; must be the same, or one for all"
        )
