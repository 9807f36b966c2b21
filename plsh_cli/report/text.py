"""Numbers and tables as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]
TABLE_WIDTH = 100  # characters


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


def new_table(title: str, columns: Sequence[str], caption: str | None = None, text_columns: int = 1) -> Table:
    """An empty table in the common look; the first `text_columns` columns are flush left, the others right."""
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < text_columns else "right", no_wrap=True)
    return table


def fits(table: Table) -> bool:
    """Whether a table needs no more than TABLE_WIDTH characters."""
    return Console(width=10 * TABLE_WIDTH).measure(table).maximum <= TABLE_WIDTH


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
