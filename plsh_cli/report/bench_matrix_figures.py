"""The figure of `plsh bench matrix`: its speed ratios as bars beside their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from plsh_cli.report import style
from plsh_cli.report.text import Row


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw ratios, where any was measured."""
    rows = [row for row in result["rows"] if row["unit"] == "times faster" and row["measured"]]
    return {"ratios": partial(_ratios, rows)} if rows else {}


def _ratios(rows: Sequence[Row]) -> Figure:
    """How many times faster, on a logarithmic axis, with a tick where the target is."""
    left = min(1.0, *(row["measured"] / 2 for row in rows))
    right = 20 * max(value for row in rows for value in (row["measured"], row["target"] or 0.0))
    made, (panel,) = style.figure(0.9 + 0.75 * len(rows))
    for place, row in enumerate(rows):
        panel.barh(place, row["measured"], height=0.42, color=style.BIAS_COLOURS["plsh"], left=0)
        panel.text(right, place, f"{row['measured']:,.0f}×", va="center", ha="right", fontweight="bold")
        panel.text(
            left,
            place - 0.31,
            f"{style.plain(str(row['claim']))} (n = {row['n']:,}, s = {row['num_samples']:,})",
            va="bottom",
            fontsize=9.5,
        )
        if row["target"] is not None:
            panel.plot([row["target"]] * 2, [place - 0.28, place + 0.28], color=style.INK, linewidth=1.6)
    panel.set_xscale("log")
    panel.set_xlim(left, right)
    panel.set_ylim(len(rows) - 0.6, -0.75)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.grid(False, axis="y")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.count_text(value)))
    panel.set_xlabel("times faster (line: target)" if any(row["target"] for row in rows) else "times faster")
    return made
