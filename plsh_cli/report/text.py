"""Numbers and tables as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from plsh_cli.console import printable

Row = Mapping[str, Any]
TABLE_WIDTH = 100  # characters, at most
FOLDING = {"note", "bound"}  # columns of text beside those of keys


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits, without an exponent between 0.0001 and a million; "-" for None."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value) or abs(value) == 1:
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{_decimals(value, digits)}f}"


def mean_ci(mean: float | None, half_width: float | None) -> str:
    """A mean with its half-width to the same decimals: "0.183 ±0.012"; the mean alone where there is no interval."""
    if mean is None or half_width is None:
        return number(mean)
    if mean == 0 or not 1e-4 <= abs(mean) < 1e6:
        return f"{number(mean)} ±{half_width:.0e}" if half_width else f"{number(mean)} ±0"
    decimals = _decimals(mean, 3)
    return f"{mean:,.{decimals}f} ±{half_width:,.{decimals}f}"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """A value with the ends of its interval: "3.10 (2.81 .. 3.44)"."""
    if value is None or low is None or high is None:
        return number(value)
    return f"{number(value)} ({number(low)} .. {number(high)})"


def kernel_name(row: Row) -> str:
    """How a row's kernel is called in a table: its sigma, or its label where it has none."""
    return f"{row['sigma']:.4g}" if row.get("sigma") is not None else str(row["kernel"])


@dataclass(frozen=True)
class Sheet:
    """A table as plain text, set when it is printed: in several tables, one below the other, where it is too wide.

    The first `keys` columns are repeated in each of them. The first `text_columns` columns are flush left. lead: what
    comes before it and concerns all that follows. Numbers are never cut: text folds before them, and they fold only
    where even one column has no room.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    keys: int = 1
    text_columns: int = 1
    section_ends: Collection[int] = ()
    lead: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.lead:
            yield _text(self.lead, "bold")
        made = self.tables(options.max_width)
        made[0].title = _text(self.title, "bold")
        caption = _text(self.caption, "table.caption")
        if len(made) == 1:
            made[0].caption = caption if self.caption else None
        yield from made
        if len(made) > 1 and self.caption:
            yield caption  # the last table can be too narrow for it

    def fits(self, width: int) -> bool:
        """Whether it needs no more than this many characters as one table."""
        return _width(self._table(range(len(self.headers)))) <= width

    def tables(self, width: int) -> list[Table]:
        """The tables to print, each at most this wide, without title and caption."""
        for fold in (None, max(8, width // 3)):
            groups = self._groups(width, fold)
            made = [self._table(group, fold) for group in groups]
            if all(_width(table) <= width for table in made):
                break
        else:
            made = [self._table(group, fold, no_wrap=False) for group in groups]
        return made

    def _groups(self, width: int, fold: int | None) -> list[list[int]]:
        """Which columns stand in which table: as many as have room, always at least one beside the keys."""
        keys = list(range(self.keys))
        groups = [list(keys)]
        for column in range(self.keys, len(self.headers)):
            if len(groups[-1]) > len(keys) and _width(self._table([*groups[-1], column], fold)) > width:
                groups.append(list(keys))
            groups[-1].append(column)
        return groups

    def _table(self, columns: Sequence[int], fold: int | None = None, no_wrap: bool = True) -> Table:
        """These columns as a table; with `fold`, text columns are at most so wide."""
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left", caption_justify="left")
        for column in columns:
            text = column < self.text_columns or self.headers[column] in FOLDING
            table.add_column(
                _text(self.headers[column]),
                justify="left" if column < self.text_columns else "right",
                no_wrap=no_wrap and not (text and fold),
                overflow="fold",
                max_width=fold if text else None,
            )
        for index, row in enumerate(self.rows):
            table.add_row(*(_text(row[column]) for column in columns), end_section=index in self.section_ends)
        return table


def _text(text: str, look: str = "") -> Text:
    return Text(printable(text), style=look)


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def seeds_text(row: Row) -> str:
    """Which seeds a row's means are over: "5 seeds (0-4)"."""
    first, count = row["seed_first"], row["seeds"]
    return f"1 seed ({first})" if count == 1 else f"{count} seeds ({first}-{first + count - 1})"


def few_seeds(row: Row) -> str:
    """A warning for intervals over two or three seeds, which are wide for that reason alone; empty otherwise."""
    if not 2 <= row["seeds"] <= 3:
        return ""
    degrees = "1 degree" if row["seeds"] == 2 else "2 degrees"
    return f"{row['seeds']} seeds: intervals have {degrees} of freedom"


def _decimals(value: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))
