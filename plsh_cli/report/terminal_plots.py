"""Curves drawn with characters: braille dots where the terminal has them, plain ASCII elsewhere."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from plsh_cli.report.text import number

WIDTH, HEIGHT = 80, 9  # characters: of a whole plot, and of the field of its curve
_BRAILLE = 0x2800
#: The bit of each dot of a braille cell, by column and row from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_SPAN_FOR_LOG = 8.0
#: Terminals without braille, whatever their encoding.
_BARE = ("dumb", "linux", "vt100", "vt220")


@dataclass(frozen=True)
class Axis:
    """What is along an axis: its name with the unit, and whether it is logarithmic."""

    name: str
    log: bool = False


def ascii_only() -> bool:
    """Whether standard output can show nothing beyond plain ASCII, as far as can be known."""
    try:
        "⣿│└".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return os.environ.get("TERM") in _BARE


def spreads(values: Sequence[float]) -> bool:
    """Whether values are better seen on a logarithmic axis: all above 0, the largest many times the smallest."""
    return bool(values) and min(values) > 0 and max(values) >= _SPAN_FOR_LOG * min(values)


def plot(
    points: Sequence[tuple[float, float]], x: Axis, y: Axis, *, width: int = WIDTH, height: int = HEIGHT, plain: bool
) -> list[str]:
    """The lines of a plot of points joined in order of x, at most `width` characters wide; none for no finite point.

    plain: ASCII only, one mark per character; otherwise two by four dots per character. The first line says what is
    plotted, from its first to its last value.
    """
    kept = sorted((a, b) for a, b in points if math.isfinite(a) and math.isfinite(b))
    if x.log:
        kept = [(a, b) for a, b in kept if a > 0]
    if y.log:
        kept = [(a, b) for a, b in kept if b > 0]
    if not kept:
        return []
    xs, ys = [a for a, _ in kept], [b for _, b in kept]
    middle = (height - 1) // 2
    ticks = _ticks(min(ys), max(ys), y.log, 1 - middle / max(1, height - 1))
    margin = max(len(text) for text in ticks)
    columns = max(4, width - margin - 2)
    field = _field(_placed(xs, x.log), _placed(ys, y.log), columns, height, plain)
    lines = [_cut(f"{y.name}{' (log)' * y.log}: {number(ys[0])} to {number(ys[-1])}, {_count(len(kept))}", width)]
    at = {height - 1: ticks[2], middle: ticks[1], 0: ticks[0]}
    bar, tick, corner, floor = ("|", "+", "+", "-") if plain else ("│", "┤", "└", "─")
    for row, text in enumerate(field):
        lines.append(f"{at.get(row, ''):>{margin}} {tick if row in at else bar}{text}".rstrip())
    lines.append(f"{'':{margin}} {corner}{floor * columns}")
    lines.append(f"{'':{margin}}  {_below(_place(xs[0]), x.name + ' (log)' * x.log, _place(xs[-1]), columns)}".rstrip())
    return lines


def _place(value: float) -> str:
    """A label under the axis; steps, draws and tokens are whole numbers."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else number(value)


def _count(points: int) -> str:
    return f"{points:,} point{'s' if points > 1 else ''}"


def _ticks(low: float, high: float, log: bool, share: float) -> list[str]:
    """The labels at the top, so high between bottom and top, and at the bottom; one where all values are the same.

    With as many digits as tell them apart.
    """
    if high <= low:
        return [number(high), "", ""]
    middle = low ** (1 - share) * high**share if log else (1 - share) * low + share * high
    for digits in range(3, 16):
        texts = [number(value, digits) for value in (high, middle, low)]
        if len(set(texts)) == 3:
            break
    return texts


def _placed(values: Sequence[float], log: bool) -> list[float]:
    """The values from 0 (the smallest) to 1; 1 throughout where they are all the same."""
    scaled = [math.log(value) for value in values] if log else list(values)
    low, high = min(scaled), max(scaled)
    span = high - low
    if not math.isfinite(span):  # beyond the range of floats
        scaled, span = [value / 2 for value in scaled], high / 2 - low / 2
        low = low / 2
    return [(value - low) / span if span > 0 else 1.0 for value in scaled]


def _field(xs: Sequence[float], ys: Sequence[float], columns: int, rows: int, plain: bool) -> list[str]:
    """The rows of characters of a curve through places between 0 and 1."""
    across, down = (1, 1) if plain else (2, 4)
    wide, tall = columns * across, rows * down
    places = [(round(a * (wide - 1)), round((1 - b) * (tall - 1))) for a, b in zip(xs, ys, strict=True)]
    marked = set(places[:1])
    for start, end in itertools.pairwise(places):
        marked |= _line(start, end)
    cells = [[0] * columns for _ in range(rows)]
    for a, b in marked:
        cells[b // down][a // across] |= 1 if plain else _DOTS[a % 2][b % 4]
    if plain:
        return ["".join("*" if cell else " " for cell in row) for row in cells]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> set[tuple[int, int]]:
    """The dots of a straight line."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return {
        (
            round(start[0] + (end[0] - start[0]) * part / steps),
            round(start[1] + (end[1] - start[1]) * part / steps),
        )
        for part in range(steps + 1)
    }


def _below(first: str, name: str, last: str, columns: int) -> str:
    """The labels under the axis: its ends and its name, as far as there is room."""
    room = columns - len(first) - len(last)
    if room < 1:
        return _cut(first, columns)
    return f"{first}{_cut(name, max(0, room - 2)).center(room)}{last}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."[: max(0, width)]
