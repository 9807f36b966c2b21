"""Bytes as tokens, and what is asked of any tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from plsh_cli.data.tokenizer import (
    byte_tokenizer,
    check_vocabulary,
    encoder,
    end_id,
    fingerprint,
    largest_id,
    load_tokenizer,
)
from plsh_cli.errors import MessageError, UserError

TEXTS = ["plain", "", "Ünï “quoted” \r\n\t x\x00\x7f 🎉", "one <|end|> two", "  leading and trailing  "]


@pytest.fixture(scope="module")
def words():
    """A tokenizer of words that cannot know a text's special tokens by their bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"?": 0, "<end>": 1, "one": 2, "two": 3, "<": 4, "end": 5, ">": 6, "far": 70_001}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?", eos_token="<end>")


@pytest.mark.parametrize("text", TEXTS)
def test_the_ids_of_bytes_are_the_bytes(text):
    tokenizer = byte_tokenizer()
    (ids,) = encoder(tokenizer)([text])
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_what_transformers_itself_encodes_as_bytes():
    text = TEXTS[2]
    assert byte_tokenizer()(text)["input_ids"] == list(text.encode())


def test_the_end_is_an_id_of_its_own_that_no_text_contains():
    tokenizer = byte_tokenizer()
    assert (len(tokenizer), end_id(tokenizer), tokenizer.pad_token_id, largest_id(tokenizer)) == (257, 256, 256, 256)
    assert max(encoder(tokenizer)(["<|end|>"])[0]) < 256


def test_saved_beside_a_model_and_loaded_offline_it_is_the_same(tmp_path):
    tokenizer = load_tokenizer("bytes")
    tokenizer.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)):
        assert fingerprint(loaded) == fingerprint(tokenizer)
        assert (loaded.eos_token_id, loaded.pad_token_id, len(loaded)) == (256, 256, 257)
        assert [list(ids) for ids in encoder(loaded)(TEXTS)] == [list(text.encode()) for text in TEXTS]


def test_special_tokens_in_a_text_are_text(words):
    (ids,) = encoder(words)(["one <end> two"])
    assert ids.tolist() == [2, 4, 5, 6, 3]
    assert words("one <end> two")["input_ids"] == [2, 1, 3], "the caller's tokenizer is left as it was"


def test_truncation_of_an_earlier_call_cuts_nothing(words):
    before = fingerprint(words)
    words("one two one", truncation=True, max_length=1)
    assert fingerprint(words) == before
    assert encoder(words)(["one two one"])[0].tolist() == [2, 3, 2]


def test_another_vocabulary_or_end_is_another_fingerprint(words):
    other = PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer, unk_token="?", eos_token="two")
    assert len({fingerprint(words), fingerprint(other), fingerprint(byte_tokenizer())}) == 3


def test_ids_with_holes_need_room_for_the_largest(words):
    assert largest_id(words) == 70_001
    check_vocabulary(words, 70_002)
    with pytest.raises(UserError, match="70002"):
        check_vocabulary(words, 70_001)


def test_a_tokenizer_without_an_end_is_refused(words):
    endless = PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer, unk_token="?")
    with pytest.raises(UserError, match="no end-of-text token"):
        end_id(endless)


def test_no_tokenizer_there(tmp_path):
    with pytest.raises(MessageError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_ids_of_bytes_are_not_copied():
    (ids,) = encoder(byte_tokenizer())(["abc"])
    assert ids.dtype == np.uint8
    assert not ids.flags.owndata
