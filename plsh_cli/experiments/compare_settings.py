"""A bias with its knob set, and the ladder of settings that a knob leads through from the least cost to the largest.

Knobs: plsh, the number of draws s; window, eps, one for all heads; fixed_blocks, one factor on the 2 sigma tokens of
every head's blocks. alibi, none and original have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

KNOBS = ("plsh", "window", "fixed_blocks")
#: plsh as a baseline has at most so many draws.
MOST_DRAWS = 4096
#: The largest -ln eps: below, eps would be no normal float.
_LARGEST_CUT = 690.0
#: The smallest: above, eps would be 1.
_SMALLEST_CUT = 1e-15


@dataclass(frozen=True)
class Setting:
    """A bias with its knob: num_samples of plsh, eps of window, the lengths in tokens of every head's fixed blocks.

    pairs_of: the s whose cost it was given, where the bias is a method of its own and not plsh.
    """

    bias: str
    num_samples: int | None = None
    eps: float | None = None
    lengths: tuple[int, ...] | None = None
    pairs_of: int | None = None

    @property
    def drawn(self) -> bool:
        """Whether its errors depend on the seed of the draws."""
        return self.bias == "plsh"

    @property
    def same(self) -> Setting:
        """Itself without `pairs_of`: equal for what is the same bias matrix."""
        return replace(self, pairs_of=None)

    def label(self) -> str:
        """The knob in words; empty for a bias without one."""
        if self.num_samples is not None:
            return f"s={self.num_samples}"
        if self.eps is not None:
            return f"eps={self.eps:.3g}"
        if self.lengths is None:
            return ""
        shortest, longest = min(self.lengths), max(self.lengths)
        return f"{shortest:,}" + (f"-{longest:,}" if longest > shortest else "") + " tokens"

    def name(self) -> str:
        """The bias with its knob."""
        return f"{self.bias} {self.label()}".strip()


Ladder = Callable[[float], Setting]


def own(bias: str, sigmas: Sequence[float], n: int, eps: float) -> Setting:
    """The setting of a bias whose cost is not matched: its eps, blocks of 2 sigma tokens. Not for plsh."""
    if bias == "window":
        return Setting(bias, eps=eps)
    if bias == "fixed_blocks":
        return Setting(bias, lengths=_lengths(sigmas, n, 1.0))
    return Setting(bias)


def ladder(bias: str, sigmas: Sequence[float], n: int) -> Ladder:
    """The settings of a bias with a knob, by a number from 0 (least cost) to 1 (largest); the cost never falls."""
    if bias == "plsh":
        return lambda t: Setting(bias, num_samples=round(math.exp(t * math.log(MOST_DRAWS))))
    least, most = min(sigmas), max(sigmas)
    if bias == "window":
        low, high = (min(_LARGEST_CUT, max(_SMALLEST_CUT, cut)) for cut in (0.5 / most, (n + 1.0) / least))
        return lambda t: Setting(bias, eps=math.exp(-low * (high / low) ** t))
    # From blocks of one token in every head to blocks of n in every head.
    shortest, longest = 0.5 / (2.0 * most), 1.01 * n / (2.0 * least)
    return lambda t: Setting(bias, lengths=_lengths(sigmas, n, shortest * (longest / shortest) ** t))


def _lengths(sigmas: Sequence[float], n: int, factor: float) -> tuple[int, ...]:
    return tuple(min(n, max(1, round(2.0 * sigma * factor))) for sigma in sigmas)
