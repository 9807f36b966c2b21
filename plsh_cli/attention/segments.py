"""Which queries meet which keys, cut into ordinary attentions of equal shape: plain arithmetic on positions.

A segment is a range of queries against a range of keys, either all pairs or, where both ranges are the same positions,
the causal ones. A run is a number of segments of one shape; the kernels take a run as one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from plsh_cli.attention.inputs import Layout
from plsh_cli.positional.partitions import PartitionSet

BAND_QUERIES = (16, 256)  # queries of a segment of a band: about a quarter of its width, within these limits
BAND_KEYS = 2048  # keys of a segment of a band, at most


class Run(NamedTuple):
    """Segments of one shape. q_start, k_start: int64 indices of their first query and key. ahead: the position of the
    first query less that of the first key. anchor: see `dyadic`."""

    q_start: np.ndarray
    k_start: np.ndarray
    q_len: int
    k_len: int
    causal: bool
    ahead: int
    anchor: int


class Draw(NamedTuple):
    """One draw's weight and blocks [start, end), in order, over all positions."""

    weight: float
    start: np.ndarray
    end: np.ndarray


def draws(parts: PartitionSet) -> Iterator[Draw]:
    """Yield the draws of a set of one head; those that part the positions alike in an obvious way come as one.

    Obviously alike: only single tokens, or only one block. Draws of weight 0 are left out.
    """
    last = parts.capacity - 1
    widths, shifts, weights = parts.widths[0], parts.shifts[0], parts.weights[0]
    single = widths < 1.0
    whole = ~single & ((shifts > last) | ((shifts == 0.0) & (widths > last)))
    rest = np.flatnonzero(~single & ~whole)
    for kind in (single, whole):
        if weights[kind].sum() > 0.0:
            yield _blocks(parts, int(np.argmax(kind)), float(weights[kind].sum()))
    for k in rest[weights[rest] > 0.0].tolist():
        yield _blocks(parts, k, float(weights[k]))


def cut(start: np.ndarray, end: np.ndarray, documents: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the blocks, which cover all positions in order, cut at the edges of documents."""
    if documents is None:
        return start, end
    edges = np.union1d(start, documents[1:-1])
    return edges, np.append(edges[1:], end[-1])


def block_runs(start: np.ndarray, end: np.ndarray, layout: Layout) -> list[Run]:
    """Return the runs in which the queries of each block see the keys of that block (up to their own position)."""
    return _bucket(_block_segments(start, end, layout, end), layout)


def band_runs(width: float, layout: Layout) -> list[Run]:
    """Return runs that hold every visible pair at most `width` apart, once; they hold other pairs too.

    Chunks of queries against strips of keys, at offsets that are the same for all chunks.
    """
    documents = layout.documents if layout.documents is not None else np.array([0, layout.positions])
    lowest = min(0, layout.offset) if layout.documents is None else 0
    tables = [
        _band_segments(max(first, lowest), last, width, layout)
        for first, last in zip(np.append(lowest, documents[1:-1]), documents[1:], strict=True)
    ]
    return _bucket(np.concatenate(tables), layout)


def dyadic_runs(block: int, layout: Layout) -> list[Run]:
    """Return runs that hold every causal pair once, such that keys lie just before a nearby anchor.

    Squares of `block` (a power of two) along the diagonal, then, doubling, the queries of every second block against
    the keys of the block before it. Run.anchor: the anchor's position less that of the first key; it is the end of the
    block of keys, so far below the anchor there are keys of small weight only.
    """
    edges = np.arange(0, layout.positions, block)
    start, end = cut(edges, np.append(edges[1:], layout.positions), layout.documents)
    tables = [_block_segments(start, end, layout, (start // block + 1) * block)]
    while block < layout.positions:
        middle = np.arange(block, layout.positions, 2 * block)
        first, last = np.zeros_like(middle), np.full_like(middle, layout.positions)
        if layout.documents is not None:
            after = np.searchsorted(layout.documents, middle)
            inside = layout.documents[after] != middle
            middle, after = middle[inside], after[inside]
            first, last = layout.documents[after - 1], layout.documents[after]
        q0, q1 = (
            np.maximum(middle, layout.offset),
            np.minimum(np.minimum(middle + block, last), layout.offset + layout.n),
        )
        k0, k1 = np.maximum(middle - block, first), np.minimum(middle, layout.m)
        tables.append(_table(q0, q1, k0, k1, False, middle))
        block *= 2
    return _bucket(np.concatenate(tables), layout)


def key_intervals(width_or_draw: float | Draw, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return [first, end) of the keys that each query sees in a band or a draw, (n,) int64 each; padding aside."""
    position = layout.offset + np.arange(layout.n)
    if isinstance(width_or_draw, Draw):
        start, end = width_or_draw.start, width_or_draw.end
        block = np.clip(np.searchsorted(start, position, side="right") - 1, 0, None)
        first, last = np.where(position < 0, 0, start[block]), np.where(position < 0, 0, end[block])
    else:
        reach = int(min(width_or_draw, layout.positions + abs(layout.offset)))
        first, last = position - reach, position + reach + 1
    if layout.causal:
        last = np.minimum(last, position + 1)
    if layout.documents is not None:
        document = np.searchsorted(layout.documents, position, side="right")
        first = np.maximum(first, layout.documents[document - 1])
        last = np.minimum(last, layout.documents[document])
    first = np.clip(first, 0, layout.m)
    return first, np.clip(last, first, layout.m)


def _blocks(parts: PartitionSet, k: int, weight: float) -> Draw:
    (blocks,) = parts.blocks(0, k, k + 1)
    return Draw(weight, blocks.start, blocks.end)


def _table(q0, q1, k0, k1, causal: bool, anchor) -> np.ndarray:
    """Return segments as rows: first and end position of queries, of keys, causal, anchor."""
    columns = np.broadcast_arrays(q0, q1, k0, k1, int(causal), anchor)
    return np.stack(columns, axis=1).astype(np.int64)


def _block_segments(start: np.ndarray, end: np.ndarray, layout: Layout, anchor: np.ndarray) -> np.ndarray:
    q0, q1 = np.maximum(start, layout.offset), np.minimum(end, layout.offset + layout.n)
    k0, k1 = np.maximum(start, 0), np.minimum(end, layout.m)
    if not layout.causal:
        return _table(q0, q1, k0, k1, False, anchor)
    q0 = np.maximum(q0, 0)
    # Keys before the first query, then the square of common positions, then queries past the last key.
    before = _table(q0, q1, k0, np.minimum(q0, k1), False, anchor)
    both = np.minimum(q1, k1)
    square = _table(q0, both, q0, both, True, anchor)
    past = _table(np.maximum(k1, q0), q1, q0, k1, False, anchor)
    return np.concatenate([before, square, past])


def _band_segments(first: int, last: int, width: float, layout: Layout) -> np.ndarray:
    """Return the segments of the positions first..last-1, which see each other only."""
    low, high = max(first, layout.offset), min(last, layout.offset + layout.n)
    keys_low, keys_high = max(first, 0), min(last, layout.m)
    reach = int(min(width, max(last, high) - min(first, low)))
    chunk = min(max(1 << max(0, reach.bit_length() - 2), BAND_QUERIES[0]), BAND_QUERIES[1])
    q0 = np.arange(low, high, chunk)
    q1 = np.minimum(q0 + chunk, high)
    far = chunk + (0 if layout.causal else reach)
    tables = [np.zeros((0, 6), dtype=np.int64)]
    for top in range(far, -reach, -BAND_KEYS):
        k0, k1 = q0 + max(top - BAND_KEYS, -reach), q0 + top
        k1 = np.minimum(k1, q1 if layout.causal else q1 + reach)
        k0 = np.maximum(k0, keys_low)
        tables.append(_table(q0, q1, k0, np.minimum(k1, keys_high), False, k0))
    return np.concatenate(tables)


def _bucket(table: np.ndarray, layout: Layout) -> list[Run]:
    """Return the segments that are not empty, those of one shape as one run."""
    table = table[(table[:, 1] > table[:, 0]) & (table[:, 3] > table[:, 2])]
    if len(table) == 0:
        return []
    q0, q1, k0, k1, causal, anchor = table.T
    shape = np.stack([q1 - q0, k1 - k0, causal, q0 - k0, anchor - k0])
    order = np.lexsort((q0, *shape))
    shape = shape[:, order]
    edges = np.flatnonzero((shape[:, 1:] != shape[:, :-1]).any(axis=0)) + 1
    runs = []
    for rows in np.split(order, edges):
        one = rows[0]
        queries, keys = q0[rows] - layout.offset, k0[rows]
        kind = (int(q1[one] - q0[one]), int(k1[one] - k0[one]), bool(causal[one]), int(q0[one] - k0[one]))
        runs.append(Run(queries, keys, *kind, int(anchor[one] - k0[one])))
    return runs
