"""What a setting costs, counted: pairs per token and head (causal), or attentions.

union: distinct (query, key) pairs of weight above 0; draws: those of all draws, each anew; s: how many attentions.
Of draws it is the mean over the units (texts and seeds) that are measured, of very many over the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from plsh_cli.experiments.attn_error_subjects import block_pairs, window_pairs
from plsh_cli.experiments.compare_settings import Setting
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.partitions import PartitionSet, stack
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator
from plsh_cli.positional.tally import tally_blocks

#: A cost is the mean over so many units at most.
_MOST_UNITS = 256
#: What a cost is called, with its unit.
NAMES = {
    "union": "distinct pairs per token and head",
    "draws": "pairs of all draws per token and head",
    "time": "milliseconds per attention",
    "s": "attentions",
}


class Draws:
    """The draws of every unit: of each head its own, in the stream (seed, "draws", *key, head).

    i.i.d. draws of a smaller s are the first ones of a larger.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        n: int,
        units: Sequence[tuple[int, tuple[str | int, ...]]],
        how: tuple[str, str],
    ) -> None:
        """units: (seed, key) of each; how: sampler and pitch."""
        self.kernels, self.n, self.units = list(kernels), n, list(units)
        self._sampler, self._pitch = how
        self._largest: dict[int, PartitionSet] = {}
        self._pairs: dict[int, tuple[float, float]] = {}

    def parts(self, unit: int, size: int) -> PartitionSet:
        """The draws of all heads."""
        if self._sampler != "iid":
            return self._drawn(unit, size)
        held = self._largest.get(unit)
        if held is None or held.num_draws < size:
            held = self._largest[unit] = self._drawn(unit, size)
        return held.take(size)

    def pairs(self, size: int) -> tuple[float, float]:
        """Distinct pairs and pairs of all draws, per token and head."""
        if size not in self._pairs:
            total = np.zeros(2)
            count = min(len(self.units), _MOST_UNITS)
            for unit in range(count):
                parts = self.parts(unit, size)
                for head in range(parts.num_heads):
                    tally = tally_blocks(parts, head)
                    total += tally.union_pairs_causal(), tally.pairs_causal
            union, every = (total / (count * len(self.kernels) * self.n)).tolist()
            self._pairs[size] = union, every
        return self._pairs[size]

    def _drawn(self, unit: int, size: int) -> PartitionSet:
        seed, key = self.units[unit]
        # Draws that are not nested have a stream for every s.
        more = () if self._sampler == "iid" else (self._sampler, size)
        return stack(
            [
                draw(kernel, self.n, size, generator(seed, "draws", *key, *more, head), self._sampler, self._pitch)
                for head, kernel in enumerate(self.kernels)
            ]
        )


class Counted:
    """The cost of settings as a number."""

    def __init__(self, kind: str, draws: Draws) -> None:
        """kind: union, draws or s."""
        self.kind, self.draws = kind, draws
        self.sigmas = [float(kernel.sigma or 0.0) for kernel in draws.kernels]

    def __call__(self, setting: Setting) -> float:
        if self.kind == "s":
            return float(setting.num_samples or 1)
        if setting.num_samples is not None:
            return self.draws.pairs(setting.num_samples)[self.kind == "draws"]
        return pairs_per_token(setting, self.sigmas, self.draws.n)


def pairs_per_token(setting: Setting, sigmas: Sequence[float], n: int) -> float:
    """Pairs per token, the mean over heads, of a bias without draws."""
    if setting.lengths is not None:
        counts = [block_pairs(length, n, True) for length in setting.lengths]
    elif setting.eps is not None:
        counts = [window_pairs(one, n, True) for one in reaches(setting.eps, sigmas, n)]
    else:
        counts = [n * (n + 1) // 2]
    return float(np.mean(counts)) / n


def reaches(eps: float, sigmas: Sequence[float], n: int) -> list[int]:
    """The largest distance in tokens that each head's window keeps, as attention's Window has it."""
    return [min(n - 1, math.floor(sigma * -math.log(eps))) for sigma in sigmas]
