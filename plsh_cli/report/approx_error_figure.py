"""The error figure of `plsh approx`: measured error against s beside the theory's bounds, per norm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from plsh_cli.report import style
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly, kernel_name, seeds_text

SHOWN_LINES = 3
NUMBER = re.compile(r"=(\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?=[,)])")
DASHES = {"linestyle": (0, (4, 2)), "linewidth": 1.1}


@dataclass(frozen=True)
class Panel:
    """One norm: the row's field that is drawn, its bound, and whether both are relative to ||L*||_2."""

    field: str
    bound: str
    title: str
    label: str
    relative: bool

    def limit(self, row: Row) -> float | None:
        """The bound on a row's error in the panel's unit; None where there is none."""
        if not row[self.bound]:
            return None
        return row[self.bound] / row["kernel_norm"] if self.relative else row[self.bound]


@dataclass(frozen=True)
class Line:
    """The rows of one kernel and sampler in ascending s, with a name, a colour, a marker and a factor on x."""

    name: str
    colour: Any
    marker: str
    aside: float
    rows: Sequence[Row]


PANELS = (
    Panel("spectral_error_relative", "bound_expectation", "Spectral norm, relative to L*", "error ÷ ‖L*‖₂", True),
    Panel("max_error", "bound_max", "Max norm", "max |M̃ − L*|", False),
)


def error_figure(rows: Sequence[Row]) -> Figure:
    """Error against s on log-log axes, one panel per norm; a line per kernel, or per sampler at the middle kernel.

    All rows have one n. Every line is moved a little aside in s so that none hides another.
    """
    lines, subject = _lines(rows)
    made, axes = style.figure(6.6, rows=2)
    for axis, panel in zip(axes, PANELS, strict=True):
        _draw_panel(axis, panel, lines)
    axes[-1].set_xlabel("number of draws s")
    made.suptitle(f"‖M̃ − L*‖ at n = {rows[0]['n']:,}, {seeds_text(rows[0])}\n{subject}", fontsize=10.5)
    made.legend(handles=_key(rows), loc="outside lower center", ncols=3, handlelength=2.2)
    style.label_ends({axis: _end_labels(lines, panel) for axis, panel in zip(axes, PANELS, strict=True)})
    return made


def symbol(row: Row) -> str:
    """How a row's kernel is called in a figure: "σ = 16", or its label with short numbers."""
    if row.get("sigma") is not None:
        return f"σ = {kernel_name(row)}"
    short = re.sub(NUMBER, lambda number: f"={float(number[1]):.3g}", str(row["kernel"]))
    return style.plain(short)


def _lines(rows: Sequence[Row]) -> tuple[list[Line], str]:
    """The lines to draw and what the title says about them: which were chosen out of how many."""
    samplers = list(dict.fromkeys(row["sampler"] for row in rows))
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    kind = "scales" if rows[0]["sigma"] is not None else "kernels"
    if len(samplers) > 1:
        kernel = kernels[(len(kernels) - 1) // 2]
        chosen = [(style.SAMPLER_NAMES[name], style.SAMPLER_COLOURS[name], kernel, name) for name in samplers]
        share = f" (1 of {len(kernels)} {kind})" if len(kernels) > 1 else ""
        subject = symbol(next(row for row in rows if row["kernel"] == kernel)) + share
    else:
        shown = evenly(kernels, SHOWN_LINES)
        colours = style.shades(style.SAMPLER_COLOURS[samplers[0]], len(shown))
        chosen = [("", colour, kernel, samplers[0]) for kernel, colour in zip(shown, colours, strict=True)]
        share = f", {len(shown)} of {len(kernels)} {kind}" if len(shown) < len(kernels) else ""
        subject = f"{style.SAMPLER_NAMES[samplers[0]]} draws{share}"
    step = style.aside([row["num_samples"] for row in rows])
    lines = []
    for index, (name, colour, kernel, sampler) in enumerate(chosen):
        line = [row for row in rows if (row["kernel"], row["sampler"]) == (kernel, sampler)]
        aside = step ** (index - (len(chosen) - 1) / 2)
        lines.append(Line(name or symbol(line[0]), colour, style.MARKERS[index], aside, line))
    return lines, subject


def _draw_panel(axis: Axes, panel: Panel, lines: Sequence[Line]) -> None:
    axis.set_yscale("log")
    style.log_x(axis, [row["num_samples"] for line in lines for row in line.rows])
    shown: list[float] = []
    bounded = [line for line in lines if any(panel.limit(row) for row in line.rows)]
    for line in lines:
        points = [row for row in line.rows if row[panel.field]]
        x, y = (np.array([row[key] for row in points], dtype=float) for key in ("num_samples", panel.field))
        half = np.array([row[f"{panel.field}_ci95"] or 0.0 for row in points])
        # On a logarithmic axis an interval that reaches 0 has no lower end: it stops at a tenth of the mean.
        ends = [y - np.maximum(y - half, y / 10), half] if half.any() else None
        axis.errorbar(
            x * line.aside, y, ends, color=line.colour, marker=line.marker, capsize=2.5, elinewidth=1.0, zorder=3
        )
        limits = [(row["num_samples"], panel.limit(row)) for row in line.rows if panel.limit(row)]
        if limits and (panel.relative or line is bounded[0]):
            # A line through one point would not be seen: it is drawn as a dash.
            dash = {"marker": "_", "markersize": 16.0} if len(limits) == 1 else {}
            axis.plot(*zip(*limits, strict=True), color=line.colour if panel.relative else style.INK, **DASHES, **dash)
            shown += [limit for _, limit in limits]
        shown += [*y]
    _finish(axis, panel, lines, shown)


def _finish(axis: Axes, panel: Panel, lines: Sequence[Line], shown: Sequence[float]) -> None:
    """Titles, ticks, and a note on what a logarithmic axis cannot show."""
    axis.set_title(panel.title)
    axis.set_ylabel(panel.label)
    if shown and min(shown) == max(shown):
        axis.set_ylim(min(shown) / 2, max(shown) * 2)
    if shown:
        style.plain_log_y(axis)
    else:
        axis.set_yticks([])
        axis.minorticks_off()
    zeros = [line.name for line in lines if any(row[panel.field] == 0 for row in line.rows)]
    if zeros:
        note = "error 0, not shown" if len(zeros) == len(lines) else f"{', '.join(zeros)}: error 0, not shown"
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 2.0}
        # Bounds fall from left to right: below their left end is room.
        axis.text(0.03, 0.3, note, transform=axis.transAxes, color=style.MUTED, bbox=behind, zorder=5)


def _end_labels(lines: Sequence[Line], panel: Panel) -> list[EndLabel]:
    last = [(line, line.rows[-1]) for line in lines]
    labels = [
        EndLabel(row["num_samples"] * line.aside, row[panel.field], line.name, line.colour)
        for line, row in last
        if row[panel.field]
    ]
    limits = [(line, row, panel.limit(row)) for line, row in last if panel.limit(row)]
    if not panel.relative:
        return labels + [EndLabel(row["num_samples"], limit, "bound", style.INK) for _, row, limit in limits[:1]]
    same_kernel = len({row["kernel"] for _, row in last}) == 1
    return labels + [
        EndLabel(row["num_samples"], limit, "bound" if same_kernel else f"bound, {symbol(row)}", line.colour)
        for line, row, limit in limits
    ]


def _key(rows: Sequence[Row]) -> list[Any]:
    key: list[Any] = [Line2D([], [], color=style.MUTED, marker="o", label="mean error")]
    if rows[0]["seeds"] > 1:
        key.append(style.interval_key())
    if any(panel.limit(row) for panel in PANELS for row in rows):
        key.append(Line2D([], [], label="theory's bound", color=style.MUTED, **DASHES))
    return key
