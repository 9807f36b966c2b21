"""Windows from a stream: those of the packed corpus, from any place, on any rank."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from data.text_cases import byte_store, random_documents
from torch.utils.data import DataLoader

from plsh_cli.data import streaming
from plsh_cli.data.splits import Selection, held_out_by_content, whole
from plsh_cli.data.streaming import HubDocuments, StreamedWindows
from plsh_cli.data.tokenizer import byte_tokenizer
from plsh_cli.data.windows import Windows, collate
from plsh_cli.errors import MessageError, UserError

DOCUMENTS = random_documents(17, sizes=(1, 311))


class Numbered:
    """Documents whose place can be saved and set, and which count how many were read."""

    def __init__(self):
        self.place, self.read = 0, 0

    def __iter__(self):
        while self.place < len(DOCUMENTS):
            self.place += 1
            self.read += 1
            yield DOCUMENTS[self.place - 1]
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def same(found, wanted):
    return len(found) == len(wanted) and all(
        one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
        for one, other in zip(found, wanted, strict=True)
    )


def packed(tmp_path, context, mask, documents=None):
    store = byte_store(DOCUMENTS, tmp_path)
    selection = whole(store) if documents is None else Selection(store, np.array(documents))
    windows = Windows(selection, context, document_mask=mask)
    return [windows[i] for i in range(len(windows))]


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("context", [1, 7, 127])
def test_the_windows_are_those_of_the_packed_corpus(tmp_path, context, mask):
    stream = StreamedWindows(DOCUMENTS, byte_tokenizer(), context, document_mask=mask)
    assert same(list(stream), packed(tmp_path, context, mask))
    assert same(list(stream), list(stream)), "a second pass"


@pytest.mark.parametrize("mask", [False, True])
def test_held_out_texts_are_left_out(tmp_path, mask):
    kept = [i for i, document in enumerate(DOCUMENTS) if not held_out_by_content(document.text, 0.3, 0)]
    assert 5 < len(kept) < 17
    stream = StreamedWindows(
        DOCUMENTS, byte_tokenizer(), 31, document_mask=mask, keep=lambda text: not held_out_by_content(text, 0.3, 0)
    )
    assert same(list(stream), packed(tmp_path, 31, mask, kept))


@pytest.mark.parametrize("source", [Numbered, lambda: DOCUMENTS])
def test_it_goes_on_after_any_window(source):
    def keep(text):
        return not held_out_by_content(text, 0.3, 0)

    every = list(StreamedWindows(DOCUMENTS, byte_tokenizer(), 13, document_mask=True, keep=keep))
    stream, states = StreamedWindows(source(), byte_tokenizer(), 13, document_mask=True, keep=keep), []
    for _ in stream:
        states.append(json.loads(json.dumps(stream.state_dict())))
    assert len(states) == len(every)
    for number in (0, 1, 2, 17, 50, len(every) - 2, len(every) - 1):
        other = StreamedWindows(source(), byte_tokenizer(), 13, document_mask=True, keep=keep)
        other.load_state_dict(states[number])
        assert same(list(other), every[number + 1 :])
        assert same(list(other), every), "the next pass begins at the beginning"


def test_going_on_reads_no_document_again():
    stream = StreamedWindows(Numbered(), byte_tokenizer(), 13)
    windows = iter(stream)
    for _ in range(100):
        next(windows)
    state, source = stream.state_dict(), Numbered()
    other = StreamedWindows(source, byte_tokenizer(), 13)
    other.load_state_dict(state)
    list(other)
    assert source.read == len(DOCUMENTS) - state["documents"] < len(DOCUMENTS)


def test_skipping_windows():
    every = list(StreamedWindows(DOCUMENTS, byte_tokenizer(), 13))
    assert same(list(StreamedWindows(DOCUMENTS, byte_tokenizer(), 13, skip=29)), every[29:])


def test_through_a_loader_in_the_main_process_or_one_other():
    stream = StreamedWindows(DOCUMENTS, byte_tokenizer(), 13)
    batches = [list(DataLoader(stream, 5, num_workers=n, collate_fn=collate)) for n in (0, 1)]
    assert same(*batches)
    with pytest.raises(ValueError, match="num_workers = 2"):
        list(DataLoader(stream, 5, num_workers=2, collate_fn=collate))


def test_a_context_without_tokens():
    with pytest.raises(UserError, match="at least 1"):
        StreamedWindows(DOCUMENTS, byte_tokenizer(), 0)


def test_without_the_hub_there_is_one_message():
    pytest.importorskip("datasets")
    with pytest.raises(MessageError, match=r"fineweb-edu cannot be streamed"):
        HubDocuments("HuggingFaceFW/fineweb-edu", "sample-10BT")


def test_without_datasets_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MessageError, match="pip install 'datasets"):
        HubDocuments("HuggingFaceFW/fineweb-edu", "sample-10BT")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """FineWeb's fields in local files, in place of the hub."""
    datasets = pytest.importorskip("datasets")
    files = []
    for index in range(4):
        rows = [{"id": d.name, "text": d.text} for d in DOCUMENTS[index::4]]
        files.append(tmp_path / f"{index}.jsonl")
        files[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = datasets.load_dataset

    def local(repository, config, *, split, revision, streaming):
        assert revision == "c0ffee"
        return load("json", data_files=[str(file) for file in files], split=split, streaming=streaming)

    monkeypatch.setattr(datasets, "load_dataset", local)
    monkeypatch.setattr(streaming, "_commit", lambda repository, revision: "c0ffee")
    return [document.name for index in range(4) for document in DOCUMENTS[index::4]]


def test_documents_of_the_hub_are_shared_out_over_the_ranks(hub):
    assert [document.name for document in HubDocuments("a/b", None)] == hub
    shares = [[document.name for document in HubDocuments("a/b", None, rank=rank, world=3)] for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(hub)
    assert all(shares)


def test_a_stream_of_the_hub_goes_on_where_it_was(hub):
    every = list(StreamedWindows(HubDocuments("a/b", None), byte_tokenizer(), 13))
    stream = StreamedWindows(HubDocuments("a/b", None), byte_tokenizer(), 13)
    for number, _ in enumerate(stream, start=1):
        if number == 71:
            break
    other = StreamedWindows(HubDocuments("a/b", None), byte_tokenizer(), 13)
    other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert same(list(other), every[71:])


def test_fineweb_edu_trains_on_nothing_held_out(hub, tmp_path):
    from plsh_cli.data.training_data import streamed_fineweb_edu

    windows, split = streamed_fineweb_edu(byte_tokenizer(), 13, tmp_path, share=0.5, held_out_documents=3, say=str)
    held_out = [d for d in DOCUMENTS if held_out_by_content(d.text, 0.5, 0)]
    assert len(held_out) > 3
    assert set(split.held_out.names()) < {document.name for document in held_out}
    assert len(split.held_out) == 3
    trained = bytes(int(i) for window in windows for i in window["input_ids"] if i < 256)
    kept = sum(len(document.text) for document in DOCUMENTS if document not in held_out)
    assert kept - 13 <= len(trained) <= kept
    assert not [d.name for d in held_out if len(d.text) > 40 and d.text[:40].encode() in trained]
