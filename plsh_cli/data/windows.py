"""Documents packed into training windows of one length.

The documents' tokens, each document ended by its end token, make one stream. Window i has the tokens c i .. c (i + 1)
of it as inputs (c the context) and the tokens one further on as labels. So an epoch's windows have every token of the
stream as an input exactly once, and every token but the first as a label exactly once, except the tail: the last
(tokens - 1) mod c labels, too few for a window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from plsh_cli.data.splits import Selection
from plsh_cli.errors import UserError

#: The label of a position that is not scored (PyTorch's and transformers' convention).
NO_LABEL = -100


class Windows(Dataset[dict[str, torch.Tensor]]):
    """The windows of a selection of documents, by number; the same whichever process asks, in whatever order.

    An item has `input_ids` and `labels`, int64 `(context,)`, labels already shifted (see `collate`). With
    `document_mask` it also has `document_ids`, int64 `(context,)`: 0 for the first document of the window, 1 for the
    next, and so on, for attention that stays within a document; a document's first token is then no label (NO_LABEL),
    as nothing that is seen comes before it. Documents are packed in the order of the corpus. Raises UserError where
    they are too short for one window.
    """

    def __init__(self, selection: Selection, context: int, *, document_mask: bool = False) -> None:
        if context < 1:
            raise UserError("train.context", context, "must be at least 1 token")
        store, documents = selection.store, selection.documents
        self._store, self._mask, self.context = store, document_mask, context
        #: Where each document begins in the stream, and the stream's end.
        self._offsets = np.concatenate([[0], np.cumsum(np.diff(store.starts)[documents])])
        # Documents that are neighbours in the store are read as one run.
        first = np.flatnonzero(np.diff(documents, prepend=-2) != 1)
        self._run_offsets = np.append(self._offsets[first], self._offsets[-1])
        self._run_starts = store.starts[documents[first]]
        if len(self) < 1:
            raise UserError(
                "train.context",
                context,
                f"is too long for the text: its {len(documents)} documents have {self.tokens} tokens in all, a window "
                f"needs {context + 1}",
                "--context",
            )

    @property
    def tokens(self) -> int:
        """The tokens of the stream."""
        return int(self._offsets[-1])

    @property
    def unused(self) -> int:
        """The tokens at the stream's end that are in no window."""
        return self.tokens - 1 - len(self) * self.context

    def __len__(self) -> int:
        return max(self.tokens - 1, 0) // self.context

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        position = range(len(self))[index] * self.context
        tokens = torch.from_numpy(self.read(position, position + self.context + 1).astype(np.int64))
        item = {"input_ids": tokens[:-1], "labels": tokens[1:]}
        if self._mask:
            ids = torch.from_numpy(self.document_ids(position, position + self.context + 1))
            item["document_ids"] = ids[:-1]
            item["labels"] = torch.where(ids[1:] == ids[:-1], tokens[1:], NO_LABEL)
        return item

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens start..stop of the stream; a view of the store's file unless documents between are left out."""
        run = int(np.searchsorted(self._run_offsets, start, side="right")) - 1
        pieces = []
        while start < stop:
            begin, end = self._run_offsets[run], min(stop, self._run_offsets[run + 1])
            shift = self._run_starts[run] - begin
            pieces.append(self._store.tokens[start + shift : end + shift])
            start, run = end, run + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def document_ids(self, start: int, stop: int) -> np.ndarray:
        """Which document each of the tokens start..stop of the stream is of, int64, counted from the first one's."""
        first = int(np.searchsorted(self._offsets, start, side="right")) - 1
        last = int(np.searchsorted(self._offsets, stop, side="left"))
        return np.searchsorted(self._offsets[first : last + 1], np.arange(start, stop), side="right") - 1


def collate(items: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch `(b, context)` for a causal model of transformers.

    `shift_labels` are the labels, as they are shifted already: transformers' loss takes them instead of shifting
    `labels` again, and its Trainer counts them (with remove_unused_columns=False).
    """
    batch = {key: torch.stack([item[key] for item in items]) for key in items[0]}
    return {**batch, "shift_labels": batch["labels"]}


def document_offsets(document_ids: torch.Tensor) -> torch.Tensor:
    """Where documents begin in one row of document ids `(n,)`, then n: int32 `(documents + 1,)`, as cu_seqlens."""
    if document_ids.ndim != 1 or not len(document_ids):
        raise ValueError(f"document_ids must be one row, got shape {tuple(document_ids.shape)}")
    changes = torch.nonzero(document_ids[1:] != document_ids[:-1]).flatten() + 1
    ends = torch.tensor([len(document_ids)], device=document_ids.device)
    return torch.cat([ends * 0, changes, ends]).to(torch.int32)
