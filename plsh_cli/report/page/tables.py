"""A run's tables as sheets, whatever state its result is in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from plsh_cli import report
from plsh_cli.report.library import Record
from plsh_cli.report.text import Sheet, number

SHOWN_ROWS, SHOWN_COLUMNS = 200, 14
MISSING = "-"
_WIDE = 100_000  # characters: no column is left out


def sheets(record: Record) -> tuple[list[Sheet], str | None]:
    """The tables that the run printed, and why they are not there, if so: then the first of its rows as they are."""
    result, trouble = record.result, None
    try:
        made = report.tables(result) if record.command.isidentifier() else []
        found = [sheet for sheet in map(_sheet, made) if sheet is not None]
    except Exception as error:  # a result of another version, or a damaged one, must not lose the page
        found, trouble = [], f"its tables cannot be made from its result ({type(error).__name__}: {error})"
    return (found, trouble) if found else ([_plain(record.rows)] if record.rows else [], trouble)


def cut(sheet: Sheet) -> tuple[Sequence[Sequence[str]], str]:
    """The rows to show of a sheet, and a sentence about those left out."""
    if len(sheet.rows) <= SHOWN_ROWS:
        return sheet.rows, ""
    return sheet.rows[:SHOWN_ROWS], f"the first {SHOWN_ROWS} of {len(sheet.rows):,} rows; rows.csv has all"


def _sheet(table: Any) -> Sheet | None:
    """A table of the report modules as a sheet, with all its columns."""
    sheet = table.sheet(_WIDE) if hasattr(table, "sheet") else table
    return _filled(sheet) if isinstance(sheet, Sheet) else None


def _filled(sheet: Sheet) -> Sheet:
    """The sheet without columns in which every cell is empty; those of missing values stay."""
    kept = [place for place in range(len(sheet.headers)) if place < sheet.keys or any(row[place] for row in sheet.rows)]
    return replace(
        sheet,
        headers=[sheet.headers[place] for place in kept],
        rows=[[row[place] for place in kept] for row in sheet.rows],
        text_columns=sum(place < sheet.text_columns for place in kept),
    )


def _plain(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Rows as they are, of a command that this version has no tables for."""
    columns = list(dict.fromkeys(str(key) for row in rows[:SHOWN_ROWS] for key in row))
    shown = columns[:SHOWN_COLUMNS]
    left_out = len(columns) - len(shown)
    caption = f"{left_out} more columns in rows.csv" if left_out else ""
    lines = [[_cell(row.get(name)) for name in shown] for row in rows]
    return Sheet("rows", shown, lines, caption, text_columns=0)


def _cell(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**30 else f"{value:.3e}" if abs(value) < 10**300 else "beyond 1e300"
    return number(value) if isinstance(value, float) else json.dumps(value, default=str)[:80]
