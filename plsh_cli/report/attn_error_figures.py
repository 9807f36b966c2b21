"""The figures of `plsh attn-error`, drawn from its run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly, seeds_text

SHOWN_LAYERS = 5
DASHES = {"color": style.INK, "linestyle": (0, (4, 2)), "linewidth": 1.1}


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw output_error (against s, per layer), and head_error (against sigma) where heads differ in sigma."""
    rows = result["rows"]
    layers = evenly(sorted({row["layer"] for row in rows}), SHOWN_LAYERS)
    colours = dict(zip(layers, style.shades(style.BIAS_COLOURS["plsh"], len(layers)), strict=True))
    made: dict[str, Callable[[], Figure]] = {"output_error": partial(_against_draws, rows, colours)}
    if len({row["sigma"] for row in rows if row["head"] is not None} - {None}) > 1:
        made["head_error"] = partial(_against_sigma, rows, colours)
    return made


def _against_draws(rows: Sequence[Row], colours: Mapping[int, Any]) -> Figure:
    """Relative output error against s per layer (mean over heads), beside the law s^-1/2 through the first point."""
    made, (panel,) = style.figure(4.0)
    style.log_x(panel, [row["num_samples"] for row in rows])
    panel.set_yscale("log")
    labels = []
    for index, (layer, colour) in enumerate(colours.items()):
        line = [row for row in rows if row["layer"] == layer and row["head"] is None and row["output_error_relative"]]
        x, y, half = _columns(line, "num_samples")
        if not x.size:
            continue
        panel.plot(x, y, color=colour, marker=style.MARKERS[index], zorder=3)
        panel.fill_between(x, np.maximum(y - half, y / 10), y + half, color=colour, alpha=0.2, linewidth=0)
        labels.append(EndLabel(x[-1], y[-1], f"layer {layer}", colour))
        if len(labels) == 1:
            panel.plot(x, y[0] * (x / x[0]) ** -0.5, **DASHES)
    style.plain_log_y(panel)
    panel.set_xlabel("number of draws s")
    panel.set_ylabel("relative error")
    made.suptitle(f"Attention output, n = {rows[0]['n']:,}, mean over heads, {seeds_text(rows[0])}", fontsize=10.5)
    key = [Line2D([], [], label="∝ 1/√s", **DASHES)]
    if rows[0]["seeds"] > 1:
        key.append(Patch(color=style.MUTED, alpha=0.3, label="95 % CI over seeds"))
    made.legend(handles=key, loc="outside lower center", ncols=2)
    style.label_ends({panel: labels})
    return made


def _against_sigma(rows: Sequence[Row], colours: Mapping[int, Any]) -> Figure:
    """Relative output error of each head against its sigma at the largest s, a line per layer."""
    largest = max(row["num_samples"] for row in rows)
    made, (panel,) = style.figure(3.6)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    labels = []
    for index, (layer, colour) in enumerate(colours.items()):
        line = [
            row for row in rows if row["layer"] == layer and row["head"] is not None and row["num_samples"] == largest
        ]
        line = sorted((row for row in line if row["output_error_relative"]), key=lambda row: row["sigma"])
        x, y, half = _columns(line, "sigma")
        if x.size:
            panel.errorbar(x, y, half, color=colour, marker=style.MARKERS[index], capsize=2)
            labels.append(EndLabel(x[-1], y[-1], f"layer {layer}", colour))
    style.plain_ticks(panel, sorted({row["sigma"] for row in rows if row["head"] is not None}))
    style.plain_log_y(panel)
    panel.set_xlabel("scale σ of the head's bias (tokens)")
    panel.set_ylabel("relative error")
    made.suptitle(f"Per head at s = {largest:,}, n = {rows[0]['n']:,}, {seeds_text(rows[0])}", fontsize=10.5)
    if rows[0]["seeds"] > 1:
        made.legend(handles=[style.interval_key()], loc="outside lower center")
    style.label_ends({panel: labels})
    return made


def _columns(line: Sequence[Row], across: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = (np.array([row[key] for row in line], dtype=float) for key in (across, "output_error_relative"))
    return x, y, np.array([row["output_error_relative_ci95"] or 0.0 for row in line])
