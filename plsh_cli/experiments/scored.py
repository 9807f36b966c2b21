"""Scored tokens as the fields of a row. Logarithms are natural; ± are half-widths of 95 % intervals.

A half-width is sqrt(a^2 + b^2). a = t(clusters - 1) * standard error of the mean over clusters of tokens. b is 0
without draws; for a bias with k >= 2 sets of draws it is t(k - 1) * sd / sqrt(k), sd over the sets' means (of a
difference: over the sets' differences). t(f) is the 97.5 % point of Student's t with f degrees of freedom. Each of a
and b is the half-width of its own source; those of independent sources add up in squares (MOVER; Zou and Donner 2008).
With one set of draws b is unknown and left out: the interval is then about these draws only.

- n (tokens of a window), tokens (scored), bytes (of the text of the scored tokens)
- nats_per_token, nats_per_token_ci95: over clusters (see `clusters_of`) and draws; null for a single cluster
- perplexity, perplexity_low, perplexity_high: exp of the mean and of the ends of its interval
- bits_per_token; bits_per_byte, bits_per_byte_ci95: all nats / ln 2 / all bytes
- top1, top10, top100: share of tokens within the first so many ranks; mrr: mean of 1 / rank; entropy: mean, in nats
- of a difference to another bias on the same tokens: nats_difference, nats_difference_ci95, in nats per token
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from plsh_cli.stats import clustered_mean, t_interval

if TYPE_CHECKING:
    from plsh_cli.evaluation.score import Scores

#: With fewer texts, an interval over texts says next to nothing, and blocks take their place.
ENOUGH_TEXTS = 5
BLOCK = 64  # tokens
#: Bins of the left text in a window, per length.
BINS = 4


def clusters_of(scores: Scores) -> tuple[np.ndarray, str]:
    """What tokens the intervals take as one, int64 (tokens,), and its name.

    "texts" where at least five were scored, else "blocks" of at most 64 neighbouring tokens of one window. Blocks of
    one text are more alike than those of different texts, so an interval over blocks is about these texts only.
    """
    if len(np.unique(scores.text)) >= ENOUGH_TEXTS:
        return scores.text, "texts"
    _, first, of = np.unique(scores.window, return_index=True, return_inverse=True)
    within = (np.arange(len(of)) - first[of]) // BLOCK
    return np.unique(np.stack([of, within]), axis=1, return_inverse=True)[1], "blocks"


def summary(scores: Scores, sets: Sequence[Scores] = ()) -> dict[str, object]:
    """The fields about all scored tokens; `sets`: the scores under each set of draws, whose mean `scores` are."""
    from plsh_cli.evaluation.metrics import MEASURES

    clusters, _ = clusters_of(scores)
    nats, half = _mean(scores.nats, np.ones(len(clusters)), clusters)
    sized = int(scores.sizes.sum())
    per_byte, per_byte_half = _per_byte(scores, clusters) if sized else (None, None)
    draws = _over_sets([float(one.nats.mean()) for one in sets])
    half = _together(half, draws)
    per_byte_half = _together(per_byte_half, draws * len(clusters) / math.log(2) / sized if sized else 0.0)
    means = dict(zip(MEASURES, scores.measures.mean(axis=1).tolist(), strict=True))
    return {
        "tokens": len(clusters),
        "bytes": sized,
        "nats_per_token": nats,
        "nats_per_token_ci95": half,
        "perplexity": _exp(nats),
        "perplexity_low": None if half is None else _exp(nats - half),
        "perplexity_high": None if half is None else _exp(nats + half),
        "bits_per_token": nats / math.log(2),
        "bits_per_byte": per_byte,
        "bits_per_byte_ci95": per_byte_half,
        "top1": means["top1"],
        "top10": means["top10"],
        "top100": means["top100"],
        "mrr": means["reciprocal_rank"],
        "entropy": means["entropy"],
    }


def difference(
    scores: Scores, base: Scores, sets: Sequence[Scores] = (), base_sets: Sequence[Scores] = ()
) -> dict[str, object]:
    """How many nats per token more than `base` the same tokens cost, paired; ValueError for other tokens.

    sets, base_sets: the scores under each set of draws; where both have several, those of one seed are a pair.
    """
    if not (np.array_equal(scores.place, base.place) and np.array_equal(scores.text, base.text)):
        raise ValueError("scores: a paired difference needs the same tokens in the same order")
    clusters, _ = clusters_of(scores)
    mean, half = _mean(scores.nats - base.nats, np.ones(len(clusters)), clusters)
    means, base_means = (
        np.array([one.nats.mean() for one in each or [whole]]) for each, whole in ((sets, scores), (base_sets, base))
    )
    return {"nats_difference": mean, "nats_difference_ci95": _together(half, _over_sets(means - base_means))}


def by_position(scores: Scores) -> list[dict[str, object]]:
    """Mean nats in bins of the tokens of left text, `left_from` to `left_to` inclusive; `tokens` in each."""
    first, last = int(scores.left.min()), int(scores.left.max())
    edges = np.unique(np.linspace(first, last + 1, min(BINS, last - first + 1) + 1).round().astype(np.int64))
    bins = np.digitize(scores.left, edges) - 1
    return [
        {
            "left_from": int(edges[one]),
            "left_to": int(edges[one + 1]) - 1,
            "nats_per_token": float(scores.nats[bins == one].mean()),
            "tokens": int((bins == one).sum()),
        }
        for one in range(len(edges) - 1)
        if (bins == one).any()
    ]


def _mean(values: np.ndarray, counts: np.ndarray, clusters: np.ndarray) -> tuple[float, float | None]:
    _, of = np.unique(clusters, return_inverse=True)
    return clustered_mean(np.bincount(of, values), np.bincount(of, counts))


def _per_byte(scores: Scores, clusters: np.ndarray) -> tuple[float, float | None]:
    mean, half = _mean(scores.nats / math.log(2), scores.sizes.astype(float), clusters)
    return mean, half


def _over_sets(means: Sequence[float]) -> float:
    """b of the head of this file; 0 for fewer than two sets."""
    return (t_interval(means)[1] or 0.0) if len(means) > 1 else 0.0


def _together(clusters: float | None, draws: float) -> float | None:
    return None if clusters is None else math.hypot(clusters, draws)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
