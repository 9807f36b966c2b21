"""How many (query, key) pairs a bias leaves a weight, and what that is in floating point operations."""

from __future__ import annotations

from plsh_cli.attention.bias import Alibi, Bias, FixedBlocks, Mixed, NoBias, Plsh, Window, head_structures, partitions
from plsh_cli.attention.cheaper import dense_pairs
from plsh_cli.attention.cheaper import pairs as drawn_pairs
from plsh_cli.experiments.bench_attention_plan import Case

FLOPS_PER_PAIR_AND_DIM = 4  # a multiplication and an addition for the score, and for the value
PASSES = {"forward": 1.0, "forward+backward": 3.5}  # backward: five products where forward has two


def pairs(bias: Bias, case: Case, heads: int, backend: str = "fused") -> int:
    """Pairs of nonzero weight over all heads of one sequence; of draws, their union.

    backend "blocks": what that backend scores, each draw's pairs anew.
    """
    n, causal = case.n, case.causal
    if isinstance(bias, Mixed):
        return sum(pairs(one, case, len(group), backend) for group, one in bias.groups)
    if isinstance(bias, NoBias | Alibi):
        return heads * dense_pairs(n, causal)
    if isinstance(bias, Window):
        return sum(_band_pairs(n, int(min(one.width, n)), causal) for one in head_structures(bias, heads, n))
    assert isinstance(bias, FixedBlocks | Plsh)
    parts = partitions(bias, heads, n)
    counts = [drawn_pairs(parts, head, causal, backend) for head in range(parts.num_heads)]
    return sum(counts) * (heads // parts.num_heads)


def useful_flops(pair_count: int, case: Case) -> float:
    """Floating point operations of one pass over so many pairs per sequence: 4 d each forward, 10 d backward."""
    return case.batch * pair_count * FLOPS_PER_PAIR_AND_DIM * case.head_dim * PASSES[case.passes]


def _band_pairs(n: int, width: int, causal: bool) -> int:
    """Pairs at most `width` apart."""
    width = min(width, n - 1)
    below = n * (width + 1) - width * (width + 1) // 2
    return below if causal else 2 * below - n
