"""The bias matrices that `plsh attn-error` puts in the place of L*: M~, and at its cost a window and fixed blocks.

A baseline gets as many pairs per head as the union of the draws' blocks has, in the mean over seeds: the window as many
of the nearest keys, fixed blocks a length. Fixed blocks also come with the length of the paper, 2 sigma, whatever s is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import matmul_toeplitz, toeplitz

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.positional import bounds
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import m_tilde
from plsh_cli.positional.measure import Measurement, measure
from plsh_cli.positional.norms import kernel_norm, spectral_norm
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator


@dataclass(frozen=True)
class Subject:
    """What is compared with L*: a bias, and the s of plsh's draws or of those whose cost a baseline matches.

    num_samples is None for fixed blocks of 2 sigma tokens.
    """

    bias: str
    num_samples: int | None


@dataclass(frozen=True)
class Facts:
    """What is known of one bias matrix W of a head: norms of W - L*, pairs of weight above 0 per token.

    tail_probability: the paper's bound on the probability of such a spectral error; None but for i.i.d. draws, ALiBi.
    """

    spectral_error: float
    spectral_error_relative: float
    max_error: float
    pairs_per_token: float
    tail_probability: float | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """One bias matrix: its places among the subjects and the seeds (None: the same for all), and how it is made.

    parts: draws (also of fixed blocks, as one draw); reach: of a window, the largest distance in tokens.
    """

    subject: int
    seed: int | None
    facts: Facts
    parts: PartitionSet | None = None
    reach: int | None = None

    def matrix(self, kernel: Kernel, n: int) -> np.ndarray:
        """The (n, n) matrix in float64."""
        if self.parts is not None:
            return m_tilde(self.parts)
        distance = np.arange(n)
        return toeplitz(np.where(distance <= self.reach, kernel.phi(distance), 0.0))


def subjects(cfg: AttnErrorCommand) -> list[Subject]:
    """All that is measured, in the rows' order."""
    sizes = sorted(cfg.attn_error.num_samples)
    found = [Subject(bias, size) for bias in ("plsh", "window", "fixed_blocks") for size in sizes if _asked(cfg, bias)]
    own = cfg.bias.kernel == "alibi" and _asked(cfg, "fixed_blocks")
    return [*found, Subject("fixed_blocks", None)] if own else found


def all_weights(cfg: AttnErrorCommand, kernel: Kernel, n: int, causal: bool, *key: str | int) -> list[Weights]:
    """Every bias matrix of one head or kernel at n tokens.

    key: of the draws' stream beside the seed. With an empty one all heads of a kernel have the same draws, and i.i.d.
    draws of a smaller s are the first ones of the largest; with a key each s has draws of its own.
    """
    chosen, sizes = subjects(cfg), sorted(cfg.attn_error.num_samples)
    norm = kernel_norm(kernel, n)
    found: list[Weights] = []
    for index, seed in enumerate(seeds(cfg)):
        for size, parts, one in _draws(cfg, kernel, n, seed, sizes, key):
            tail = None
            if kernel.sigma is not None and cfg.bias.sampler == "iid":
                tail = bounds.tail_probability(kernel.sigma, n, size, one.spectral_error)
            place = chosen.index(Subject("plsh", size))
            found.append(Weights(place, index, _facts(one, norm, causal, tail), parts))
    pairs = {size: _mean_pairs(found, chosen.index(Subject("plsh", size))) for size in sizes}
    for place, subject in enumerate(chosen):
        if subject.bias == "window":
            found.append(_window(place, kernel, n, causal, pairs[subject.num_samples] * n, norm))
        elif subject.bias == "fixed_blocks":
            found.append(_blocks(place, kernel, n, causal, _length(subject, kernel, n, causal, pairs), norm))
    return found


def seeds(cfg: AttnErrorCommand) -> list[int]:
    """The seeds of the independent repetitions."""
    return list(range(cfg.seed, cfg.seed + cfg.attn_error.seeds))


def window_pairs(reach: np.ndarray | int, n: int, causal: bool) -> np.ndarray | int:
    """Pairs at most `reach` tokens apart, 0 <= reach < n, as both sides count them."""
    one_side = (reach + 1) * n - reach * (reach + 1) // 2
    return one_side if causal else 2 * one_side - n


def block_pairs(length: np.ndarray | int, n: int, causal: bool) -> np.ndarray | int:
    """Pairs in blocks of `length` tokens from position 0 on, the last one cut off at n."""
    whole, rest = n // length, n % length
    if causal:
        return whole * (length * (length + 1) // 2) + rest * (rest + 1) // 2
    return whole * length * length + rest * rest


def _draws(cfg: AttnErrorCommand, kernel: Kernel, n: int, seed: int, sizes: Sequence[int], key: tuple[str | int, ...]):
    """Yield (s, its draws, their measurement)."""
    pitch, sampler = cfg.bias.pitch, cfg.bias.sampler
    if sampler == "iid" and not key:
        largest = draw(kernel, n, sizes[-1], generator(seed, "partitions", kernel.label, pitch), sampler, pitch)
        for size, one in zip(sizes, measure(largest, kernel, sizes, seed=seed), strict=True):
            yield size, largest.take(size), one
        return
    for size in sizes:
        stream = generator(seed, "partitions", kernel.label, pitch, sampler, size, *key)
        parts = draw(kernel, n, size, stream, sampler, pitch)
        yield size, parts, measure(parts, kernel, [size], seed=seed)[0]


def _facts(one: Measurement, norm: float, causal: bool, tail: float | None = None) -> Facts:
    pairs = one.pairs_per_token_union_causal if causal else one.pairs_per_token_union_bidirectional
    return Facts(one.spectral_error, one.spectral_error / norm, one.max_error, pairs, tail)


def _mean_pairs(found: Sequence[Weights], place: int) -> float:
    return float(np.mean([one.facts.pairs_per_token for one in found if one.subject == place]))


def _window(place: int, kernel: Kernel, n: int, causal: bool, wanted: float, norm: float) -> Weights:
    reaches = np.arange(n)
    reach = int(np.argmin(np.abs(window_pairs(reaches, n, causal) - wanted)))
    cut = np.where(reaches > reach, kernel.phi(reaches), 0.0)
    spectral = spectral_norm(
        lambda x: -matmul_toeplitz(cut, x, workers=1), n, generator=generator(0, "window", n)
    ).value
    pairs = float(window_pairs(reach, n, causal)) / n
    return Weights(place, None, Facts(spectral, spectral / norm, float(cut.max()), pairs), reach=reach)


def _length(subject: Subject, kernel: Kernel, n: int, causal: bool, pairs: dict[int, float]) -> int:
    """Tokens of a fixed block."""
    if subject.num_samples is None:
        assert kernel.sigma is not None
        return min(n, max(1, round(2.0 * kernel.sigma)))
    lengths = np.arange(1, n + 1)
    return int(lengths[np.argmin(np.abs(block_pairs(lengths, n, causal) - pairs[subject.num_samples] * n))])


def _blocks(place: int, kernel: Kernel, n: int, causal: bool, length: int, norm: float) -> Weights:
    one = np.ones((1, 1))
    parts = PartitionSet(one * length, 0.0 * one, one, np.zeros((1, 1), dtype=np.int64), n, "real")
    facts = _facts(measure(parts, kernel, [1])[0], norm, causal)
    return Weights(place, None, replace(facts, pairs_per_token=float(block_pairs(length, n, causal)) / n), parts)


def _asked(cfg: AttnErrorCommand, bias: str) -> bool:
    return bias in cfg.attn_error.biases
