"""The figures of `plsh eval`: perplexity against length, and losses by left text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from plsh_cli.report import style
from plsh_cli.report.eval_tables import interval_text, key_of, labels
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly

MOST_LINES = 7
#: One per length of the window in the position figure.
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)))


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw perplexity (against length, where there are several) and position (nats by tokens of left text)."""
    rows, summary = result["rows"], result["summary"]
    made: dict[str, Callable[[], Figure]] = {}
    if len({row["n"] for row in rows}) > 1:
        made["perplexity"] = partial(_perplexity, rows, summary)
    made["position"] = partial(_position, summary)
    return made


def _perplexity(rows: Sequence[Row], summary: Mapping[str, Any]) -> Figure:
    """Perplexity of every bias against the length of the window, with bars of its interval side by side."""
    made, (panel,) = style.figure(4.0)
    ends, named = [], _shown(rows)
    lengths = sorted({row["n"] for row in rows})
    step = style.aside(lengths)
    edge = step ** ((len(named) - 1) / 2)
    style.log_x(panel, [lengths[0] / edge, lengths[-1] * edge])
    style.plain_ticks(panel, lengths)
    panel.set_yscale("log")
    for index, (key, (text, colour, marker)) in enumerate(named.items()):
        line = [row for row in rows if key_of(row) == key and row["perplexity"] is not None]
        if not line:
            continue
        x, y = (np.array([row[field] for row in line], dtype=float) for field in ("n", "perplexity"))
        x = x * step ** (index - (len(named) - 1) / 2)
        bars = None
        if all(row["perplexity_low"] is not None and row["perplexity_high"] is not None for row in line):
            low, high = (np.array([row[f"perplexity_{end}"] for row in line], dtype=float) for end in ("low", "high"))
            bars = [y - low, high - y]
        panel.errorbar(x, y, bars, color=colour, marker=marker, capsize=2.5, elinewidth=1.0, zorder=3)
        ends.append(EndLabel(x[-1], y[-1], text, colour))
    style.plain_log_y(panel)
    panel.set_xlabel("tokens of a window")
    panel.set_ylabel("perplexity")
    _title(made, summary)
    if summary["clusters"] > 1:
        made.legend(handles=[style.interval_key(interval_text(rows, summary))], loc="outside lower center")
    style.label_ends({panel: ends})
    return made


def _position(summary: Mapping[str, Any]) -> Figure:
    """Mean nats in bins of left text; windows of each length give a line of their own, told by its dashes."""
    made, (panel,) = style.figure(4.2)
    bins = summary["positions"]
    ends, named = [], _shown(bins)
    lengths = evenly(sorted({one["n"] for one in bins}), len(DASHES))
    dashes = dict(zip(lengths, DASHES, strict=False))
    middles = [_middle(one) for one in bins if one["n"] in dashes]
    style.log_x(panel, middles)
    style.plain_ticks(panel, _ticks(min(middles), max(middles)))
    for key, (text, colour, marker) in named.items():
        last = _pieces(panel, [one for one in bins if key_of(one) == key], dashes, colour, marker)
        ends.append(EndLabel(*last, text, colour))
    panel.set_xlabel("tokens of left text in the window")
    panel.set_ylabel("nats per token")
    _title(made, summary)
    handles = [Line2D([], [], color=style.MUTED, linestyle=dash, label=f"n = {n:,}") for n, dash in dashes.items()]
    made.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=2.8, columnspacing=1.2)
    style.label_ends({panel: ends})
    return made


def _ticks(low: float, high: float) -> list[float]:
    """Powers of four (1, 4, 16, ...) between the ends; of two where those are few; else the ends and their middle."""
    for base in (4, 2):
        inside = [float(base**power) for power in range(32) if low / 1.1 <= base**power <= high * 1.1]
        if len(inside) >= (4 if base == 4 else 3):
            return inside
    return sorted({float(round(value)) for value in (low, (low * high) ** 0.5, high)})


def _pieces(
    panel: Axes, bins: Sequence[Row], dashes: Mapping[int, Any], colour: Any, marker: str
) -> tuple[float, float]:
    """Draw one bias's bins, a line per length of the window; the last point."""
    for n, dash in dashes.items():
        piece = [one for one in bins if one["n"] == n]
        x, y = [_middle(one) for one in piece], [one["nats_per_token"] for one in piece]
        panel.plot(x, y, color=colour, marker=marker, markersize=3, linestyle=dash)
    return x[-1], y[-1]


def _middle(one: Row) -> float:
    return (one["left_from"] + one["left_to"]) / 2


def _shown(rows: Sequence[Row]) -> dict[tuple[Any, ...], tuple[str, Any, str]]:
    """Name, colour and marker of the biases that have room; several numbers of draws are shades of one colour."""
    named = labels(rows)
    keys = evenly(list(named), MOST_LINES)
    shown = {}
    for bias in dict.fromkeys(key[0] for key in keys):
        alike = [key for key in keys if key[0] == bias]
        colours = style.shades(style.BIAS_COLOURS[bias], len(alike))
        for key, colour in zip(alike, colours, strict=True):
            shown[key] = (named[key], colour, style.MARKERS[len(shown) % len(style.MARKERS)])
    return shown


def _title(made: Figure, summary: Mapping[str, Any]) -> None:
    matched = summary["windows"] == "matched"
    same = f"the same {next(iter(summary['scored_tokens'].values())):,} tokens" if matched else "the paper's windows"
    made.suptitle(style.plain(f"{summary['text_details']['corpus']}, {same}"), fontsize=10.5)
