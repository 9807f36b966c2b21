"""Which documents train and which are held out.

A held-out document is whole, its text is no training document's text, and at most `shared_limit` of its 64-byte pieces
(sampled, see grams.py) occur in any other document of the corpus: a speech that exists as spoken and as written, or a
page that was copied, trains. White space does not count: a copy with other line ends or line breaks is a copy. What two
texts of one language share in short phrases remains, and is counted in `shared`; so does a copy with changes of a text
below about 300 bytes, which may have no sampled piece.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from plsh_cli.data.grams import distinct, found_share, shared_shares
from plsh_cli.data.store import TokenStore
from plsh_cli.errors import UserError
from plsh_cli.positional.streams import generator


@dataclass(frozen=True, eq=False)
class Selection:
    """Documents of a store, in the store's order; `documents` are their indices (int64)."""

    store: TokenStore
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def tokens(self) -> int:
        """All tokens, the ends of documents included."""
        return int(np.diff(self.store.starts)[self.documents].sum())

    @property
    def bytes(self) -> int:
        """The bytes of the texts in UTF-8."""
        return int(self.store.sizes[self.documents].sum())

    def names(self) -> list[str]:
        """The documents' names."""
        names = self.store.names()
        return [names[index] for index in self.documents]

    def hashes(self) -> dict[str, str]:
        """The documents' names with the hashes of their texts (hex)."""
        found = self.store.texts[self.documents]
        return {name: f"{int(text):016x}" for name, text in zip(self.names(), found, strict=True)}

    def grams(self) -> np.ndarray:
        """The sampled pieces of all of them, each once."""
        mine = np.zeros(len(self.store), dtype=bool)
        mine[self.documents] = True
        return distinct(self.store.grams[np.repeat(mine, np.diff(self.store.gram_starts))])

    def identity(self) -> dict[str, Any]:
        """Counts, and a SHA-256 over the hashes of the texts in order: plain values for the run folder."""
        digest = hashlib.sha256(np.ascontiguousarray(self.store.texts[self.documents]).tobytes()).hexdigest()
        return {"documents": len(self), "tokens": self.tokens, "bytes": self.bytes, "sha256": digest}


@dataclass(frozen=True, eq=False)
class Split:
    """Training and held-out documents.

    shared: the share of the held-out text's sampled pieces that occur in training text. left_out: held-out documents
    that were dropped because their text occurs in training or twice.
    """

    train: Selection
    held_out: Selection
    shared: float
    left_out: int = 0

    def identity(self) -> dict[str, Any]:
        """What the data are, as plain values for the run folder."""
        record = self.train.store.record
        return {
            "corpus": record["corpus"],
            "tokenizer": record["tokenizer"],
            "store": record["key"],
            "train": self.train.identity(),
            "held_out": {**self.held_out.identity(), "names": self.held_out.names()[:100]},
            "held_out_left_out": self.left_out,
            "held_out_shared_with_train": self.shared,
        }


def split_by_share(store: TokenStore, share: float, seed: int, shared_limit: float = 0.1) -> Split:
    """About `share` of the text, in bytes, held out by whole documents.

    Documents come in the order of the stream (seed, "held out") over distinct texts, which does not depend on the order
    of the corpus, until the share is reached; one larger than the whole share is passed over, and where that leaves
    none, the smallest is held out. Raises UserError where the corpus has one text only or each repeats others.
    """
    if not 0 < share < 1:
        raise UserError("train.heldout", share, "must lie between 0 and 1")
    kinds, of, copies = np.unique(store.folded, return_inverse=True, return_counts=True)
    if len(kinds) < 2:
        raise UserError(
            "data", f"{len(store)} documents", "holding out whole documents needs two different texts at least"
        )
    repeated = shared_shares(store.grams, store.gram_starts, store.folded)
    first = np.unique(store.texts, return_index=True)[1]
    eligible = first[(copies[of[first]] == 1) & (repeated[first] <= shared_limit)]
    if not len(eligible):
        raise UserError(
            "data",
            f"{len(store)} documents",
            f"no document can be held out: each shares more than {shared_limit:.0%} of its text with another",
        )
    order = eligible[generator(seed, "held out").permutation(len(eligible))]
    held_out = _up_to(
        order, store.sizes, share * float(store.sizes.sum()), keep=1 if len(eligible) == len(store) else 0
    )
    return _split(store, held_out)


def split_last(store: TokenStore, count: int) -> Split:
    """The last `count` documents of the corpus held out, less those whose text also occurs among the others.

    UserError where that leaves nothing to train on or nothing held out.
    """
    if not 0 < count < len(store):
        raise UserError("data", count, f"documents held out: must be from 1 to {len(store) - 1}, the corpus less one")
    last = np.arange(len(store) - count, len(store))
    return split_apart(Selection(store, np.arange(len(store) - count)), Selection(store, last))


def split_apart(train: Selection, held_out: Selection) -> Split:
    """A corpus that comes with a held-out part of its own, less texts of it that occur in training or occurred before.

    UserError where nothing is left.
    """
    texts = held_out.store.folded[held_out.documents]
    new = ~np.isin(texts, train.store.folded[train.documents])
    once = np.zeros(len(texts), dtype=bool)
    once[np.unique(texts, return_index=True)[1]] = True
    kept = Selection(held_out.store, held_out.documents[new & once])
    if not len(kept):
        raise UserError("data", f"{len(held_out)} documents", "every held-out document is in the training text too")
    return Split(train, kept, found_share(kept.grams(), train.grams()), len(held_out) - len(kept))


def whole(store: TokenStore) -> Selection:
    """All documents of a store."""
    return Selection(store, np.arange(len(store)))


def held_out_by_content(text: str, share: float, seed: int) -> bool:
    """Whether a document of a stream is held out, by a hash of its text with white space folded: copies are together.

    For corpora too large to know whole; `share` is the probability.
    """
    digest = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little") < share * 2.0**64


def _up_to(order: np.ndarray, sizes: np.ndarray, wanted: float, keep: int) -> np.ndarray:
    """Documents of `order` until they have `wanted` bytes, each at most that large; `keep` of them at least stay."""
    chosen, held = [], 0
    for index in order:
        if held >= wanted or len(chosen) == len(order) - keep:
            break
        if sizes[index] <= wanted:
            chosen.append(index)
            held += int(sizes[index])
    return np.array(chosen) if chosen else order[[np.argmin(sizes[order])]]


def _split(store: TokenStore, held_out: np.ndarray) -> Split:
    training = np.ones(len(store), dtype=bool)
    training[held_out] = False
    train, kept = Selection(store, np.flatnonzero(training)), Selection(store, np.sort(held_out))
    return Split(train, kept, found_share(kept.grams(), train.grams()))
