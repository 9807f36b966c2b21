"""Token ids of a text's beginning."""

from __future__ import annotations

import pytest
import torch

from plsh_cli.data.tokens import first_tokens


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(11)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")


def test_the_first_tokens(tokenizer):
    ids = first_tokens(tokenizer, "w3 w1 w4 w1 w5", 3)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[3, 1, 4]]


def test_all_tokens_of_a_shorter_text(tokenizer):
    assert first_tokens(tokenizer, "w3 w1", 7).tolist() == [[3, 1]]
