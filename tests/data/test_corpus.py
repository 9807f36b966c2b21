"""Documents from JSON lines."""

from __future__ import annotations

import json

from plsh_cli.data.corpus import Document, read_documents


def test_one_document_per_line_whatever_the_text_holds(tmp_path):
    texts = ["one", "two\nlines\r\nand \u2028 another", "Präsident “quoted”", ""]
    documents = [Document(f"d{i}", "1801-12-08", 1801, "First", "written", text) for i, text in enumerate(texts)]
    lines = [json.dumps(vars(document), ensure_ascii=False) + "\n" for document in documents]
    (tmp_path / "documents.jsonl").write_bytes("".join(lines).encode())
    assert read_documents(tmp_path / "documents.jsonl") == documents
