"""The rows of all runs as one CSV table: a line per row, with its run in front.

Columns: run (folder), command, name, state, started, commit, dirty, config_hash, problem, row (its number in the run's
result, from 0), then every field that any row has, in the order met. An empty cell is a missing value, or a field that
rows of that command do not have. A run without rows has one line, so that nothing is left out. Lists are JSON. A text
that a spreadsheet would take for a formula (= + - @ in front) has an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence

from plsh_cli.console import printable
from plsh_cli.report.library import Record

ABOUT = ("run", "command", "name", "state", "started", "commit", "dirty", "config_hash", "problem", "row")


def table(records: Sequence[Record]) -> Iterator[str]:
    """The file's text, piece by piece, the header first. Every result is read twice, so that few are in memory."""
    fields: dict[str, None] = {}
    for record in records:
        for row in record.rows:
            fields |= dict.fromkeys(map(str, row))
        record.forget()
    # A field of a row that is called like a column in front keeps its name with the row's mark.
    names = {field: f"row.{field}" if field in ABOUT else field for field in fields}
    yield _line([*ABOUT, *names.values()])
    for record in records:
        about = [
            str(record.path),
            record.command,
            record.name,
            record.state,
            record.started,
            record.commit,
            record.dirty,
            record.hash,
            record.problem,
        ]
        for number, row in enumerate(record.rows):
            yield _line([*about, number, *(_cell(row.get(field)) for field in names)])
        if not record.rows:
            yield _line([*about, None, *(None for _ in names)])
        record.forget()


def _line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_harmless(one) for one in cells])
    return text.getvalue()


def _harmless(cell: object) -> object:
    """The cell for a spreadsheet and a terminal: a text is no formula and steers nothing."""
    if not isinstance(cell, str):
        return cell
    return printable(f"'{cell}" if cell.lstrip()[:1] in ("=", "+", "-", "@") else cell)


def _cell(value: object) -> object:
    return json.dumps(value, default=str) if isinstance(value, list | dict) else value
