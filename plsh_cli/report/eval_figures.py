"""The figures of `plsh eval`: perplexity against length, and losses by left text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.eval_tables import key_of, labels
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly

MOST_LINES = 7


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw perplexity (against length, where there are several) and position (nats by tokens of left text)."""
    rows, summary = result["rows"], result["summary"]
    made: dict[str, Callable[[], Figure]] = {}
    if len({row["n"] for row in rows}) > 1:
        made["perplexity"] = partial(_perplexity, rows, summary)
    made["position"] = partial(_position, summary)
    return made


def _perplexity(rows: Sequence[Row], summary: Mapping[str, Any]) -> Figure:
    """Perplexity of every bias against the length of the window, with the band of its interval."""
    made, (panel,) = style.figure(4.0)
    style.log_x(panel, [row["n"] for row in rows])
    panel.set_yscale("log")
    ends, named = [], _shown(rows)
    for key, (text, colour, marker) in named.items():
        line = [row for row in rows if key_of(row) == key and row["perplexity"] is not None]
        if not line:
            continue
        x, y = (np.array([row[field] for row in line], dtype=float) for field in ("n", "perplexity"))
        panel.plot(x, y, color=colour, marker=marker, zorder=3)
        if all(row["perplexity_low"] is not None and row["perplexity_high"] is not None for row in line):
            low, high = ([row[f"perplexity_{end}"] for row in line] for end in ("low", "high"))
            panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        ends.append(EndLabel(x[-1], y[-1], text, colour))
    style.plain_log_y(panel)
    panel.set_xlabel("tokens of a window")
    panel.set_ylabel("perplexity")
    _title(made, summary)
    if summary["clusters"] > 1:
        over = f"95 % CI over {summary['clusters']} {summary['interval_over']}"
        made.legend(handles=[Patch(color=style.MUTED, alpha=0.3, label=over)], loc="outside lower center")
    style.label_ends({panel: ends})
    return made


def _position(summary: Mapping[str, Any]) -> Figure:
    """Mean nats in bins of left text; windows of each length give a piece of a line of their own."""
    made, (panel,) = style.figure(4.0)
    bins = summary["positions"]
    ends, named = [], _shown(bins)
    middles = [_middle(one) for one in bins]
    style.log_x(panel, [*middles, *summary["lengths"]])
    style.plain_ticks(panel, summary["lengths"])
    for key, (text, colour, marker) in named.items():
        last = _pieces(panel, [one for one in bins if key_of(one) == key], colour, marker)
        ends.append(EndLabel(*last, text, colour))
    panel.set_xlabel("tokens of left text in the window")
    panel.set_ylabel("nats per token")
    _title(made, summary)
    style.label_ends({panel: ends})
    return made


def _pieces(panel: Axes, bins: Sequence[Row], colour: Any, marker: str) -> tuple[float, float]:
    """Draw one bias's bins, a piece per length; the last point."""
    for n in sorted({one["n"] for one in bins}):
        piece = [one for one in bins if one["n"] == n]
        x, y = [_middle(one) for one in piece], [one["nats_per_token"] for one in piece]
        panel.plot(x, y, color=colour, marker=marker, markersize=3)
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
    counts = set(summary["scored_tokens"].values())
    same = f"the same {counts.pop():,} tokens" if len(counts) == 1 else f"{summary['windows']} windows"
    made.suptitle(style.plain(f"{summary['text_details']['corpus']}, {same}"), fontsize=10.5)
