"""Texts as token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


def first_tokens(tokenizer: PreTrainedTokenizerBase, text: str, at_most: int) -> torch.Tensor:
    """The first `at_most` token ids of a text, int64 of shape (1, n); n is smaller where the text is shorter.

    Special tokens are those that the tokenizer puts before a text by itself (SmolLM2: none).
    """
    return tokenizer(text, truncation=True, max_length=at_most, return_tensors="pt")["input_ids"]
