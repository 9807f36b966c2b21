"""What one model runs under: the biases of its layers, and the attention calls that they make.

Shapes: b batch, h query heads, g key/value heads, n queries, m keys, d head dim.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from plsh_cli.attention import attention, choose_backend
from plsh_cli.attention.bias import Bias
from plsh_cli.models.lengths import Lengths, has_blocks


@dataclass(eq=False)
class State:
    """The biases of a model's layers: one per layer, or one for all.

    modules: the parts of the model that may use it; None for all that share its configuration. backends: how many calls
    each backend has served.
    """

    biases: tuple[Bias, ...]
    backend: str = "auto"
    modules: weakref.WeakSet[torch.nn.Module] | None = None
    backends: Counter[str] = field(default_factory=Counter)
    lengths: Lengths = field(default_factory=Lengths)


class Group(NamedTuple):
    """Rows that are computed together: how many keys to skip in them, and the offsets of their documents."""

    rows: torch.Tensor
    left: int
    cuts: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Place:
    """What one forward pass's mask says; it goes to every attention call, also when activations are computed again.

    biases: those at the time of the pass, so that `set` before a recomputation changes nothing in it. offset: position
    of the first query. dropped: how many of the first positions the cache has dropped. keep: (b, positions) bool, those
    that count; None for all. left: (b,) int64, how many positions are no text before a row's first one; None for none.
    starts: (b, n) int64, where each position's document starts; None for one document.
    """

    state: State
    biases: tuple[Bias, ...]
    offset: int
    dropped: int
    keep: torch.Tensor | None
    left: torch.Tensor | None
    starts: torch.Tensor | None
    groups: dict[bool, list[Group]] = field(default_factory=dict, repr=False)

    def bias_of(self, layer: int | None) -> Bias:
        """Return the bias of a layer; ValueError where there is none for it."""
        if len(self.biases) == 1:
            return self.biases[0]
        if layer is None or not 0 <= layer < len(self.biases):
            raise ValueError(f"bias: one for each of {len(self.biases)} layers, none for layer {layer}")
        return self.biases[layer]


def run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, place: Place, layer: int | None, scale: float | None
) -> torch.Tensor:
    """Return causal attention (b, h, n, d) under the layer's bias; rows and positions that are no text give 0.

    Blocks are counted from a row's first token and from a document's own place in its row: what a text gives does not
    depend on how many padding tokens stand before it.
    """
    bias = place.bias_of(layer)
    used = place.offset + q.shape[2]
    if place.dropped:
        k, v = (torch.nn.functional.pad(x, (0, 0, place.dropped, 0)) for x in (k, v))
    k, v = k[:, :, :used], v[:, :, :used]
    keep = None if place.keep is None else place.keep[:, :used]
    blocks = has_blocks(bias)
    if blocks not in place.groups:
        place.groups[blocks] = list(_groups(place, blocks, q.shape[0]))
    groups = place.groups[blocks]
    if len(groups) == 1:
        return _attend(q, k, v, place, bias, keep, groups[0], scale)
    out = torch.zeros_like(q)
    for group in groups:
        rows = group.rows.to(q.device)
        mine = None if keep is None else keep[rows]
        out = out.index_copy(0, rows, _attend(q[rows], k[rows], v[rows], place, bias, mine, group, scale))
    return out


def _groups(place: Place, blocks: bool, batch: int) -> Iterator[Group]:
    """Yield the rows by kind; padding before the text matters to biases with blocks only."""
    left = place.left if blocks else None
    if left is None and place.starts is None:
        yield Group(torch.arange(batch), 0, None)
        return
    labels = torch.zeros(batch, 1, dtype=torch.int64) if left is None else left.cpu()[:, None]
    if place.starts is not None:
        labels = torch.cat([labels, place.starts.cpu()], dim=1)
    kinds, of = torch.unique(labels, dim=0, return_inverse=True)
    for kind in range(len(kinds)):
        cuts = None
        if place.starts is not None:
            cuts = torch.cat([kinds[kind, 1:].unique(), torch.tensor([place.starts.shape[1]])])
        yield Group((of == kind).nonzero()[:, 0], int(kinds[kind, 0]), cuts)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    place: Place,
    bias: Bias,
    keep: torch.Tensor | None,
    group: Group,
    scale: float | None,
) -> torch.Tensor:
    """Attention of rows of one kind, positions counted from key `left` on."""
    n, left = q.shape[2], group.left
    offset = place.offset - left
    skipped = max(0, -offset)
    if skipped >= n:
        return torch.zeros_like(q)
    q, k, v, offset = q[:, :, skipped:], k[:, :, left:], v[:, :, left:], max(0, offset)
    keep = None if keep is None or bool(keep[:, left:].all()) else keep[:, left:]
    positions = offset + q.shape[2]
    if has_blocks(bias):
        if offset or skipped or left:
            k, v, keep = _fill(k, v, keep, place.state.lengths.rounded(bias, positions) - positions)
        bias = place.state.lengths.fit(bias, q.shape[1], k.shape[2])
    name = place.state.backend
    name = choose_backend(q, bias) if name == "auto" else name
    place.state.backends[name] += 1
    options = {"q_offset": offset, "cu_seqlens": group.cuts, "key_padding_mask": keep, "backend": name}
    out = attention(q, k, v, bias, causal=True, scale=scale, **options)
    return torch.nn.functional.pad(out, (0, 0, skipped, 0)) if skipped else out


def _fill(
    k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None, more: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Append keys that no query sees, for they lie behind the last one."""
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (k, v))
    return k, v, None if keep is None else torch.nn.functional.pad(keep, (0, more))
