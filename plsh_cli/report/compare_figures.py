"""The Pareto figures of `plsh compare`: error against cost, with the frontier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from plsh_cli.report import style
from plsh_cli.report.compare_tables import BIAS_NAMES
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row

MARKERS = dict(zip(("plsh", "window", "fixed_blocks", "alibi", "none", "original"), (*style.MARKERS, "P"), strict=True))
_FRONTIER = {"color": style.MUTED, "linewidth": 5.0, "alpha": 0.3, "solid_capstyle": "round"}
_AXIS = {
    "output_error_relative": "relative error of outputs",
    "row_error_median": "median error of a row",
    "spectral_error_relative": "spectral error / ‖L*‖",
    "max_error": "largest error of M~",
    "bits_per_byte": "bits per byte",
    "perplexity": "perplexity",
}


@dataclass(frozen=True)
class Point:
    """One setting: its cost, error with the half-width of its interval, and s (null: a baseline, or no knob).

    own: the baseline at its own setting, whatever the methods cost.
    """

    bias: str
    cost: float
    error: float
    half: float | None
    num_samples: int | None
    own: bool = False


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw pareto (the first measure and length) and pareto_<measure>_<n> for the others."""
    rows, made = result["rows"], {}
    for measure, n in dict.fromkeys((row["measure"], row["n"]) for row in rows):
        name = f"pareto_{measure}_{n}" if made else "pareto"
        chosen = [row for row in rows if (row["measure"], row["n"]) == (measure, n)]
        made[name] = partial(pareto, chosen, result["summary"])
    return made


def points_of(rows: Sequence[Row]) -> list[Point]:
    """Every method and baseline once, in the rows' order, methods first."""
    found: dict[tuple[object, ...], Point] = {}
    for side, samples in (("method", "num_samples"), ("baseline", "baseline_samples")):
        for row in rows:
            if row[f"{side}_error"] is None:
                continue  # not finite
            knob = row["knob"] if side == "method" else row["baseline_knob"]
            made = Point(row[side], row[f"{side}_cost"], row[f"{side}_error"], row[f"{side}_error_ci95"], row[samples])
            found.setdefault((row[side], knob, round(made.cost, 9), round(made.error, 12)), made)
    return list(found.values())


def _own_point(rows: Sequence[Row], summary: Mapping[str, Any]) -> list[Point]:
    own = summary.get("reference")
    if not own:
        return []
    found = own["errors"][rows[0]["measure"]]
    if found["error"] is None:
        return []
    return [Point(own["bias"], own["cost"], found["error"], found["ci95"], None, own=True)]


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both cost and error, by cost."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda one: (one.cost, one.error)):
        if not kept or point.error < kept[-1].error:
            kept.append(point)
    return kept


def pareto(rows: Sequence[Row], summary: Mapping[str, Any]) -> Figure:
    """Error against cost, both logarithmic, a line per bias with s at its points; down left is better."""
    every = [*points_of(rows), *_own_point(rows, summary)]
    shown = [point for point in every if point.error > 0.0]
    made, (panel,) = style.figure(4.2)
    style.log_x(panel, [point.cost for point in shown or every])
    _round_ticks(panel)
    panel.set_yscale("log")
    _draw_frontier(panel, frontier(shown))
    labels = []
    for bias in dict.fromkeys(point.bias for point in shown):
        line = sorted((point for point in shown if point.bias == bias), key=lambda one: one.cost)
        _draw_line(panel, line)
        labels.append(EndLabel(line[-1].cost, line[-1].error, _name(bias, rows[0]), style.BIAS_COLOURS[bias]))
    panel.margins(y=0.12)
    style.plain_log_y(panel)
    panel.set_xlabel(summary["cost_name"])
    panel.set_ylabel(_AXIS[rows[0]["measure"]])
    made.suptitle(_title(rows, summary, len(shown) < len(every)), fontsize=10.5)
    handles = [Line2D([], [], label="frontier: none has less of both", **_FRONTIER)]
    if any(point.half for point in shown):
        handles.append(style.interval_key(_interval(rows)))
    made.legend(handles=handles, loc="outside lower center", ncols=1)
    style.label_ends({panel: labels})
    return made


def _round_ticks(panel: Axes) -> None:
    """Label the cost axis at round numbers where there are two or more; costs themselves lie close together."""
    low, high = panel.get_xlim()
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
    steps = (1.0, 2.0, 5.0) if high > 20.0 * low else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    ticks = [float(f"{decade * step:.3g}") for decade in decades for step in steps]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) > 1:
        style.plain_ticks(panel, inside)


def _draw_frontier(panel: Axes, points: Sequence[Point]) -> None:
    """A staircase: to the right of a point nothing is better until the next one."""
    if points:
        right = panel.get_xlim()[1]
        panel.step([*(one.cost for one in points), right], [*(one.error for one in points), points[-1].error],
                   where="post", zorder=1.5, **_FRONTIER)  # fmt: skip


def _draw_line(panel: Axes, line: Sequence[Point]) -> None:
    colour, bias = style.BIAS_COLOURS[line[0].bias], line[0].bias
    x, y = [one.cost for one in line], [one.error for one in line]
    panel.plot(x, y, color=colour, marker=MARKERS[bias], markersize=5.5, zorder=3)
    low = [min(one.half or 0.0, 0.9 * one.error) for one in line]
    panel.errorbar(x, y, [low, [one.half or 0.0 for one in line]], color=colour, linestyle="", capsize=2.5, zorder=3)
    for one in line:
        if one.own:
            panel.plot([one.cost], [one.error], color="white", markeredgecolor=colour, marker=MARKERS[bias], zorder=4)
            panel.annotate("own", (one.cost, one.error), xytext=(0, 7), textcoords="offset points", ha="center",
                           color=colour, fontsize=9.0)  # fmt: skip
        elif one.num_samples is not None:
            # Of draws above their points, of the others below: theirs often are the lower line.
            above = bias == "plsh"
            panel.annotate(
                f"s={one.num_samples}" if above else str(one.num_samples),
                (one.cost, one.error),
                xytext=(0, 7) if above else (-5, -3),
                textcoords="offset points",
                ha="center" if above else "right",
                va="bottom" if above else "top",
                color=colour,
                fontsize=9.0,
            )


def _name(bias: str, row: Row) -> str:
    return BIAS_NAMES[bias].replace("positional ", "positional\n") + (" (base)" if bias == row["baseline"] else "")


def _title(rows: Sequence[Row], summary: Mapping[str, Any], hidden: bool) -> str:
    what = {"matrix": "Bias matrices", "attention": "Attention outputs", "training": "Trained from scratch"}
    title = f"{what[summary['level']]}, n = {rows[0]['n']:,}; down left is better"
    return title + ("; error 0 is not shown" if hidden else "")


def _interval(rows: Sequence[Row]) -> str:
    over = {"matrix": "seeds", "attention": "texts and seeds", "training": "seeds"}[rows[0]["level"]]
    return f"95 % CI over {over}"
