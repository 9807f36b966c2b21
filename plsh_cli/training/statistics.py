"""How large the blocks of a bias's draws are, and how many pairs they let through."""

from __future__ import annotations

import numpy as np

from plsh_cli.attention.bias import Bias, Mixed, Plsh
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.training.cost import attended_pairs


def draw_statistics(bias: Bias | list[Bias] | None, heads: int, n: int) -> dict[str, float]:
    """Sizes of the draws' blocks on n positions; empty for a bias without draws.

    block_mean and block_max in tokens, over heads and draws (and layers, where each has its own); pairs_per_token: the
    keys that a query scores per head, as `attended_pairs` counts them.
    """
    layers = bias if isinstance(bias, list) else [bias]
    sets = [one.parts.prefix(n) for layer in layers for one in _plain(layer) if isinstance(one, Plsh)]
    if not sets:
        return {}
    lengths = np.concatenate([_block_lengths(parts) for parts in sets])
    total_pairs = sum(attended_pairs(layer, heads, n) for layer in layers)
    return {
        "block_mean": float(lengths.mean()),
        "block_max": float(lengths.max()),
        "pairs_per_token": total_pairs / (len(layers) * heads * n),
    }


def _block_lengths(parts: PartitionSet) -> np.ndarray:
    found = [blocks.end - blocks.start for head in range(parts.num_heads) for blocks in parts.blocks(head)]
    return np.concatenate(found)


def _plain(bias: Bias | None) -> list[Bias | None]:
    return [one for _, one in bias.groups] if isinstance(bias, Mixed) else [bias]
