"""Where positional LSH scores no fewer pairs than dense attention, and exact ALiBi in its place there.

Pairs are counted per head over all n positions: what a backend has to score, not what it happens to waste.
"""

from __future__ import annotations

import numpy as np

from plsh_cli.attention.bias import Alibi, Bias, Mixed, Plsh, take_heads
from plsh_cli.attention.segments import draws
from plsh_cli.positional.partitions import PartitionSet


def dense_pairs(n: int, causal: bool) -> int:
    """Return the number of (query, key) pairs of exact attention."""
    return n * (n + 1) // 2 if causal else n * n


def pairs(parts: PartitionSet, head: int, causal: bool, backend: str) -> int:
    """Return the pairs that a backend scores for one head: each draw's for "blocks", their union for the fused ones."""
    if backend not in ("blocks", "fused", "triton"):
        raise ValueError(f"backend = {backend!r}: must be one of blocks, fused, triton")
    n, total = parts.capacity, 0
    reach = np.zeros(n, dtype=np.int64)
    for draw in draws(parts.head(head)):
        length = draw.end - draw.start
        total += int((length * (length + 1) // 2 if causal else length * length).sum())
        np.maximum.at(reach, draw.start, draw.end)
    if backend == "blocks":
        return total
    union = int((np.maximum.accumulate(reach) - np.arange(n)).sum())
    return union if causal else 2 * union - n


def exact_when_cheaper(
    bias: Bias, sigma: list[float], n: int, causal: bool, backend: str = "fused"
) -> tuple[Bias, list[int]]:
    """Return the bias with exact ALiBi in the heads where plsh scores no fewer pairs, and the numbers of those heads.

    sigma: what each head's draws stand for, in tokens. n: the sequence length, at most the draws' capacity. Any bias
    but Plsh comes back as it is.
    """
    if not isinstance(bias, Plsh):
        return bias, []
    if bias.parts.num_heads not in (1, len(sigma)):
        raise ValueError(f"sigma: has {len(sigma)} numbers, must be one per head of parts, {bias.parts.num_heads}")
    parts, limit = bias.parts.prefix(n), dense_pairs(n, causal)
    counts = [pairs(parts, head, causal, backend) for head in range(parts.num_heads)]
    counts = counts if len(counts) == len(sigma) else counts * len(sigma)
    replaced = [i for i, count in enumerate(counts) if count >= limit]
    kept = [i for i, count in enumerate(counts) if count < limit]
    if not replaced:
        return bias, []
    exact = Alibi([float(sigma[i]) for i in replaced])
    if not kept:
        return exact, replaced
    return Mixed(((tuple(kept), take_heads(bias, kept)), (tuple(replaced), exact))), replaced
