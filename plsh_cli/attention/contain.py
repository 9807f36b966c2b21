"""Keeping a number that is not finite in the rows that see it.

The kernels multiply weights of 0 with whatever is there, and 0 times NaN is NaN. So the backends compute with zeros in
such places, and afterwards the rows that see one of them are set to NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from plsh_cli.attention.bias import Decay
from plsh_cli.attention.inputs import Layout
from plsh_cli.attention.segments import draws, key_intervals
from plsh_cli.positional.partitions import PartitionSet


def all_finite(*tensors: torch.Tensor) -> bool:
    """Return False if a number is not finite (and perhaps if their sum overflows): one pass, no memory."""
    return all(bool(x.sum(dtype=torch.promote_types(x.dtype, torch.float32)).isfinite()) for x in tensors)


def bad_rows(x: torch.Tensor) -> torch.Tensor:
    """Return which rows along the last dimension hold a number that is not finite."""
    return ~x.isfinite().all(dim=-1)


def rows_that_see(bad: torch.Tensor, structures: Sequence[Decay | PartitionSet], layout: Layout) -> torch.Tensor:
    """Return which queries see a bad key: bad (b, g, m) bool -> (b, h, n) bool."""
    if layout.keep is not None:
        bad = bad & layout.keep[:, None]
    before = torch.nn.functional.pad(bad.cumsum(dim=-1), (1, 0))
    share = len(structures) // bad.shape[1]
    return torch.stack(
        [
            _any(
                before[:, i // share, last] > before[:, i // share, first]
                for first, last in _intervals(one, layout, bad)
            )
            for i, one in enumerate(structures)
        ],
        dim=1,
    )


def keys_seen_by(
    rows: torch.Tensor, structures: Sequence[Decay | PartitionSet], layout: Layout, num_kv_heads: int
) -> torch.Tensor:
    """Return which keys some of the rows see: rows (b, h, n) bool -> (b, g, m) bool."""
    batch, heads = rows.shape[:2]
    seen = torch.zeros(batch, num_kv_heads, layout.m, dtype=torch.bool, device=rows.device)
    for i, one in enumerate(structures):
        counted = rows[:, i].long()
        for first, last in _intervals(one, layout, rows):
            change = torch.zeros(batch, layout.m + 1, dtype=torch.long, device=rows.device)
            change.index_add_(1, first, counted).index_add_(1, last, -counted)
            seen[:, i // (heads // num_kv_heads)] |= change.cumsum(dim=1)[:, :-1] > 0
    return seen if layout.keep is None else seen & layout.keep[:, None]


def _intervals(
    one: Decay | PartitionSet, layout: Layout, like: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for kind in draws(one) if isinstance(one, PartitionSet) else [one.width]:
        yield tuple(torch.from_numpy(np.ascontiguousarray(x)).to(like.device) for x in key_intervals(kind, layout))


def _any(masks: Iterator[torch.Tensor]) -> torch.Tensor:
    total = next(masks)
    for mask in masks:
        total = total | mask
    return total
