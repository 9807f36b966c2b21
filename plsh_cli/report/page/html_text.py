"""Small pieces of HTML, every text in them escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from plsh_cli.report.library import Record
from plsh_cli.report.page.tables import MISSING

_NO_VALUE = '<span title="no value: not measured, or does not apply">–</span>'


def escape(text: str) -> str:
    """A text for HTML, also within attributes; characters that HTML does not allow are replaced."""
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "�", text))


def link(address: str, text: str) -> str:
    """A link; the address is one that this program made."""
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def cell(value: str, text: bool = False) -> str:
    """A cell of a table: a number flush right, or a text; a missing value is shown as such."""
    if value == MISSING:
        return f'<td class="missing">{_NO_VALUE}</td>'
    kind = "text" if text else ""
    kind += " bad" if value in ("NO", "not held", "worse") else ""
    return f'<td class="{kind.strip()}">{escape(value)}</td>' if kind else f"<td>{escape(value)}</td>"


def paragraphs(text: str, kind: str) -> str:
    """The lines of a text as one paragraph of this class; nothing for no text."""
    return f'<p class="{kind}">{"<br>".join(escape(line) for line in text.splitlines())}</p>\n' if text else ""


def anchors(records: Sequence[Record]) -> dict[int, str]:
    """The name of each record's place on the page, by id()."""
    found: dict[int, str] = {}
    for number, record in enumerate(records):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", record.path.name)[:80]
        found[id(record)] = f"run-{number}-{plain}"
    return found
