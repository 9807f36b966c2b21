"""Samples of a text's 64-byte pieces, to find what two texts have in common.

Pieces are of the text with its white space folded (see `Folding`): a copy with other line ends, wrapped at another
width or indented has the same ones.
"""

from __future__ import annotations

import numpy as np

#: Bytes of a piece: about ten words, which two texts rarely share by chance.
GRAM_BYTES = 64
#: One piece in so many is kept, chosen by its content, so that the same piece is kept wherever it occurs.
KEEP_ONE_IN = 64

_BASE = np.uint64(0x9E3779B97F4A7C15 | 1)
_MIX = np.uint64(0xD6E8FEB86659FD93)


class Folding:
    """Folds the white space of a text that comes in parts: every run of it, in Unicode's sense, is one space.

    White space before the first word and after the last one is left out, so that the folded text is the same however
    the text is cut into parts.
    """

    def __init__(self) -> None:
        self._begun = self._gap = False

    def fold(self, part: str) -> str:
        """The next part's share of the folded text."""
        words = part.split()
        if not words:
            self._gap = self._gap or bool(part)
            return ""
        gap = self._begun and (self._gap or part[0].isspace())
        self._begun, self._gap = True, part[-1].isspace()
        return " " * gap + " ".join(words)


def sampled_grams(data: bytes) -> np.ndarray:
    """64-bit hashes (uint64, ascending, each once) of the kept 64-byte pieces of a text, at every byte offset.

    A polynomial hash modulo 2^64 of each piece, mixed so that its low bits depend on all of them. Empty for a text
    shorter than a piece. Two different pieces collide with probability 2^-64.
    """
    count = len(data) - GRAM_BYTES + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    # Doubling: the hash of 2k bytes from those of the k before and the k after; six steps for 64.
    hashes = np.frombuffer(data, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    width, base = 1, _BASE
    with np.errstate(over="ignore"):
        while width < GRAM_BYTES:
            hashes = hashes[:-width] * base + hashes[width:]
            width, base = 2 * width, base * base
        for shift in (np.uint64(32), np.uint64(29)):
            hashes = (hashes ^ (hashes >> shift)) * _MIX
        hashes ^= hashes >> np.uint64(32)
    return distinct(hashes[hashes % np.uint64(KEEP_ONE_IN) == 0])


def shared_shares(grams: np.ndarray, starts: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """For each document the share of its kept pieces that another text has too, float64 from 0 to 1.

    grams: the pieces of all documents, those of document i, each once, at starts[i]..starts[i+1]. texts: a number per
    document, equal for documents of the same text, which count once. 0 for a document without pieces.
    """
    lengths = np.diff(starts)
    # A text that occurs again counts once: of equal ones, the first carries the pieces.
    first = np.zeros(len(lengths), dtype=bool)
    first[np.unique(texts, return_index=True)[1]] = True
    pieces, carriers = np.unique(grams[np.repeat(first, lengths)], return_counts=True)
    elsewhere = _found(grams, pieces[carriers > 1])
    totals = np.concatenate([[0], np.cumsum(elsewhere)])
    return (totals[starts[1:]] - totals[starts[:-1]]) / np.maximum(lengths, 1)


def found_share(grams: np.ndarray, among: np.ndarray) -> float:
    """The share of the pieces `grams` that are in `among`, which ascends, too; 0 where there are none."""
    return float(_found(grams, among).mean()) if len(grams) else 0.0


def distinct(values: np.ndarray) -> np.ndarray:
    """The values in ascending order, each once (np.unique's table takes a hundred times as long for millions)."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _found(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Whether each value is in `among`, which ascends."""
    if not len(among):
        return np.zeros(len(values), dtype=bool)
    return among[np.minimum(np.searchsorted(among, values), len(among) - 1)] == values
