"""Rows of a corpus as documents: shuffled, joined with spaces, so many at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from plsh_cli.data.corpus import Document
from plsh_cli.errors import UserError


def joined_rows(
    rows: Iterable[str],
    *,
    per_document: int = 1000,
    seed: int | None = 42,
    drop_empty: bool = False,
    scratch: Path | None = None,
) -> Iterator[Document]:
    """Documents of `per_document` rows joined with spaces (the last has what is left), named rows-0, rows-1000, ...

    seed: of the shuffle of the rows, None to keep their order. The permutation is that of
    `datasets.Dataset.shuffle(seed)`, `numpy.random.default_rng(seed)`'s. drop_empty: rows of nothing but white space
    are left out, before the shuffle. Rows wait in a temporary file (in `scratch`), not in memory.
    """
    if per_document < 1:
        raise UserError("train.join_rows", per_document, "must be at least 1 row")
    with tempfile.TemporaryFile(dir=scratch) as waiting:
        ends = [0]
        for row in rows:
            if not drop_empty or row.strip():
                ends.append(ends[-1] + waiting.write(row.encode()))
        count = len(ends) - 1
        waiting.flush()
        text = np.memmap(waiting, dtype=np.uint8, mode="r") if ends[-1] else np.empty(0, dtype=np.uint8)
        order = np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)
        for begin in range(0, count, per_document):
            chosen = [text[ends[row] : ends[row + 1]].tobytes().decode() for row in order[begin : begin + per_document]]
            yield Document(f"rows-{begin}", " ".join(chosen))
