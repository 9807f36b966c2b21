"""Every byte of a text belongs to one token."""

from __future__ import annotations

import pytest

from plsh_cli.data.tokenizer import byte_tokenizer
from plsh_cli.evaluation.texts import start_id, text_of

TEXT = "Der Übermut — 日本語 🙂, <|end|> and  two spaces\n"


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level BPE tokenizer whose merges cut characters of several bytes apart."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([TEXT, "und and und and two two"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


@pytest.fixture(scope="module")
def words():
    """A tokenizer that drops white space, as WordPiece ones do."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"?": 0, "two": 1, "and": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")


def test_bytes_are_one_byte_each():
    text = text_of(byte_tokenizer(), "t", TEXT)
    assert bytes(text.ids.tolist()) == TEXT.encode()
    assert set(text.sizes) == {1}


def test_byte_level_tokens_have_their_own_bytes(byte_level):
    text = text_of(byte_level, "t", TEXT)
    assert text.sizes.sum() == len(TEXT.encode())
    assert len(text) < len(TEXT.encode())
    end = 0
    for token, size in zip(text.ids, text.sizes, strict=True):
        decoded = byte_level.decode([token])
        if "�" not in decoded:
            assert decoded.encode() == TEXT.encode()[end : end + size]
        end += size


def test_other_tokenizers_count_what_lies_between_their_tokens(words):
    text = text_of(words, "t", "and  two Übermut\n")
    assert text.sizes.tolist() == [3, 5, 10]


def test_special_tokens_in_a_text_are_text(byte_level):
    assert byte_level.eos_token_id not in text_of(byte_level, "t", TEXT).ids


def test_an_empty_text():
    assert len(text_of(byte_tokenizer(), "t", "")) == 0


def test_the_tokenizer_is_left_as_it_was(byte_level):
    text_of(byte_level, "t", TEXT)
    assert byte_level("<|end|>")["input_ids"] == [byte_level.eos_token_id]


def test_a_start_is_only_what_the_tokenizer_puts_there_itself(words):
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    assert start_id(words) is None
    backend = words.backend_tokenizer
    backend.add_special_tokens(["<s>"])
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))])
    with_start = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?", bos_token="<s>")
    assert start_id(with_start) == with_start.bos_token_id
    assert start_id(byte_tokenizer()) is None
