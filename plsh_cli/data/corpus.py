"""Corpora as documents: where one text ends and the next begins.

Kinds: `sotu` (a folder of the asset cache with documents.jsonl), `text` (UTF-8 text files of the user's own) and
`wikitext103` (the parquet files of the hub's Salesforce/wikitext).
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plsh_cli.errors import MessageError, UserError

Source = str | Path | Sequence[str | Path]

KINDS = ("sotu", "text", "wikitext103")
SPLITS = ("train", "validation", "test")
_WILDCARDS = re.compile(r"[*?\[]")
_TITLE = re.compile(r"= (?!=)(.*[^=\s]) =")


@dataclass(frozen=True)
class Document:
    """One text with its name, which is unique within its corpus.

    What else is known of it may be missing: `date` is ISO 8601, `form` says how it was delivered (spoken, written).
    """

    name: str
    text: str
    date: str | None = None
    year: int | None = None
    president: str | None = None
    form: str | None = None


def documents(kind: str, source: Source, split: str = "train") -> Iterator[Document]:
    """The documents of a corpus, one at a time, always in the same order.

    `source` is the asset's folder (sotu, wikitext103) or a file, folder or glob of text files, or several (text: one
    document per file, of a folder every *.txt below it). `split` matters to wikitext103 only. Raises UserError where
    nothing is there or a file is not UTF-8, MessageError without the library that reads parquet.
    """
    readers: dict[str, Callable[[], Iterator[Document]]] = {
        "sotu": lambda: iter(read_documents(_only(source) / "documents.jsonl")),
        "text": lambda: _text_documents(text_files(source)),
        "wikitext103": lambda: _articles(wikitext_rows(_only(source), split)),
    }
    if kind not in readers:
        raise UserError("data.name", kind, f"must be one of {', '.join(KINDS)}")
    return readers[kind]()


def read_documents(path: Path) -> list[Document]:
    """The documents of a UTF-8 file with one JSON object per line, in the file's order."""
    return [Document(**json.loads(line)) for line in path.read_bytes().decode("utf-8").split("\n") if line]


def text_files(source: Source) -> list[tuple[str, Path]]:
    """The files that `source` stands for, each once, with the name of its document, in order of names.

    A name is the path below the folder that was given, or below the part of a glob that has no wildcard. Files of
    several sources that would share a name are named by their whole paths. UserError where a source stands for no file.
    """
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    if not sources:
        raise UserError("data.path", "[]", "must name at least one text file, folder or glob")
    found = {path: name for item in sources for name, path in _files_of(str(item))}
    names = list(found.values())
    named = ((name if names.count(name) == 1 else path.as_posix(), path) for path, name in found.items())
    return sorted(named)


def wikitext_rows(folder: Path, split: str = "train") -> Iterator[str]:
    """The raw rows of WikiText-103 as the hub has them: one line each, headings and empty rows included."""
    if split not in SPLITS:
        raise UserError("split", split, f"must be one of {', '.join(SPLITS)}")
    files = sorted(folder.rglob(f"{split}-*.parquet"))
    if not files:
        raise UserError("data.path", str(folder), f"holds no {split}-*.parquet of WikiText-103")
    try:
        from pyarrow import parquet
    except ImportError:
        raise MessageError("reading WikiText-103 needs pyarrow: pip install pyarrow") from None
    return (
        row for file in files for batch in parquet.ParquetFile(file).iter_batches() for row in batch["text"].to_pylist()
    )


def _only(source: Source) -> Path:
    if not isinstance(source, (str, Path)):
        raise UserError("data.path", str(source), "must be one folder")
    return Path(source)


def _files_of(source: str) -> list[tuple[str, Path]]:
    path = Path(os.path.expanduser(source)).absolute()
    if path.is_file():
        return [(path.name, path)]
    if path.is_dir():
        root, pattern = path, "**/*.txt"
    elif _WILDCARDS.search(source):
        fixed = [part for part in path.parts if not _WILDCARDS.search(part)]
        depth = next(index for index, part in enumerate(path.parts) if _WILDCARDS.search(part))
        root, pattern = Path(*fixed[:depth]), str(Path(*path.parts[depth:]))
    else:
        raise UserError("data.path", source, "is not there; give a UTF-8 text file, a folder with *.txt or a glob")
    found = [root / name for name in glob.glob(pattern, root_dir=root, recursive=True)]
    files = [file for file in found if file.is_file()]
    if not files:
        raise UserError("data.path", source, f"stands for no file (looked for {pattern} in {root})")
    return [(file.relative_to(root).as_posix(), file) for file in files]


def _text_documents(files: Iterable[tuple[str, Path]]) -> Iterator[Document]:
    for name, path in files:
        try:
            # A byte order mark is no part of the text.
            yield Document(name, path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise UserError(
                "data.path", str(path), f"is not UTF-8 text: {error.reason} at byte {error.start}"
            ) from None
        except OSError as error:
            raise UserError("data.path", str(path), f"cannot be read: {error.strerror}") from None


def _articles(rows: Iterable[str]) -> Iterator[Document]:
    """WikiText's articles: the rows that are neither empty nor headings, joined with spaces.

    A row `= Title =` after an empty row begins an article; text before the first one has the name "start". Titles that
    occur again get a number. Joined with spaces, the texts of all articles are the text of the paper's experiments.
    """
    seen: dict[str, int] = {}
    title, lines, after_empty = "start", [], True
    for row in rows:
        line = row.strip()
        heading = _TITLE.fullmatch(line) if after_empty else None
        if heading:
            if lines:
                yield _article(title, lines, seen)
            title, lines = heading[1], []
        elif line and not line.startswith("="):
            lines.append(line)
        after_empty = not line
    if lines:
        yield _article(title, lines, seen)


def _article(title: str, lines: list[str], seen: dict[str, int]) -> Document:
    seen[title] = seen.get(title, 0) + 1
    return Document(title if seen[title] == 1 else f"{title} ({seen[title]})", " ".join(lines))
