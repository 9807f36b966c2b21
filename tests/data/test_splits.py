"""Held-out documents: whole, the same for the same seed, and never in the training windows."""

from __future__ import annotations

import json
import textwrap

import numpy as np
import pytest
from data.text_cases import byte_store, random_documents, random_text

from plsh_cli.data.corpus import Document
from plsh_cli.data.splits import (
    held_out_by_content,
    split_apart,
    split_by_share,
    split_last,
    whole,
)
from plsh_cli.data.windows import Windows
from plsh_cli.errors import UserError


def titles(split):
    return set(split.train.names()), set(split.held_out.names())


def training_text(split, context=31):
    windows = Windows(split.train, context)
    return bytes(int(i) % 256 for n in range(len(windows)) for i in windows[n]["input_ids"])


def _half(text):
    return text[len(text) // 4 :][: len(text) // 2]


def pieces(text):
    data = text.encode()
    return {data[i : i + 64] for i in range(0, len(data) - 63, 7)}


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_document_is_on_one_side_and_the_share_is_about_right(tmp_path, share, seed):
    documents = random_documents(211, sizes=(10, 997))
    split = split_by_share(byte_store(documents, tmp_path), share, seed)
    train, held_out = titles(split)
    assert train | held_out == {document.name for document in documents}
    assert not train & held_out
    total = sum(len(document.text) for document in documents)
    assert split.train.bytes + split.held_out.bytes == total
    assert share <= split.held_out.bytes / total <= share + 997 / total


def test_the_same_seed_is_the_same_split_whatever_the_order_of_the_corpus(tmp_path):
    documents = random_documents(101)
    one, other = byte_store(documents, tmp_path), byte_store(documents[::-1], tmp_path, reversed=True)
    assert titles(split_by_share(one, 0.1, 5)) == titles(split_by_share(other, 0.1, 5))
    assert titles(split_by_share(one, 0.1, 5)) != titles(split_by_share(one, 0.1, 6))


@pytest.mark.parametrize("seed", range(5))
def test_no_held_out_text_is_in_the_training_windows(tmp_path, seed):
    """Copies and near copies of other documents lie about in the corpus; windows of 31 tokens cover all of the text."""
    documents = random_documents(53, sizes=(700, 3001))
    documents += [Document(f"copy{i}", documents[i].text) for i in range(0, 53, 5)]
    documents += [Document(f"near{i}", f"Spoken: {documents[i].text[:-50]}") for i in range(1, 53, 5)]
    documents += [Document(f"half{i}", random_text(900 + i, 97) + _half(documents[i].text)) for i in range(2, 53, 5)]
    split = split_by_share(byte_store(documents, tmp_path), 0.3, seed)
    assert len(split.held_out) > 3
    training = training_text(split)
    text_of = {document.name: document.text for document in documents}
    held_out = [piece for name in split.held_out.names() for piece in pieces(text_of[name])]
    assert len(held_out) > 1000
    leaked = [piece for piece in held_out if piece in training]
    assert leaked == []
    assert split.shared == 0
    # The check itself finds training text.
    assert all(piece in training for piece in pieces(text_of[split.train.names()[0]]))


WHITE_SPACE = {
    "line ends": lambda text: text.replace("\n", "\r\n"),
    "wrapped": lambda text: "\n".join(textwrap.wrap(text, 60)),
    "indented": lambda text: textwrap.indent("\n".join(textwrap.wrap(text, 50)), "    "),
    "double spaced": lambda text: text.replace(" ", "  ") + "\n\n",
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
}


@pytest.mark.parametrize("change", WHITE_SPACE.values(), ids=WHITE_SPACE)
@pytest.mark.parametrize(("size", "whole_text"), [(211, True), (4001, True), (4001, False)])
def test_a_copy_with_other_white_space_is_a_copy(tmp_path, change, size, whole_text):
    """Near copies are of long texts only: those of short ones may have no sampled piece."""
    documents = random_documents(23, sizes=(size, size + 50))
    for index in range(0, 23, 2):
        text = documents[index].text
        copy = change(text) if whole_text else f"Spoken. {change(text[: -size // 20])}"
        documents.append(Document(f"copy{index}", copy))
    split = split_by_share(byte_store(documents, tmp_path), 0.99, 0)
    assert titles(split)[1] == {f"d{index}" for index in range(1, 23, 2)}
    assert split.shared == 0


def test_a_held_out_part_loses_copies_with_other_white_space(tmp_path):
    train, other = random_documents(5, sizes=(300, 400)), random_documents(1, seed=1, sizes=(300, 400))
    part = [Document("copy", train[3].text.replace(" ", "\n")), *other]
    split = split_apart(whole(byte_store(train, tmp_path)), whole(byte_store(part, tmp_path, part="validation")))
    assert split.held_out.names() == [other[0].name]


def test_white_space_decides_nothing_in_a_stream():
    for number in range(101):
        text = random_text(number, 97)
        assert held_out_by_content(text, 0.5, 0) == held_out_by_content(text.replace(" ", " \r\n"), 0.5, 0)


def test_what_repeats_others_is_counted_where_it_is_allowed(tmp_path):
    documents = random_documents(11, sizes=(5000, 6000))
    documents.append(Document("half", documents[0].text[:2500] + random_text(99, 2500)))
    store = byte_store(documents, tmp_path)
    allowed = split_last(store, 1)
    assert titles(allowed)[1] == {"half"}
    assert 0.3 < allowed.shared < 0.7
    assert "half" in titles(split_by_share(store, 0.9, 0))[0]


def test_a_document_larger_than_the_share_is_passed_over(tmp_path):
    documents = [Document("giant", random_text(1, 90_001)), *random_documents(20, seed=2, sizes=(400, 500))]
    for seed in range(20):
        assert "giant" in titles(split_by_share(byte_store(documents, tmp_path), 0.05, seed))[0]


def test_where_every_document_is_larger_the_smallest_is_held_out(tmp_path):
    documents = [
        Document(name, random_text(i, size)) for i, (name, size) in enumerate([("a", 503), ("b", 401), ("c", 607)])
    ]
    assert titles(split_by_share(byte_store(documents, tmp_path), 0.01, 3)) == ({"a", "c"}, {"b"})


def test_something_is_always_left_to_train_on(tmp_path):
    documents = random_documents(2, sizes=(300, 310))
    split = split_by_share(byte_store(documents, tmp_path), 0.99, 0)
    assert (len(split.train), len(split.held_out)) == (1, 1)


@pytest.mark.parametrize("documents", [[("a", "text")], [("a", "same text"), ("b", "same text")]])
def test_one_text_cannot_be_split(tmp_path, documents):
    with pytest.raises(UserError, match="two different texts"):
        split_by_share(byte_store([Document(*pair) for pair in documents], tmp_path), 0.1, 0)


def test_a_corpus_in_which_everything_is_repeated(tmp_path):
    shared = random_text(1, 9001)
    documents = [Document(str(i), f"{i} {shared}") for i in range(5)]
    with pytest.raises(UserError, match="no document can be held out"):
        split_by_share(byte_store(documents, tmp_path), 0.2, 0)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_out_of_range(tmp_path, share):
    with pytest.raises(UserError, match=r"train\.heldout"):
        split_by_share(byte_store(random_documents(3), tmp_path), share, 0)


@pytest.mark.parametrize("count", [0, 5, 6])
def test_the_last_documents_leave_some(tmp_path, count):
    with pytest.raises(UserError, match="from 1 to 4"):
        split_last(byte_store(random_documents(5), tmp_path), count)


def test_a_held_out_part_of_its_own_loses_what_trains_and_what_came_before(tmp_path):
    train, other = random_documents(7), random_documents(3, seed=1)
    part = [other[0], train[2], Document("again", other[0].text), other[1]]
    split = split_apart(whole(byte_store(train, tmp_path)), whole(byte_store(part, tmp_path, part="validation")))
    assert split.held_out.names() == [other[0].name, other[1].name]
    assert split.left_out == 2
    with pytest.raises(UserError, match="every held-out document"):
        split_apart(whole(byte_store(train, tmp_path)), whole(byte_store(train[:2], tmp_path, part="copies")))


def test_the_identity_is_plain_and_changes_with_the_split(tmp_path):
    store = byte_store(random_documents(31), tmp_path)
    found = [split_by_share(store, 0.2, seed).identity() for seed in (0, 0, 1)]
    assert json.loads(json.dumps(found[0])) == found[1]
    assert found[0]["train"]["sha256"] != found[2]["train"]["sha256"]
    parts = found[0]["train"], found[0]["held_out"]
    assert sum(part["tokens"] for part in parts) == len(store.tokens)
    assert sum(part["bytes"] for part in parts) == store.record["bytes"]
    assert sum(part["documents"] for part in parts) == 31


def test_a_streams_texts_are_held_out_by_content_with_the_probability_asked_for():
    """5 standard deviations of a binomial: false alarm below 1e-6."""
    texts = [f"text number {i}" for i in range(20_011)]
    kept = np.array([held_out_by_content(text, 0.05, seed=3) for text in texts])
    assert abs(kept.mean() - 0.05) < 5 * np.sqrt(0.05 * 0.95 / len(texts))
    assert [held_out_by_content(text, 0.05, seed=3) for text in texts[:997]] == kept[:997].tolist()
    other = np.array([held_out_by_content(text, 0.05, seed=4) for text in texts])
    assert (kept != other).any()
    assert not any(held_out_by_content(text, 0.0, 0) for text in texts[:100])
    assert all(held_out_by_content(text, 1.0, 0) for text in texts[:100])
