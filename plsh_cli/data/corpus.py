"""A corpus as a list of documents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Document:
    """One text with where it comes from. `date` is ISO 8601; `form` says how it was delivered (spoken, written)."""

    name: str
    date: str
    year: int
    president: str
    form: str
    text: str


def read_documents(path: Path) -> list[Document]:
    """The documents of a UTF-8 file with one JSON object per line, in the file's order."""
    return [Document(**json.loads(line)) for line in path.read_bytes().decode("utf-8").split("\n") if line]
