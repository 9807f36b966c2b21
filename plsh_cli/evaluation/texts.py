"""Texts as token ids, with the bytes of the text that each token stands for.

Losses of different tokenizers can be compared per byte: the sizes of a text's tokens always sum to the bytes of its
UTF-8 form.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Text:
    """One text: ids, int64 (n,), and sizes, int64 (n,), the bytes that each token stands for."""

    name: str
    ids: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


def text_of(tokenizer: PreTrainedTokenizerBase, name: str, text: str) -> Text:
    """The tokens of a text, without special ones, with their bytes.

    "<|endoftext|>" in a text is 13 characters, never a special token. Sizes are exact for every token of byte-level
    tokenizers. For others they are read off the characters that a token covers: a character that is split over several
    tokens counts at the first of them. Raises ValueError for a tokenizer that cannot say which characters those are.
    """
    from tokenizers.decoders import ByteLevel

    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"tokenizer {type(tokenizer).__name__}: must be a fast one, which knows where its tokens lie")
    special = backend.encode_special_tokens
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    try:
        found = backend.encode(text, add_special_tokens=False)
    finally:
        backend.encode_special_tokens = special
    ids = np.array(found.ids, dtype=np.int64)
    total = len(text.encode())
    if isinstance(backend.decoder, ByteLevel):
        # Every character of such a token is one byte.
        sizes = np.array([len(token) for token in found.tokens], dtype=np.int64)
        if int(sizes.sum()) == total:
            return Text(name, ids, sizes)
    return Text(name, ids, _from_offsets(text, found.offsets))


def start_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id that the tokenizer puts before every text by itself, because its model expects it; None without one."""
    ids = tokenizer("a")["input_ids"]
    bos = tokenizer.bos_token_id
    return int(bos) if bos is not None and ids and ids[0] == bos else None


def _from_offsets(text: str, offsets: list[tuple[int, int]]) -> np.ndarray:
    """Bytes between the ends of tokens; what no token covers, such as white space, counts at the token after it."""
    before = np.array([0, *accumulate(len(character.encode()) for character in text)], dtype=np.int64)
    ends = np.maximum.accumulate(np.array([end for _, end in offsets], dtype=np.int64)) if offsets else np.zeros(0, int)
    if len(ends):
        ends[-1] = len(text)
    return np.diff(before[ends], prepend=0)
