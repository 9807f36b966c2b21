"""Each kind of corpus as training and held-out text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from data.text_cases import random_documents, random_text

from plsh_cli.data.tokenizer import byte_tokenizer
from plsh_cli.data.training_data import files_checksum, training_split
from plsh_cli.data.windows import Windows
from plsh_cli.errors import UserError


def split_of(kind, source, tmp_path, **options):
    return training_split(kind, source, byte_tokenizer(), tmp_path / "cache", say=lambda text: None, **options)


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts").mkdir()
    documents = random_documents(11, sizes=(200, 400))
    for document in documents:
        (tmp_path / "texts" / f"{document.name}.txt").write_text(document.text)
    return tmp_path / "texts"


def test_text_files(texts, tmp_path):
    split = split_of("text", f"{texts}/*.txt", tmp_path, share=0.2)
    assert len(split.train) + len(split.held_out) == 11
    assert split.identity()["corpus"]["kind"] == "text"
    Windows(split.train, 63), Windows(split.held_out, 63)


def test_a_changed_file_is_another_corpus(texts, tmp_path):
    first = split_of("text", texts, tmp_path).identity()
    assert split_of("text", texts, tmp_path).identity() == first
    (texts / "d3.txt").write_text(random_text(77, 300))
    assert split_of("text", texts, tmp_path).identity()["store"] != first["store"]


def test_a_file_with_another_name_is_another_corpus(texts):
    path = texts / "d0.txt"
    assert files_checksum([("a", path)]) != files_checksum([("b", path)])


def test_documents_joined(texts, tmp_path):
    split = split_of("text", texts, tmp_path, join_rows=4, share=0.3)
    assert sorted([*split.train.names(), *split.held_out.names()]) == ["rows-0", "rows-4", "rows-8"]
    single = split_of("text", texts, tmp_path)
    total = single.train.bytes + single.held_out.bytes
    assert split.train.bytes + split.held_out.bytes == total + 11 - 3


@pytest.mark.parametrize("name", ["*.md", "nothing.txt"])
def test_no_such_file(texts, tmp_path, name):
    with pytest.raises(UserError, match=r"data\.path"):
        split_of("text", f"{texts}/{name}", tmp_path)


def test_a_file_that_is_not_utf8(texts, tmp_path):
    (texts / "d1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"d1\.txt: is not UTF-8"):
        split_of("text", texts, tmp_path)


def test_empty_files(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="the corpus is empty"):
        split_of("text", tmp_path / "a.txt", tmp_path)


def test_one_file_only(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match="two different texts"):
        split_of("text", tmp_path / "a.txt", tmp_path)


def test_sotu(tmp_path):
    documents = random_documents(19)
    lines = [json.dumps({"name": d.name, "text": d.text}) + "\n" for d in documents]
    (tmp_path / "documents.jsonl").write_text("".join(lines))
    split = split_of("sotu", tmp_path, tmp_path, identity={"sha256": "known"}, share=0.1, seed=4)
    assert split.identity()["corpus"] == {"kind": "sotu", "sha256": "known", "part": "train"}
    assert sorted([*split.train.names(), *split.held_out.names()]) == sorted(d.name for d in documents)


@pytest.fixture
def wiki(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
    from pyarrow import parquet

    rows = {}
    for part, count in (("train", 2003), ("validation", 307)):
        rows[part] = [row for i in range(count) for row in ("", f" = {part} {i} = \n", f" text {part} {i * 7919} \n")]
        parquet.write_table(pa.table({"text": rows[part]}), tmp_path / f"{part}-00000-of-00001.parquet")
    return tmp_path, rows


@pytest.mark.parametrize("drop_empty", [False, True])
def test_wikitext_as_the_paper_packs_it(wiki, tmp_path, drop_empty):
    folder, rows = wiki
    split = split_of("wikitext103", folder, tmp_path, join_rows=1000, drop_empty=drop_empty)
    for selection, part in ((split.train, "train"), (split.held_out, "validation")):
        kept = [row for row in rows[part] if row or not drop_empty]
        order = [kept[i] for i in np.random.default_rng(42).permutation(len(kept))]
        wanted = [" ".join(order[i : i + 1000]) for i in range(0, len(order), 1000)]
        found = [bytes(selection.store.document(i)[:-1].astype(np.uint8)).decode() for i in selection.documents]
        assert found == wanted


def test_wikitext_by_articles(wiki, tmp_path):
    folder, _ = wiki
    split = split_of("wikitext103", folder, tmp_path)
    assert split.train.names()[:2] == ["train 0", "train 1"]
    assert (len(split.train), len(split.held_out)) == (2003, 307)
    assert split.held_out.store.folder != split.train.store.folder
