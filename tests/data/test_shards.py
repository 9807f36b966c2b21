"""Stores of tokens: what is in them, that nothing half-made counts, that memory does not grow with the corpus."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from data.text_cases import byte_store, random_documents, random_text

from plsh_cli.data import shards
from plsh_cli.data.corpus import Document
from plsh_cli.data.grams import sampled_grams
from plsh_cli.data.shards import prepare
from plsh_cli.data.store import faults, open_store
from plsh_cli.data.tokenizer import byte_tokenizer
from plsh_cli.errors import MessageError, UserError

DOCUMENTS = [*random_documents(7), Document("empty", ""), Document("ünï", "Präsident “quoted” 🎉\r\n")]


def test_every_document_in_order_with_its_end_and_its_bytes(tmp_path):
    store = byte_store(DOCUMENTS, tmp_path)
    texts = [document.text.encode() for document in DOCUMENTS if document.text]
    assert [store.document(i).tolist() for i in range(len(store))] == [[*text, 256] for text in texts]
    assert store.sizes.tolist() == [len(text) for text in texts]
    assert store.names() == [document.name for document in DOCUMENTS if document.text]
    counts = {key: store.record[key] for key in ("documents", "tokens", "bytes", "empty", "cuts")}
    size = sum(map(len, texts))
    assert counts == {"documents": 8, "tokens": size + 8, "bytes": size, "empty": 1, "cuts": 0}


def test_the_tokens_are_a_map_of_the_file_and_documents_are_views_of_it(tmp_path):
    store = byte_store(DOCUMENTS, tmp_path)
    assert isinstance(store.tokens, np.memmap)
    assert store.tokens.dtype == np.uint16
    assert not store.tokens.flags.writeable
    assert all(np.shares_memory(store.document(i), store.tokens) for i in range(len(store)))


def test_the_second_time_nothing_is_read_or_made(tmp_path):
    first = byte_store(DOCUMENTS, tmp_path)
    again = prepare(lambda: pytest.fail("documents were read"), byte_tokenizer(), {"test": True}, tmp_path)
    assert again.folder == first.folder


def test_another_corpus_option_or_tokenizer_is_another_store(tmp_path):
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer().backend_tokenizer, eos_token="a")
    folders = {byte_store(DOCUMENTS, tmp_path).folder, byte_store(DOCUMENTS, tmp_path, join_rows=3).folder}
    folders.add(prepare(lambda: DOCUMENTS, other, {"test": True}, tmp_path, say=lambda text: None).folder)
    assert len(folders) == 3


def test_ids_beyond_16_bits(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0, "end": 1, "far": 70_001}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", eos_token="end")
    store = prepare(lambda: [Document("a", "far far other")], tokenizer, {}, tmp_path, say=lambda text: None)
    assert store.tokens.dtype == np.uint32
    assert store.tokens.tolist() == [70_001, 70_001, 0, 1]


@pytest.mark.parametrize("text", [random_text(11, 10_007), "x" * 3001, "\n" * 997, "ü 🎉" * 499])
def test_a_long_text_is_cut_for_the_tokenizer_and_nothing_is_lost(tmp_path, monkeypatch, text):
    whole = byte_store([Document("long", text)], tmp_path / "whole")
    monkeypatch.setattr(shards, "PART_CHARACTERS", 101)
    monkeypatch.setattr(shards, "CALL_CHARACTERS", 307)
    cut = byte_store([Document("long", text)], tmp_path / "cut")
    assert cut.record["cuts"] >= len(text) // 101
    for column in ("tokens", "starts", "sizes", "texts", "folded", "grams", "gram_starts"):
        assert np.array_equal(getattr(cut, column), getattr(whole, column)), column
    assert np.array_equal(cut.grams, sampled_grams(" ".join(text.split()).encode()))


def test_cuts_come_after_line_breaks(monkeypatch):
    monkeypatch.setattr(shards, "PART_CHARACTERS", 10)
    assert shards._ends("one\ntwo\nthree four") == [8, 18]
    assert shards._ends("one two three") == [8, 13]
    assert shards._ends("0123456789abc") == [10, 13]


def test_pickled_it_opens_its_files_again(tmp_path):
    store = byte_store([Document("long", random_text(3, 100_003))], tmp_path)
    data = pickle.dumps(store)
    assert len(data) < 1000
    assert np.array_equal(pickle.loads(data).tokens, store.tokens)


@pytest.mark.parametrize("documents", [[], [Document("a", ""), Document("b", "")]])
def test_an_empty_corpus_is_refused_and_leaves_nothing(tmp_path, documents):
    with pytest.raises(UserError, match="the corpus is empty"):
        byte_store(documents, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_text_that_is_not_unicode_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=r"broken.*not Unicode.*character 3"):
        byte_store([Document("broken", "abc\ud800")], tmp_path)


def test_an_error_on_the_way_leaves_nothing(tmp_path):
    def documents():
        yield DOCUMENTS[0]
        raise UserError("data.path", "b.txt", "is not UTF-8 text")

    with pytest.raises(UserError, match="not UTF-8"):
        prepare(documents, byte_tokenizer(), {"test": True}, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    assert len(byte_store(DOCUMENTS, tmp_path)) == 8


def test_a_damaged_store_is_made_again_and_says_so(tmp_path):
    store = byte_store(DOCUMENTS, tmp_path)
    kept = store.tokens.tolist()
    os.truncate(store.folder / "tokens.bin", 100)
    assert faults(store.folder) == [f"tokens.bin has 100 bytes in place of {2 * len(kept)}"]
    with pytest.raises(MessageError, match="no whole store"):
        open_store(store.folder)
    said = []
    again = prepare(lambda: DOCUMENTS, byte_tokenizer(), {"test": True}, tmp_path, said.append)
    assert again.tokens.tolist() == kept
    assert "damaged (tokens.bin has 100 bytes" in said[0]


@pytest.mark.parametrize("record", ["", "{}", "[1]", '{"layout": 0, "files": {}}'])
def test_a_record_that_cannot_be_used(tmp_path, record):
    store = byte_store(DOCUMENTS, tmp_path)
    (store.folder / "store.json").write_text(record)
    assert faults(store.folder)
    assert faults(byte_store(DOCUMENTS, tmp_path).folder) == []


def test_a_cache_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MessageError, match=r"cannot be used.*PLSH_CACHE"):
        byte_store(DOCUMENTS, tmp_path / "file" / "cache")


#: Prepares documents that take their time, and counts how often they are read.
SLOW = """
import sys, time
from pathlib import Path
from plsh_cli.data.corpus import Document
from plsh_cli.data.shards import prepare
from plsh_cli.data.tokenizer import byte_tokenizer

cache, seconds = Path(sys.argv[1]), float(sys.argv[2])

def documents():
    with open(cache / "readers.txt", "a") as file:
        file.write("reading\\n")
    for index in range(5):
        time.sleep(seconds)
        yield Document(f"d{index}", f"text {index} " * 100_003)

store = prepare(documents, byte_tokenizer(), {"slow": True}, cache)
print(len(store), int(store.tokens[-1]))
"""


def start(cache: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, str(cache), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_several_processes_at_once_make_it_once(tmp_path):
    processes = [start(tmp_path, 0.3) for _ in range(3)]
    found = [process.communicate(timeout=120) for process in processes]
    assert all(out.endswith("5 256\n") for out, _ in found), found
    assert (tmp_path / "readers.txt").read_text() == "reading\n"


def test_killed_in_the_middle_it_leaves_nothing_that_counts(tmp_path):
    process = start(tmp_path, 0.5)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".*/ready/tokens.bin")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    leftovers = list(tmp_path.glob(".*/ready"))
    assert leftovers, "it was killed before it had begun"
    assert not list(tmp_path.glob("*/store.json"))
    out, err = start(tmp_path, 0).communicate(timeout=120)
    assert out.endswith("5 256\n"), err
    assert not list(tmp_path.glob(".*/ready"))


#: Prints the largest memory of a process (MiB) after preparing so many megabytes of documents.
MEMORY = """
import hashlib, json, sys
from pathlib import Path
from plsh_cli.data.corpus import Document
from plsh_cli.data.shards import prepare
from plsh_cli.data.splits import split_by_share
from plsh_cli.data.tokenizer import byte_tokenizer
from plsh_cli.data.windows import Windows
from plsh_cli.experiments.memory import peak_bytes

def documents():
    for index in range(int(sys.argv[2]) * 100):
        yield Document(str(index), hashlib.shake_128(str(index).encode()).hexdigest(5_000))

store = prepare(documents, byte_tokenizer(), {"megabytes": sys.argv[2]}, Path(sys.argv[1]), say=lambda text: None)
Windows(split_by_share(store, 0.05, 0).train, 1024)[7]
print(json.dumps({"tokens": store.record["tokens"], "mib": peak_bytes() / 2**20}))
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """100 M tokens in less than 1 GiB: what 16 M tokens take beyond 4 M, times eight, on top of what 4 M take."""
    peak = {}
    for megabytes in (4, 16):
        command = [sys.executable, "-c", MEMORY, str(tmp_path), str(megabytes)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
        assert found["tokens"] > megabytes * 990_000
        peak[megabytes] = found["mib"]
    assert peak[4] + 8 * max(0.0, peak[16] - peak[4]) < 1024
