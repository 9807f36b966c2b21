"""Which tokens are scored, and in which windows of a text.

A window of length L holds L tokens; after each of them the model predicts the next one, and the predictions after the
last `scored` of them count. A token's left text is what its window holds before it, 1 .. L tokens. Windows lie within
one text, and no token is scored twice.

`matched`: every length scores the same tokens, in the same order: those with at least max(lengths) tokens of text
before them. They are cut into blocks of `stride` tokens from the first one of each text on; the last block of a text
may be shorter. At length L, a block is scored by the window that ends just before the block's last token, so its tokens
have L - stride + 1 .. L tokens of left text (in a shorter block, the larger of these numbers). stride is at most
min(lengths), its default. With `max_tokens`, blocks are taken from the texts in turn, the first of each, then the
second, as long as they fit.

`paper`: windows begin every `train_length` tokens, and their last `train_length` positions are scored; at
L = train_length these are all. What does not fill a window is left out, so longer windows score fewer tokens and begin
later: the counts differ between lengths, and are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of `length` tokens; text (which one), start (its first token there) and scored are int64 (windows,)."""

    length: int
    text: np.ndarray
    start: np.ndarray
    scored: np.ndarray

    def __len__(self) -> int:
        return len(self.text)

    @property
    def tokens(self) -> int:
        """How many tokens are scored."""
        return int(self.scored.sum())


def matched(
    sizes: Sequence[int], lengths: Sequence[int], stride: int | None = None, max_tokens: int | None = None
) -> dict[int, Windows]:
    """Windows for every length that score the same tokens of texts with so many tokens, in the same order.

    Raises ValueError for a stride above the shortest length, where no text is longer than the longest, and for a
    max_tokens that leaves no block.
    """
    shortest, longest = min(lengths), max(lengths)
    stride = shortest if stride is None else stride
    if not 1 <= stride <= shortest:
        raise ValueError(f"stride = {stride}: must lie in 1 .. {shortest}, the shortest length")
    _check_sizes(sizes, longest)
    blocks = [
        (turn, text, first, min(first + stride, size))
        for text, size in enumerate(sizes)
        for turn, first in enumerate(range(longest, size, stride))
    ]
    text, first, end = _within([block[1:] for block in sorted(blocks)], max_tokens)
    return {length: Windows(length, text, end - 1 - length, end - first) for length in lengths}


def paper(
    sizes: Sequence[int], lengths: Sequence[int], train_length: int, max_tokens: int | None = None
) -> dict[int, Windows]:
    """The windows of the paper for every length, per text in order.

    Raises ValueError for a length below train_length, where no text fills a window, and for a max_tokens below
    train_length.
    """
    if min(lengths) < train_length:
        raise ValueError(f"lengths = {min(lengths)}: must be at least the training length, {train_length}")
    _check_sizes(sizes, max(lengths))
    made = {}
    for length in lengths:
        blocks = [
            (text, start, start + train_length)
            for text, size in enumerate(sizes)
            for start in range(0, size - length, train_length)
        ]
        text, start, end = _within(blocks, max_tokens)
        made[length] = Windows(length, text, start, end - start)
    return made


def _check_sizes(sizes: Sequence[int], longest: int) -> None:
    if max(sizes, default=0) <= longest:
        raise ValueError(
            f"lengths = {longest}: a window and the token after it need {longest + 1} tokens, the longest text has "
            f"{max(sizes, default=0)}"
        )


def _within(blocks: list[tuple[int, int, int]], max_tokens: int | None) -> np.ndarray:
    """The first blocks (text, first, end) that have at most so many tokens together, int64 (3, blocks)."""
    columns = np.array(blocks, dtype=np.int64).T
    if max_tokens is None:
        return columns
    kept = np.cumsum(columns[2] - columns[1]) <= max_tokens
    if not kept.any():
        raise ValueError(f"max_tokens = {max_tokens}: must be at least {int(columns[2, 0] - columns[1, 0])}, one block")
    return columns[:, kept]
