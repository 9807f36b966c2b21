"""Corpora for experiments: from the data section of a configuration to documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from plsh_cli import assets
from plsh_cli.config.schema.sections import Data
from plsh_cli.data.corpus import Document, documents, text_files
from plsh_cli.errors import UserError

#: The name that stands for the user's own files.
TEXT = "text"


@dataclass(frozen=True)
class Corpus:
    """Documents, read as they are asked for, and what result.json says of them: corpus, source, licence, split."""

    documents: Iterator[Document]
    details: dict[str, Any]


def check_corpus(data: Data) -> int | None:
    """How many documents there are, None where only reading says; nothing is fetched.

    Raises UserError for an unknown name, one that is only streamed, and for a path that is missing, is not wanted or
    stands for no file.
    """
    if data.name == TEXT:
        if data.path is None:
            raise UserError("data.path", "null", "data=text needs a text file, a folder or a glob", "data.path=...")
        return len(text_files(_sources(data)))
    known = [name for name, asset in assets.ASSETS.items() if asset.kind == "corpus" and not asset.streamed]
    if data.name not in known:
        streamed = data.name in assets.ASSETS and assets.ASSETS[data.name].streamed
        note = " (it is streamed, for training only)" if streamed else ""
        raise UserError("data.name", data.name, f"must be one of {', '.join([*known, TEXT])}{note}")
    if data.path is not None:
        raise UserError("data.path", str(data.path), f"belongs to data=text; {data.name} comes from the asset cache")
    return assets.find(data.name).shape.get("documents")


def corpus_to_fetch(data: Data) -> str | None:
    """What opening the corpus would fetch, in words; None where it is on this machine."""
    if data.name == TEXT or assets.cached(data.name) is not None:
        return None
    asset = assets.find(data.name)
    return f"{asset.name}: {asset.source} ({(asset.sources[0].download_bytes or 0) / 1e6:,.1f} MB)"


def open_corpus(data: Data, say: Callable[[str], None], split: str = "train") -> Corpus:
    """Fetch what is missing and open the corpus; `split` (train, validation, test) matters to wikitext103 only.

    Raises what `check_corpus` does, MessageError where it cannot be fetched, UserError for a file that is not UTF-8.
    """
    check_corpus(data)
    if data.name == TEXT:
        details = {"corpus": TEXT, "source": ", ".join(_sources(data)), "licence": None, "split": None}
        return Corpus(documents(TEXT, _sources(data)), details)
    asset = assets.find(data.name)
    folder = assets.fetch(asset.name, say)
    record = assets.describe(folder) or {}
    details = {
        "corpus": asset.title,
        "source": record.get("source", asset.source),
        "licence": asset.licence,
        "split": split if asset.name == "wikitext103" else None,
    }
    return Corpus(documents(asset.name, folder, split), details)


def _sources(data: Data) -> list[str]:
    return [data.path] if isinstance(data.path, str) else list(data.path or [])
