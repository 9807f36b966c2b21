"""Tokenizers for training: bytes, or one of transformers; text as text, whatever it looks like."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plsh_cli.errors import MessageError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: How the end of a document is written where ids are shown; byte tokenizers never read it out of a text.
END_OF_DOCUMENT = "<|end|>"

Encode = Callable[[list[str]], list[np.ndarray]]


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """A tokenizer whose ids 0..255 are the bytes of the UTF-8 text and 256 ends a document (it pads, too).

    A plain tokenizer of transformers: `save_pretrained` beside a model, and `AutoTokenizer` loads it again.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_only = Tokenizer(models.BPE({character: byte for byte, character in enumerate(_byte_alphabet())}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token=END_OF_DOCUMENT,
        pad_token=END_OF_DOCUMENT,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(name: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer `bytes`, or the one in a folder or under a hub id.

    MessageError where there is none or it cannot be had.
    """
    if str(name) == "bytes":
        return byte_tokenizer()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, revision=revision or "main")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise MessageError(
            f"tokenizer {name}: cannot be loaded ({reason}); give bytes, a folder with a tokenizer or a hub id that "
            "this machine can reach"
        ) from error


def end_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that ends a document; ValueError for a tokenizer that has none."""
    if tokenizer.eos_token_id is None:
        raise UserError("tokenizer", tokenizer.name_or_path or "it", "has no end-of-text token to end documents with")
    return tokenizer.eos_token_id


def largest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The largest id of the tokenizer, which may be more than the number of its tokens."""
    return max(tokenizer.get_vocab().values())


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raise ValueError where the tokenizer has ids that a model with `vocab_size` embeddings lacks."""
    largest = largest_id(tokenizer)
    if largest >= vocab_size:
        raise UserError(
            "model.architecture.vocab_size",
            vocab_size,
            f"is too small for the tokenizer, whose largest id is {largest}: must be at least {largest + 1}",
        )


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A SHA-256 (hex) of all that decides which ids a text gets; the same for a copy that was saved and loaded."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    else:
        # Padding and truncation are the last call's, not the tokenizer's.
        rules = {**json.loads(backend.to_str()), "padding": None, "truncation": None}
    text = json.dumps([rules, tokenizer.eos_token_id], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """A function from texts to their ids, without special tokens: "<|endoftext|>" in a text is 13 characters.

    The ids of the bytes' tokenizer are views of the encoded texts (uint8), others are new arrays (int64).
    """
    if fingerprint(tokenizer) == fingerprint(byte_tokenizer()):
        return lambda texts: [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return lambda texts: [
            np.array(ids, dtype=np.int64)
            for ids in tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ]
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return lambda texts: [
        np.array(found.ids, dtype=np.int64) for found in backend.encode_batch_fast(texts, add_special_tokens=False)
    ]


def _byte_alphabet() -> list[str]:
    """The characters that stand for bytes 0..255 in byte-level tokenizers (GPT-2's table).

    Printable Latin-1 characters stand for themselves, the other bytes, in order, for the characters from 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
