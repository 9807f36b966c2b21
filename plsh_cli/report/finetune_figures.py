"""The figures of `plsh finetune`, drawn from its run folder: loss, and perplexity before and after by bias."""

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
from plsh_cli.report.finetune_tables import missing, name_key, names
from plsh_cli.report.text import Row, evenly
from plsh_cli.report.train_figures import loss, steps
from plsh_cli.report.train_tables import trained

MOST_LENGTHS = 3
#: What the weights are, the marker of their points, whether it is filled, and their place beside the bias's tick.
KINDS = {
    "before": ("before", "o", False, -0.16),
    "after": ("after", "o", True, 0.0),
    "own": ("after fine-tuning under that bias", "D", True, 0.16),
}


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw loss (against the step, training and held-out) and perplexity (by bias, a panel per length)."""
    rows, summary = result["rows"], result["summary"]
    return {"loss": partial(loss, steps(run_path), summary), "perplexity": partial(_perplexity, rows, summary)}


def _perplexity(rows: Sequence[Row], summary: Mapping[str, Any]) -> Figure:
    """Perplexity of every bias before and after, with its interval; one panel below the other for each length."""
    lengths = evenly(sorted({row["n"] for row in rows}), MOST_LENGTHS)
    made, panels = style.figure(1.2 + 1.9 * len(lengths), rows=len(lengths))
    named = names(rows)
    places = {key: place for place, key in enumerate(named)}
    kinds = [kind for kind in KINDS if any(_kind(row, summary) == kind for row in rows)]
    for n, panel in zip(lengths, panels, strict=True):
        panel.set_yscale("log")
        for row in rows:
            if row["n"] == n and row["perplexity"] is not None:
                _point(panel, row, _kind(row, summary), places[name_key(row)])
        style.plain_log_y(panel)
        panel.set_xlim(-0.5, len(places) - 0.5)
        panel.set_xticks(range(len(places)), [""] * len(places))
        panel.grid(False, axis="x")
        panel.set_ylabel("perplexity")
        panel.set_title(length_text(n, summary))
    panels[-1].set_xticks(range(len(places)), [_broken(text) for text in named.values()])
    made.suptitle(style.plain(f"{summary['model']}, fine-tuned under {trained(summary)}"), fontsize=10.5)
    made.legend(handles=_key(rows, kinds), loc="outside lower center", ncols=2)
    return made


def length_text(n: int, summary: Mapping[str, Any]) -> str:
    """A panel's title: its length, and how many times the length trained at that is, where there is one of those."""
    times = n / (summary["context"] or n)
    return f"n = {n:,}" if times == 1 else f"n = {n:,}, {times:.3g} times the length trained at"


def _kind(row: Row, summary: Mapping[str, Any]) -> str:
    if row["stage"] == "before":
        return "before"
    return "after" if row["adapter"] == summary["bias"] else "own"


def _point(panel: Axes, row: Row, kind: str, place: int) -> None:
    _, marker, filled, aside = KINDS[kind]
    colour = style.BIAS_COLOURS[row["bias"]]
    y = row["perplexity"]
    bars = None
    if row["perplexity_low"] is not None and row["perplexity_high"] is not None:
        bars = np.array([[y - row["perplexity_low"]], [row["perplexity_high"] - y]])
    panel.errorbar(
        [place + aside],
        [y],
        bars,
        color=colour,
        marker=marker,
        markerfacecolor=colour if filled else "white",
        capsize=2.5,
        linestyle="",
    )


def _key(rows: Sequence[Row], kinds: Sequence[str]) -> list[Any]:
    handles: list[Any] = [
        Line2D(
            [],
            [],
            color=style.MUTED,
            linestyle="",
            marker=KINDS[kind][1],
            markerfacecolor=style.MUTED if KINDS[kind][2] else "white",
            label=KINDS[kind][0],
        )
        for kind in kinds
    ]
    if any(row["perplexity_low"] is not None for row in rows):
        return [*handles, style.interval_key("95 % CI over held-out text")]
    return [*handles, Line2D([], [], linestyle="", label=missing(rows).partition(":")[0])]


def _broken(name: str) -> str:
    """A bias's name on short lines, for a tick."""
    first, _, rest = name.partition(", ")
    return first.replace(" ", "\n", 1) + (f"\n{rest.replace(', ', chr(10))}" if rest else "")
