"""The gain figure of `plsh approx`: i.i.d. error over each sampler's error at equal s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plsh_cli.report import style
from plsh_cli.report.approx_error_figure import symbol
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row


def gain_figure(gains: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Figure:
    """i.i.d. error over each sampler's error against s at the middle kernel, with bootstrap intervals, per norm."""
    kernels = list(dict.fromkeys(gain["kernel"] for gain in gains))
    kernel = kernels[(len(kernels) - 1) // 2]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for gain in gains:
        if gain["kernel"] == kernel:
            lines.setdefault(gain["sampler"], []).append(gain)
    made, axes = style.figure(5.6, rows=2)
    for panel, norm in zip(axes, ("spectral", "max"), strict=True):
        style.log_x(panel, [gain["num_samples"] for gain in gains])
        panel.axhline(1.0, color=style.INK, linewidth=1.0)
        for place, (sampler, line) in enumerate(lines.items()):
            _gain_line(
                panel,
                [gain for gain in line if gain[f"gain_{norm}"]],
                norm,
                style.SAMPLER_COLOURS[sampler],
                1.02**place,
            )
        panel.set_title(f"{norm.capitalize()} norm")
        panel.set_ylabel("i.i.d. error ÷\nsampler's error")
        panel.set_ylim(bottom=0)
    axes[-1].set_xlabel("number of draws s")
    name = symbol(next(row for row in rows if row["kernel"] == kernel))
    made.suptitle(
        f"Gain at equal s, n = {gains[0]['n']:,}, {name}, {gains[0]['seeds']} seeds, bootstrap 95 % CI", fontsize=10.5
    )
    style.label_ends(
        {panel: _gain_labels(panel, lines, norm) for panel, norm in zip(axes, ("spectral", "max"), strict=True)}
    )
    return made


def _gain_labels(panel: Axes, lines: Mapping[str, Sequence[Mapping[str, Any]]], norm: str) -> list[EndLabel]:
    ends = [
        EndLabel(
            line[-1]["num_samples"],
            line[-1][f"gain_{norm}"],
            style.SAMPLER_NAMES[sampler],
            style.SAMPLER_COLOURS[sampler],
        )
        for sampler, line in lines.items()
        if line[-1][f"gain_{norm}"]
    ]
    return [*ends, EndLabel(panel.get_xlim()[1], 1.0, style.SAMPLER_NAMES["iid"], style.INK)]


def _gain_line(panel: Axes, line: Sequence[Mapping[str, Any]], norm: str, colour: str, aside: float) -> None:
    """One sampler's line with its intervals, moved a little aside so that intervals at the same s stay apart."""
    x = [gain["num_samples"] * aside for gain in line]
    y = np.array([gain[f"gain_{norm}"] for gain in line])
    low, high = (
        np.array([gain[f"gain_{norm}_{end}"] or gain[f"gain_{norm}"] for gain in line]) for end in ("low", "high")
    )
    # A bootstrap interval can miss the value by rounding.
    panel.errorbar(x, y, [np.maximum(y - low, 0.0), np.maximum(high - y, 0.0)], color=colour, marker="o", capsize=3)
