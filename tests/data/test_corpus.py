"""Documents from JSON lines, from text files and from WikiText's rows."""

from __future__ import annotations

import json

import pytest

from plsh_cli.data.corpus import Document, documents, read_documents, text_files, wikitext_rows
from plsh_cli.errors import UserError

WIKI = [
    "",
    " = Robert Boulter = \n",
    "",
    " Robert Boulter is an English film actor . \n",
    " He had a role in 2000 . \n",
    " = x + y = \n",
    "",
    " = = Career = = \n",
    "",
    " = 2 , as one formula says , stays text that begins like a heading = = \n",
    " In 2006 he starred . \n",
    "",
    " = Du Fu = \n",
    "",
    " Du Fu was a poet . \n",
    "",
    " = Du Fu = \n",
    " Again . \n",
]


def test_one_document_per_line_whatever_the_text_holds(tmp_path):
    texts = ["one", "two\nlines\r\nand \u2028 another", "Präsident “quoted”", ""]
    wanted = [Document(f"d{i}", text, "1801-12-08", 1801, "First", "written") for i, text in enumerate(texts)]
    lines = [json.dumps(vars(document), ensure_ascii=False) + "\n" for document in wanted]
    (tmp_path / "documents.jsonl").write_bytes("".join(lines).encode())
    assert read_documents(tmp_path / "documents.jsonl") == wanted
    assert list(documents("sotu", tmp_path)) == wanted


def test_an_unknown_kind_lists_the_known_ones(tmp_path):
    with pytest.raises(UserError, match="sotu, text, wikitext103"):
        documents("novels", tmp_path)


@pytest.fixture
def shelf(tmp_path):
    for name, data in {
        "b.txt": b"second\r\nline",
        "a.txt": b"\xef\xbb\xbffirst \xe2\x80\x9cquoted\xe2\x80\x9d",
        "deep/a.txt": b"",
        "deep/c.md": b"other",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def names(source):
    return [name for name, _ in text_files(source)]


def test_one_document_per_text_file_with_its_text_as_it_is(shelf):
    found = list(documents("text", shelf))
    assert [(d.name, d.text) for d in found] == [
        ("a.txt", "first “quoted”"),
        ("b.txt", "second\r\nline"),
        ("deep/a.txt", ""),
    ]
    assert found[0].date is None


def test_a_file_a_folder_a_glob_or_several(shelf):
    assert names(shelf / "b.txt") == ["b.txt"]
    assert names(f"{shelf}/*.txt") == ["a.txt", "b.txt"]
    assert names(f"{shelf}/**/*.md") == ["deep/c.md"]
    assert names([f"{shelf}/b.txt", f"{shelf}/[a-b].txt", shelf / "deep" / "c.md"]) == ["a.txt", "b.txt", "c.md"]


def test_names_are_unique_even_where_two_sources_have_a_file_of_one_name(shelf):
    both = names([shelf / "a.txt", shelf / "deep" / "a.txt"])
    assert both == [f"{shelf}/a.txt", f"{shelf}/deep/a.txt"]


def test_a_relative_path_is_below_the_working_folder(shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    assert names("deep/*") == ["a.txt", "c.md"]
    assert names("a.txt") == ["a.txt"]


@pytest.mark.parametrize("source", ["nothing.txt", "*.pdf", "empty", []])
def test_no_such_text(shelf, monkeypatch, source):
    monkeypatch.chdir(shelf)
    (shelf / "empty").mkdir()
    with pytest.raises(UserError, match=r"data\.path"):
        documents("text", source)


def test_a_file_that_is_not_utf8_is_named_with_the_byte(shelf):
    (shelf / "b.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(UserError, match=r"b\.txt: is not UTF-8 text.* at byte 3"):
        list(documents("text", shelf))


@pytest.fixture
def wiki(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
    from pyarrow import parquet

    folder = tmp_path / "wikitext-103-raw-v1"
    folder.mkdir()
    # Two files, cut inside an article, as the hub's are.
    for index, part in enumerate([WIKI[:5], WIKI[5:]]):
        parquet.write_table(pa.table({"text": part}), folder / f"train-0000{index}-of-00002.parquet")
    parquet.write_table(pa.table({"text": [" = Other = \n", " Held out . \n"]}), folder / "test-00000-of-00001.parquet")
    return tmp_path


def test_wikitext_articles_without_headings_and_empty_rows(wiki):
    found = list(documents("wikitext103", wiki))
    assert [d.name for d in found] == ["Robert Boulter", "Du Fu", "Du Fu (2)"]
    assert found[0].text == ("Robert Boulter is an English film actor . He had a role in 2000 . In 2006 he starred .")


def test_wikitext_articles_together_are_the_papers_text(wiki):
    """Rows that are empty or begin with "=" dropped, the others joined with spaces; words, whatever is between them."""
    kept = [row for row in WIKI if row.strip() and not row.strip().startswith("=")]
    assert " ".join(d.text for d in documents("wikitext103", wiki)).split() == " ".join(kept).split()


def test_wikitext_rows_are_the_hubs_own(wiki):
    assert list(wikitext_rows(wiki)) == WIKI
    assert [d.text for d in documents("wikitext103", wiki, "test")] == ["Held out ."]


def test_wikitext_without_its_files(tmp_path):
    with pytest.raises(UserError, match=r"validation-\*\.parquet"):
        documents("wikitext103", tmp_path, "validation")
    with pytest.raises(UserError, match="train, validation, test"):
        documents("wikitext103", tmp_path, "dev")
