"""The text of a training run: tokenised once, split by document, packed into windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import assets, ranks
from plsh_cli.config.schema.train import TrainingCommand
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
_READ_BYTES = 1 << 25


@dataclass(frozen=True)
class Prepared:
    """What training reads.

    train, held_out: datasets of windows. texts: the held-out documents, for the evaluation. facts: `Split.identity` and
    the numbers of windows. hashes: of the held-out texts, by name.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Any
    held_out: Any
    texts: list[Document]
    facts: dict[str, Any]
    hashes: dict[str, str]

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


def prepare(cfg: TrainingCommand, tokenizer: PreTrainedTokenizerBase, say: Say) -> Prepared:
    """Windows and held-out documents of the configured corpus, from the cache where they are there.

    Raises UserError for a corpus that is empty, too short for a window or cannot be split; MessageError for what cannot
    be fetched.
    """
    from plsh_cli.data.windows import Windows

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
    return Prepared(tokenizer, train, _some(cfg, held_out), texts, facts, split.held_out.hashes())


def check_source(cfg: TrainingCommand) -> None:
    """Raise UserError for text that cannot be trained on, as far as a short look shows; nothing is fetched.

    Files of up to 32 MiB together are read; of larger ones only whether there are two that are not empty.
    """
    if cfg.data.name == STREAMED:
        _check_stream(cfg)
    if cfg.data.name != TEXT:
        if cfg.data.path is not None:
            allowed = f"belongs to data=text; {cfg.data.name} comes from elsewhere"
            raise UserError("data.path", str(cfg.data.path), allowed, "data=text")
        return
    source = _source(cfg, _silent)
    sizes = [path.stat().st_size for _, path in corpus.text_files(source)]
    if sum(sizes) <= _READ_BYTES:
        texts = {" ".join(one.text.split()) for one in corpus.documents(TEXT, source) if one.text}
        count = len(texts)
    else:
        count = sum(size > 0 for size in sizes)
    if count == 0:
        raise UserError("data.path", str(source), f"the corpus is empty: none of {len(sizes)} files has any text")
    if count == 1 and cfg.train.join_rows is None:
        allowed = "holding out whole documents needs two files with different texts at least"
        raise UserError("data.path", str(source), allowed, "data.path=...")


def _silent(text: str) -> None:
    """Nothing is said of a plan."""


def _check_stream(cfg: TrainingCommand) -> None:
    if cfg.train.steps is None:
        raise UserError("train.epochs", cfg.train.epochs, "a streamed corpus has no end: give train.steps", "--steps")


def _source(cfg: TrainingCommand, say: Say) -> Any:
    if cfg.data.name != TEXT:
        return assets.fetch(cfg.data.name, say)
    if cfg.data.path is None:
        raise UserError("data.path", "null", "data=text needs the files, a folder or a glob", "data.path=...")
    return cfg.data.path


def _split(cfg: TrainingCommand, source: Any, tokenizer: PreTrainedTokenizerBase, say: Say) -> Split:
    from plsh_cli.data.training_data import training_split

    return training_split(
        cfg.data.name,
        source,
        tokenizer,
        _cache(),
        share=cfg.train.heldout,
        seed=cfg.seed,
        join_rows=cfg.train.join_rows,
        drop_empty=cfg.drop_empty,
        say=say,
    )


def _streamed(cfg: TrainingCommand, tokenizer: PreTrainedTokenizerBase, say: Say) -> tuple[Any, Split]:
    from plsh_cli.data.training_data import streamed_fineweb_edu

    _check_stream(cfg)
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


def _held_out_texts(cfg: TrainingCommand, source: Any, split: Split) -> list[Document]:
    """The held-out documents as text, in the corpus's order."""
    names = set(split.held_out.names())
    part = "validation" if cfg.data.name == "wikitext103" else "train"
    return [document for document in _documents(cfg, source, part) if document.name in names]


def _documents(cfg: TrainingCommand, source: Any, part: str) -> Iterator[Document]:
    """The documents as they were tokenised."""
    from plsh_cli.data.rows import joined_rows

    if cfg.train.join_rows is None:
        return corpus.documents(cfg.data.name, source, part)
    if cfg.data.name == "wikitext103":
        rows = corpus.wikitext_rows(Path(source), part)
    else:
        rows = (document.text for document in corpus.documents(cfg.data.name, source))
    return joined_rows(rows, per_document=cfg.train.join_rows, drop_empty=cfg.drop_empty)


def _decoded(split: Split, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, str]]:
    """Held-out documents of a stream, whose text is kept as tokens only."""
    store = split.held_out.store
    for index, name in zip(split.held_out.documents, split.held_out.names(), strict=True):
        yield name, tokenizer.decode(store.document(int(index))[:-1].tolist())


def _some(cfg: TrainingCommand, windows: Any) -> Any:
    """As many windows as are asked for, evenly spaced over the dataset."""
    from torch.utils.data import Subset

    wanted, count = cfg.train.eval_windows, len(windows)
    if wanted is None or wanted >= count:
        return windows
    return Subset(windows, [index * count // wanted for index in range(wanted)])


def _check_batch(cfg: TrainingCommand, windows: int) -> None:
    needed = cfg.train.batch * ranks.count()
    if windows < needed:
        allowed = f"the training text has {windows} windows of {cfg.train.context} tokens, one batch needs {needed}"
        raise UserError("train.batch", cfg.train.batch, f"is too large: {allowed}", "train.batch=...")
