"""What a backend of ordinary attentions does for one head: runs of segments, each with its weight and its bias.

Paper symbols: the pieces of one draw k are the blocks of M_k; `log_weight` is ln of the draw's weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from plsh_cli.attention.bias import Decay
from plsh_cli.attention.inputs import Layout
from plsh_cli.attention.segments import Run, band_runs, block_runs, cut, draws, dyadic_runs
from plsh_cli.attention.stock import REMOVED
from plsh_cli.positional.partitions import PartitionSet

# The float32 rounding of a logit is about 6e-8 times this many nats, on top of the score's own.
LARGEST_DECAY = 16.0
LARGEST_BLOCK = 2048


@dataclass(frozen=True, eq=False)
class Piece:
    """A run of attentions. draw: which draw it belongs to. mask (q_len, k_len): added to scores. q_columns (e,) and
    k_columns (k_len, e): extra head dims. row_bias (q_len,): added to the lse of the rows; float64."""

    run: Run
    draw: int = 0
    log_weight: float = 0.0
    mask: torch.Tensor | None = None
    q_columns: torch.Tensor | None = None
    k_columns: torch.Tensor | None = None
    row_bias: torch.Tensor | None = None


def block_pieces(structure: Decay | PartitionSet, layout: Layout, like: torch.Tensor, _scale: float) -> Iterator[Piece]:
    """Yield the pieces of one head: blocks of its draws, or of its band masked to the pairs that it holds."""
    if isinstance(structure, PartitionSet):
        for number, draw in enumerate(draws(structure)):
            for run in block_runs(*cut(draw.start, draw.end, layout.documents), layout):
                yield Piece(run, number, math.log(draw.weight))
    elif structure.sigma == math.inf and structure.width == math.inf:
        whole = np.array([min(0, layout.offset)]), np.array([layout.positions])
        for run in block_runs(*cut(*whole, layout.documents), layout):
            yield Piece(run)
    else:
        for run in band_runs(structure.width, layout):
            yield Piece(run, mask=_band_mask(run, structure, layout.causal, like))


def augmented_pieces(structure: Decay, layout: Layout, like: torch.Tensor, scale: float) -> Iterator[Piece]:
    """Yield the pieces of one head of exact causal ALiBi on attentions without a bias.

    -m (i - j) = -m (i - c) - m (c - j) for any anchor c: the first term moves the row's lse, the second is a product of
    extra columns of q and k. With c close to the nearest key, only keys of small weight are far from it.
    """
    block = 1 << int(math.log2(min(max(LARGEST_DECAY * structure.sigma, 1.0), LARGEST_BLOCK)))
    for run in dyadic_runs(block, layout):
        below = run.anchor - 1 - torch.arange(run.k_len, device=like.device)
        past = run.ahead - (run.anchor - 1) + torch.arange(run.q_len, dtype=torch.float64, device=like.device)
        q_columns, k_columns = decay_columns(below, structure.sigma, scale, like.dtype)
        yield Piece(run, q_columns=q_columns, k_columns=k_columns, row_bias=-past / structure.sigma)


def decay_columns(
    below: torch.Tensor, sigma: float, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q_columns (e,) and k_columns (m, e) in `dtype` with scale * k_columns @ q_columns = -below / sigma.

    below (m,): int64 distances >= 0 from keys to the anchor. In 16-bit types a distance is written in digits of base
    256, which they hold exactly, and a coefficient that they do not hold becomes a sum of two.
    """
    base = 256 if dtype.itemsize == 2 else 1 << 24 if dtype == torch.float32 else 1 << 53
    largest = int(below.max()) if below.numel() else 0
    coefficients, digits = [], []
    place = 1
    while place == 1 or largest >= place:
        digit = below // place % base
        exact = -place / (sigma * scale)
        high = float(torch.tensor(exact, dtype=torch.float64).to(dtype))
        if not math.isfinite(high):
            raise ValueError(
                f"sigma = {sigma}, scale = {scale}: {dtype} cannot hold the coefficient {exact:.3g}, "
                "must be a larger sigma or a wider type"
            )
        low = exact - high if dtype.itemsize == 2 else 0.0
        for coefficient in (high, low) if low else (high,):
            coefficients.append(coefficient)
            digits.append(digit)
        place *= base
    columns = torch.tensor(coefficients, dtype=torch.float64, device=below.device)
    return columns.to(dtype), torch.stack(digits, dim=1).to(dtype)


def _band_mask(run: Run, band: Decay, causal: bool, like: torch.Tensor) -> torch.Tensor:
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    rows, columns = (torch.arange(x, dtype=dtype, device=like.device) for x in (run.q_len, run.k_len))
    distance = run.ahead + rows[:, None] - columns
    size = distance.abs()
    mask = size / -band.sigma
    if size.max() > band.width:
        mask.masked_fill_(size > band.width, REMOVED)
    return mask.masked_fill_(distance < 0, REMOVED) if causal else mask
