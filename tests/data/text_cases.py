"""Documents and stores for the tests of training data: random words, so that two texts share no 64 bytes by chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from plsh_cli.data.corpus import Document
from plsh_cli.data.shards import prepare
from plsh_cli.data.store import TokenStore
from plsh_cli.data.tokenizer import byte_tokenizer


def random_text(seed: int, size: int) -> str:
    """A text of `size` ASCII characters: random words of random letters."""
    letters = np.random.default_rng(seed).integers(0, 29, size)
    return "".join("abcdefghijklmnopqrstuvwxyz  \n"[letter] for letter in letters)


def random_documents(count: int, seed: int = 0, sizes: tuple[int, int] = (1, 997)) -> list[Document]:
    """Documents of odd sizes, each text another."""
    lengths = np.random.default_rng(seed).integers(*sizes, count)
    return [Document(f"d{i}", random_text(1000 * seed + i, int(length))) for i, length in enumerate(lengths)]


def byte_store(documents: list[Document], cache: Path, **identity: object) -> TokenStore:
    """The store of documents as bytes."""
    return prepare(lambda: documents, byte_tokenizer(), {"test": True, **identity}, cache, say=lambda text: None)
