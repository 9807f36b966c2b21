"""Exact causal ALiBi on attention kernels without any bias, by extra query and key dimensions.

-m (i - j) = -m i + m j: the first term is the same for a whole row, the second a product of one number of the query and
one of the key. Keys are counted from a nearby anchor, so that errors do not grow with position (see `pieces`).
"""

from __future__ import annotations

import torch

from plsh_cli.attention.bias import Alibi, Bias, head_structures
from plsh_cli.attention.blocks import merged_attention
from plsh_cli.attention.inputs import check
from plsh_cli.attention.pieces import augmented_pieces, decay_columns


def augmented_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: Bias | None = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    q_offset: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (b, h, n, d) and lse (b, h, n), differentiable in q, k, v: see `attention`.

    Takes `Alibi` with causal=True and a scale that is not 0, and raises ValueError for anything else.
    """
    if not isinstance(bias, Alibi):
        raise ValueError(f"bias = {bias!r}: backend augmented computes Alibi only")
    if not causal:
        raise ValueError("causal = False: backend augmented computes causal attention only")
    layout, scale = check(
        q, k, v, causal=causal, scale=scale, q_offset=q_offset, cu_seqlens=cu_seqlens, key_padding_mask=key_padding_mask
    )
    if scale == 0.0:
        raise ValueError("scale = 0: must not be 0 for backend augmented")
    structures = head_structures(bias, q.shape[1], layout.positions)
    return merged_attention(q, k, v, structures, layout, scale, augmented_pieces)


def augment(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sigma: float | list[float], *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q (b, h, n, d + e), k and v (b, h, m, d + e) for any causal kernel, to be called with the given scale.

    Its output's first d dims are exact causal ALiBi, to the type's precision times sigma^-1 m: the anchor is the last
    key. v is filled with zeros; key heads are repeated where query heads differ in sigma. scale: default d ** -0.5 of
    the d before. Differentiable.
    """
    layout, scale = check(q, k, v, causal=True, scale=scale, q_offset=None, cu_seqlens=None, key_padding_mask=None)
    share = q.shape[1] // k.shape[1]
    below = layout.m - 1 - torch.arange(layout.m, device=q.device)
    heads = [
        decay_columns(below, one.sigma, scale, q.dtype) for one in head_structures(Alibi(sigma), q.shape[1], layout.m)
    ]
    extra = max(len(columns) for columns, _ in heads)
    q_columns = torch.stack([torch.nn.functional.pad(x, (0, extra - len(x))) for x, _ in heads])
    k_columns = torch.stack([torch.nn.functional.pad(x, (0, extra - x.shape[1])) for _, x in heads])
    k, v = (x.repeat_interleave(share, dim=1) for x in (k, v))
    q = torch.cat([q, q_columns[None, :, None].expand(*q.shape[:3], extra)], dim=-1)
    k = torch.cat([k, k_columns[None].expand(k.shape[0], -1, -1, -1)], dim=-1)
    return q, k, torch.nn.functional.pad(v, (0, extra))
