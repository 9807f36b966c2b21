"""Documents into a store of tokens, once: prepared in a temporary folder under a lock, kept in a cache.

Memory does not grow with the corpus: documents come one at a time, texts go through the tokenizer about 2 MB at a time,
and every file is written as it grows. A text of more than 256 Ki characters is cut, after a line break where there is
one, and its parts are tokenised one by one; tokens beside such a cut may differ from those of the whole text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from plsh_cli.data.grams import GRAM_BYTES, Folding, distinct, sampled_grams
from plsh_cli.data.store import COLUMNS, LAYOUT, RECORD, TokenStore, faults, open_store
from plsh_cli.data.tokenizer import Encode, encoder, end_id, fingerprint, largest_id
from plsh_cli.errors import MessageError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Characters that go through the tokenizer as one text, and in one call.
PART_CHARACTERS = 1 << 18
CALL_CHARACTERS = 1 << 21

Say = Callable[[str], None]


class Text(Protocol):
    """What a document must have."""

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> str: ...


def prepare(
    documents: Callable[[], Iterable[Text]],
    tokenizer: PreTrainedTokenizerBase,
    corpus: dict[str, Any],
    cache: Path,
    say: Say = print,
) -> TokenStore:
    """The store of a corpus under a tokenizer, from `cache` where it is there, else made and kept there.

    documents: called only where the store must be made. corpus: what identifies the text (plain JSON: name, checksum,
    split, options such as joined rows); with the tokenizer's fingerprint it is the store's key. Several processes at
    once make it once; one that is killed leaves nothing that counts; a damaged store is made anew. Raises UserError for
    a corpus without text, text that is not Unicode or a vocabulary beyond 32 bits, MessageError where the cache cannot
    be written.
    """
    identity = {"layout": LAYOUT, "corpus": corpus, "tokenizer": fingerprint(tokenizer), "end_id": end_id(tokenizer)}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    home = cache / key
    if faults(home) == []:
        return open_store(home)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(home, say):
            trouble = faults(home)
            if trouble != []:
                if trouble:
                    say(f"the tokens in {home} are damaged ({trouble[0]}); preparing them again")
                _make(home, documents, tokenizer, {"key": key, **identity}, say)
    except OSError as error:
        if error.errno is None:
            raise
        raise MessageError(
            f"tokens: the cache folder {cache} cannot be used ({error.strerror or error}); "
            "set PLSH_CACHE to another folder"
        ) from error
    return open_store(home)


@contextlib.contextmanager
def _locked(home: Path, say: Say) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(home.parent / f".{home.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another process is preparing these tokens; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(
    home: Path,
    documents: Callable[[], Iterable[Text]],
    tokenizer: PreTrainedTokenizerBase,
    identity: dict[str, Any],
    say: Say,
) -> None:
    """Make the store `home`; the caller holds its lock, so that leftovers belong to processes that are gone."""
    for leftover in home.parent.glob(f".{home.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent, ignore_cleanup_errors=True) as temporary:
        ready = Path(temporary) / "ready"
        ready.mkdir()
        record = _write(ready, documents(), tokenizer, identity)
        if home.exists():
            os.replace(home, Path(temporary) / "damaged")
        os.replace(ready, home)
    say(f"tokenised {record['documents']:,} documents, {record['tokens']:,} tokens, {record['bytes']:,} bytes of text")


def _write(
    folder: Path, documents: Iterable[Text], tokenizer: PreTrainedTokenizerBase, identity: dict[str, Any]
) -> dict[str, Any]:
    largest = largest_id(tokenizer)
    if largest >= 1 << 32:
        raise UserError("tokenizer", largest, "the largest id must fit in 32 bits")
    dtype = "<u2" if largest < 1 << 16 else "<u4"
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(open(folder / name, "wb"))
            for name in ("tokens.bin", "names.jsonl", *(f"{column}.bin" for column in COLUMNS))
        }
        writer = _Writer(files, encoder(tokenizer), identity["end_id"], dtype)
        for document in documents:
            writer.add(document)
        counts = writer.finish()
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    sizes = {name: (folder / name).stat().st_size for name in files}
    record = {**identity, "dtype": dtype, "largest_id": largest, **counts, "files": sizes}
    (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    return record


class _Writer:
    """Appends documents to the files of a store; texts wait until there are enough for a call of the tokenizer."""

    def __init__(self, files: dict[str, BinaryIO], encode: Encode, end: int, dtype: str) -> None:
        self._files, self._encode, self._end, self._dtype = files, encode, np.array([end], dtype=dtype), dtype
        self._limit = np.iinfo(dtype).max
        #: Parts that wait, and whether each is the last of its document.
        self._parts: list[tuple[str, bool]] = []
        self._waiting = 0
        self._tokens = self._grams = 0
        self._counts = {"documents": 0, "bytes": 0, "empty": 0, "cuts": 0}
        self._column("starts", [0])
        self._column("gram_starts", [0])

    def add(self, document: Text) -> None:
        """Append a document; one without any text is only counted."""
        if not document.text:
            self._counts["empty"] += 1
            return
        size, grams, before = 0, [], b""
        digest, folded, folding = _hash(), _hash(), Folding()
        ends = _ends(document.text)
        for start, end in zip([0, *ends], ends, strict=False):
            part = document.text[start:end]
            data = _utf8(document.name, part)
            digest.update(data)
            words = folding.fold(part).encode()
            folded.update(words)
            grams.append(sampled_grams(before + words))
            before = (before + words)[-(GRAM_BYTES - 1) :]
            size += len(data)
            self._wait(part, end == len(document.text))
        pieces = distinct(np.concatenate(grams))
        self._grams += len(pieces)
        self._counts["documents"] += 1
        self._counts["bytes"] += size
        self._counts["cuts"] += len(ends) - 1
        self._column("sizes", [size])
        self._column("texts", [int.from_bytes(digest.digest(), "little")])
        self._column("folded", [int.from_bytes(folded.digest(), "little")])
        self._column("grams", pieces)
        self._column("gram_starts", [self._grams])
        self._files["names.jsonl"].write((json.dumps(document.name) + "\n").encode())

    def finish(self) -> dict[str, int]:
        """Write what waits and return the counts; UserError where no document had text."""
        self._flush()
        if not self._counts["documents"]:
            raise UserError(
                "data", f"{self._counts['empty']} documents", "the corpus is empty: no document has any text"
            )
        return {**self._counts, "tokens": self._tokens}

    def _wait(self, part: str, last: bool) -> None:
        self._parts.append((part, last))
        self._waiting += len(part)
        if self._waiting >= CALL_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts, self._waiting = self._parts, [], 0
        if not parts:
            return
        for ids, (_, last) in zip(self._encode([part for part, _ in parts]), parts, strict=True):
            if len(ids) and int(ids.max()) > self._limit:
                raise UserError("tokenizer", int(ids.max()), "is an id beyond the tokenizer's own vocabulary")
            self._append(ids.astype(self._dtype, copy=False))
            if last:
                self._append(self._end)
                self._column("starts", [self._tokens])

    def _append(self, ids: np.ndarray) -> None:
        self._files["tokens.bin"].write(ids.data)
        self._tokens += len(ids)

    def _column(self, name: str, values: Any) -> None:
        self._files[f"{name}.bin"].write(np.asarray(values, dtype=COLUMNS[name]).data)


def _ends(text: str) -> list[int]:
    """Where the parts of a text end: after a line break, else after a space, else at the limit."""
    ends, start = [], 0
    while len(text) - start > PART_CHARACTERS:
        limit = start + PART_CHARACTERS
        found = max(text.rfind("\n", start, limit), -1) + 1 or text.rfind(" ", start, limit) + 1 or limit
        ends.append(found)
        start = found
    return [*ends, len(text)]


def _hash() -> Any:
    return hashlib.blake2b(digest_size=8)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            "data", name, f"has text that is not Unicode: {error.reason} at character {error.start}"
        ) from None
