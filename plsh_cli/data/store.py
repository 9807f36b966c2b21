"""Tokenised documents on disk, read through a memory map.

A store is a folder: `tokens.bin` (the ids of all documents, each ended by the end-of-document id), `starts.bin` (where
each begins, and the end), `sizes.bin` (bytes of its UTF-8 text), `texts.bin` (a 64-bit hash of its text), `folded.bin`
(a hash of its text with white space folded), `grams.bin` with `gram_starts.bin` (its sampled 64-byte pieces, see
grams.py), `names.jsonl` (its name) and `store.json` (what it is, and the size of every file; written last).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plsh_cli.errors import MessageError

#: Raise it when what a store holds changes; older ones are then prepared anew.
LAYOUT = 2
RECORD = "store.json"
#: The little-endian types of the files beside the tokens, whose type depends on the vocabulary.
COLUMNS = {"starts": "<i8", "sizes": "<i8", "texts": "<u8", "folded": "<u8", "grams": "<u8", "gram_starts": "<i8"}


@dataclass(frozen=True, eq=False)
class TokenStore:
    """A store that is open; every array is a view of its file, read only.

    tokens: uint16 or uint32 `(all tokens,)`. starts: `(documents + 1,)`. sizes: bytes per document. texts, folded: a
    hash per document, of its text as it is and with white space folded. grams, gram_starts: see grams.py. record: key,
    corpus, tokenizer (a fingerprint), end_id, largest_id, documents, tokens, bytes, empty (documents without text, left
    out), cuts (see shards.py), files.
    """

    folder: Path
    record: dict[str, Any]
    tokens: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    texts: np.ndarray
    folded: np.ndarray
    grams: np.ndarray
    gram_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the files itself; the tokens do not travel.
        return open_store, (self.folder,)

    @property
    def end_id(self) -> int:
        """The id that ends every document."""
        return int(self.record["end_id"])

    def document(self, index: int) -> np.ndarray:
        """The tokens of one document with its end, a view of the file."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def names(self) -> list[str]:
        """The names of all documents, in order."""
        with open(self.folder / "names.jsonl", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def faults(folder: Path) -> list[str] | None:
    """What is wrong with a store, one sentence each ([]: nothing); None where there is no store."""
    if not folder.exists():
        return None
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        sizes, layout = dict(record["files"]), record["layout"]
    except (OSError, ValueError, KeyError, TypeError):
        return [f"{RECORD} cannot be read"]
    found = [] if layout == LAYOUT else [f"it has layout {layout}, this program's is {LAYOUT}"]
    for name, size in sizes.items():
        file = folder / name
        actual = file.stat().st_size if file.is_file() else None
        if actual != size:
            found.append(f"{name} is missing" if actual is None else f"{name} has {actual} bytes in place of {size}")
    return found


def open_store(folder: Path) -> TokenStore:
    """A store whose files are mapped, not read; MessageError where it is missing or damaged."""
    trouble = faults(folder)
    if trouble is None or trouble:
        raise MessageError(f"{folder} is no whole store of tokens: {trouble[0] if trouble else 'it does not exist'}")
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    columns = {name: _mapped(folder / f"{name}.bin", dtype) for name, dtype in COLUMNS.items()}
    return TokenStore(folder, record, _mapped(folder / "tokens.bin", record["dtype"]), **columns)


def _mapped(file: Path, dtype: str) -> np.ndarray:
    # An empty file cannot be mapped.
    return np.memmap(file, dtype=dtype, mode="r") if file.stat().st_size else np.empty(0, dtype=dtype)
