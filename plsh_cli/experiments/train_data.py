"""The text of a training run: tokenised once, split by document, packed into windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import assets, ranks
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.data import corpus
from plsh_cli.data.corpus import Document
from plsh_cli.errors import UserError
from plsh_cli.experiments.texts import TEXT

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from plsh_cli.data.splits import Split

Say = Callable[[str], None]

#: The corpus that is read from the hub as training goes on.
STREAMED = "fineweb_edu"


@dataclass(frozen=True)
class Prepared:
    """What training reads. train, held_out: datasets of windows; texts: the held-out documents, for the evaluation."""

    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    train: Any
    held_out: Any
    texts: list[Document]
    facts: dict[str, Any]

    def collate(self, items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """A batch for the model: positions count from each document's start where documents are kept apart."""
        import torch

        from plsh_cli.data.windows import collate

        batch = collate(items)
        ids = batch.pop("document_ids", None)
        if ids is not None:
            places = torch.arange(ids.shape[1]).expand_as(ids)
            begins = torch.cat([torch.ones_like(ids[:, :1], dtype=torch.bool), ids[:, 1:] != ids[:, :-1]], dim=1)
            batch["position_ids"] = places - torch.where(begins, places, 0).cummax(dim=1).values
        return batch


def prepare(cfg: TrainCommand, say: Say) -> Prepared:
    """Tokenizer, windows and held-out documents of the configured corpus, from the cache where they are there.

    Raises UserError for a corpus that is empty, too short for a window or cannot be split, and for a vocabulary that
    does not fit; MessageError for what cannot be fetched.
    """
    from plsh_cli.data.tokenizer import check_vocabulary, largest_id, load_tokenizer
    from plsh_cli.data.windows import Windows

    assert cfg.model.architecture is not None
    tokenizer = load_tokenizer(cfg.model.architecture.tokenizer)
    size = cfg.model.architecture.vocab_size or largest_id(tokenizer) + 1
    check_vocabulary(tokenizer, size)
    mask, context = cfg.train.document_mask, cfg.train.context
    if cfg.data.name == STREAMED:
        train, split = _streamed(cfg, tokenizer, say)
        texts = [Document(name, text) for name, text in _decoded(split, tokenizer)]
    else:
        source = _source(cfg, say)
        split = _split(cfg, source, tokenizer, say)
        train = Windows(split.train, context, document_mask=mask)
        _check_batch(cfg, len(train))
        texts = _held_out_texts(cfg, source, split)
    try:
        held_out = Windows(split.held_out, context, document_mask=mask)
    except UserError as error:
        allowed = f"holds out too little text for one window ({error.allowed}); hold out more"
        raise UserError("train.heldout", cfg.train.heldout, allowed, "train.heldout=...") from None
    facts = {**split.identity(), "held_out_windows": len(held_out)}
    if cfg.data.name != STREAMED:
        facts["train_windows"] = len(train)
    return Prepared(tokenizer, size, train, _some(cfg, held_out), texts, facts)


def _source(cfg: TrainCommand, say: Say) -> Any:
    if cfg.data.name != TEXT:
        return assets.fetch(cfg.data.name, say)
    if cfg.data.path is None:
        raise UserError("data.path", "null", "data=text needs the files, a folder or a glob", "data.path=...")
    return cfg.data.path


def _split(cfg: TrainCommand, source: Any, tokenizer: PreTrainedTokenizerBase, say: Say) -> Split:
    from plsh_cli.data.training_data import training_split

    return training_split(
        cfg.data.name,
        source,
        tokenizer,
        _cache(),
        share=cfg.train.heldout,
        seed=cfg.seed,
        join_rows=cfg.train.join_rows,
        say=say,
    )


def _streamed(cfg: TrainCommand, tokenizer: PreTrainedTokenizerBase, say: Say) -> tuple[Any, Split]:
    from plsh_cli.data.training_data import streamed_fineweb_edu

    if cfg.train.steps is None:
        raise UserError("train.epochs", cfg.train.epochs, "a streamed corpus has no end: give train.steps", "--steps")
    return streamed_fineweb_edu(
        tokenizer,
        cfg.train.context,
        _cache(),
        share=cfg.train.heldout,
        seed=cfg.seed,
        document_mask=cfg.train.document_mask,
        say=say,
    )


def _cache() -> Path:
    return assets.cache_folder() / "tokens"


def _held_out_texts(cfg: TrainCommand, source: Any, split: Split) -> list[Document]:
    """The held-out documents as text, in the corpus's order."""
    names = set(split.held_out.names())
    part = "validation" if cfg.data.name == "wikitext103" else "train"
    return [document for document in _documents(cfg, source, part) if document.name in names]


def _documents(cfg: TrainCommand, source: Any, part: str) -> Iterator[Document]:
    """The documents as they were tokenised."""
    from plsh_cli.data.rows import joined_rows

    if cfg.train.join_rows is None:
        return corpus.documents(cfg.data.name, source, part)
    if cfg.data.name == "wikitext103":
        rows = corpus.wikitext_rows(Path(source), part)
    else:
        rows = (document.text for document in corpus.documents(cfg.data.name, source))
    return joined_rows(rows, per_document=cfg.train.join_rows)


def _decoded(split: Split, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, str]]:
    """Held-out documents of a stream, whose text is kept as tokens only."""
    store = split.held_out.store
    for index, name in zip(split.held_out.documents, split.held_out.names(), strict=True):
        yield name, tokenizer.decode(store.document(int(index))[:-1].tolist())


def _some(cfg: TrainCommand, windows: Any) -> Any:
    """As many windows as are asked for, evenly spaced over the dataset."""
    from torch.utils.data import Subset

    wanted, count = cfg.train.eval_windows, len(windows)
    if wanted is None or wanted >= count:
        return windows
    return Subset(windows, [index * count // wanted for index in range(wanted)])


def _check_batch(cfg: TrainCommand, windows: int) -> None:
    needed = cfg.train.batch * ranks.count()
    if windows < needed:
        allowed = f"the training text has {windows} windows of {cfg.train.context} tokens, one batch needs {needed}"
        raise UserError("train.batch", cfg.train.batch, f"is too large: {allowed}", "train.batch=...")
