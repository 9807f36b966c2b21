"""The figures of `plsh attn-error`, drawn from its run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.attn_error_bound_figure import row_bound
from plsh_cli.report.attn_error_tables import BIAS_NAMES, drawn_row, seeds_interval, texts_interval
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly

SHOWN_SIZES = 5
TEXTS = {"elinewidth": 6.0, "alpha": 0.35, "linestyle": ""}  # bars over texts: wide and pale
LAW = {"color": style.INK, "linestyle": (0, (4, 2)), "linewidth": 1.1}


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw output_error (against s, by group of layers), layer_head (heat map) and row_bound.

    Also head_error (against sigma) where heads differ in sigma, and baselines where there are some.
    """
    rows = result["rows"]
    made: dict[str, Callable[[], Figure]] = {
        "output_error": partial(_against_draws, rows),
        "layer_head": partial(_heat_map, rows),
        "row_bound": partial(row_bound, run_path),
    }
    if len({row["sigma"] for row in _heads(rows)} - {None}) > 1:
        made["head_error"] = partial(_against_sigma, rows)
    if any(row["bias"] != "plsh" and row["num_samples"] for row in rows):
        made["baselines"] = partial(_baselines, rows)
    return made


def _heads(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["head"] is not None and row["bias"] == "plsh"]


def _against_draws(rows: Sequence[Row]) -> Figure:
    """Relative output error against s by group of layers (mean over heads), beside s^-1/2 through the first point."""
    drawn = [row for row in rows if row["group"] and row["bias"] == "plsh"]
    names = list(dict.fromkeys(row["group"] for row in drawn))
    thirds = [name for name in names if name != "all"] or names
    made, (panel,) = style.figure(4.0)
    style.log_x(panel, [row["num_samples"] for row in drawn])
    panel.set_yscale("log")
    labels, start = [], []
    for index, (name, colour) in enumerate(
        zip(thirds, style.shades(style.BIAS_COLOURS["plsh"], len(thirds)), strict=True)
    ):
        line = [row for row in drawn if row["group"] == name and row["output_error_relative"]]
        x, y, half, texts = _columns(line)
        if not x.size:
            continue
        start.append((x[0], y[0]))
        panel.plot(x, y, color=colour, marker=style.MARKERS[index], zorder=3)
        panel.fill_between(x, np.maximum(y - half, y / 10), y + half, color=colour, alpha=0.2, linewidth=0)
        _texts_bars(panel, x, y, texts, colour)
        labels.append(EndLabel(x[-1], y[-1], f"{name} layers", colour))
    if start:
        x = np.array(sorted({row["num_samples"] for row in drawn}), dtype=float)
        panel.plot(x, start[0][1] * (x / start[0][0]) ** -0.5, **LAW)
    style.plain_log_y(panel)
    panel.set_xlabel("number of draws s")
    panel.set_ylabel("relative error")
    made.suptitle(f"Attention output, n = {drawn[0]['n']:,}, mean over heads", fontsize=10.5)
    band = [Patch(color=style.MUTED, alpha=0.3, label=seeds_interval(drawn[0]))] if seeds_interval(drawn[0]) else []
    _key(made, drawn[0], [Line2D([], [], label="∝ 1/√s", **LAW), *band])
    style.label_ends({panel: labels})
    return made


def _against_sigma(rows: Sequence[Row]) -> Figure:
    """Relative output error of each head (mean over layers) against its sigma, a line per s."""
    drawn = _heads(rows)
    sizes = evenly(sorted({row["num_samples"] for row in drawn}), SHOWN_SIZES)
    made, (panel,) = style.figure(3.8)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    labels = []
    for index, (size, colour) in enumerate(
        zip(sizes, style.shades(style.BIAS_COLOURS["plsh"], len(sizes)), strict=True)
    ):
        of_size = [row for row in drawn if row["num_samples"] == size and row["output_error_relative"]]
        sigmas = sorted({row["sigma"] for row in of_size})
        found = [[row["output_error_relative"] for row in of_size if row["sigma"] == sigma] for sigma in sigmas]
        if not sigmas:
            continue
        middle = [float(np.mean(one)) for one in found]
        panel.plot(sigmas, middle, color=colour, marker=style.MARKERS[index])
        panel.fill_between(
            sigmas, [min(one) for one in found], [max(one) for one in found], color=colour, alpha=0.15, lw=0
        )
        labels.append(EndLabel(sigmas[-1], middle[-1], f"s = {style.count_text(size)}", colour))
    style.plain_ticks(panel, sorted({row["sigma"] for row in drawn}))
    style.plain_log_y(panel)
    panel.set_xlabel("scale σ of the head's bias (tokens)")
    panel.set_ylabel("relative error")
    made.suptitle(f"Per head, n = {drawn[0]['n']:,}, mean over layers", fontsize=10.5)
    key = Patch(color=style.MUTED, alpha=0.3, label="smallest to largest of the layers")
    made.legend(handles=[key], loc="outside lower center")
    style.label_ends({panel: labels})
    return made


def _heat_map(rows: Sequence[Row]) -> Figure:
    """Relative output error of every layer and head, at the s in the middle."""
    drawn = _heads(rows)
    sizes = sorted({row["num_samples"] for row in drawn})
    size = sizes[len(sizes) // 2]
    layers, heads = (sorted({row[key] for row in drawn}) for key in ("layer", "head"))
    grid = np.full((len(layers), len(heads)), np.nan)
    for row in drawn:
        if row["num_samples"] == size and row["output_error_relative"] is not None:
            grid[layers.index(row["layer"]), heads.index(row["head"])] = row["output_error_relative"]
    made, (panel,) = style.figure(min(6.0, 2.4 + 0.1 * len(layers)))
    panel.grid(False)
    image = panel.imshow(grid, cmap="viridis", aspect="auto", interpolation="nearest", vmin=0.0)
    panel.set_xticks(evenly(range(len(heads)), 9), [str(heads[place]) for place in evenly(range(len(heads)), 9)])
    panel.set_yticks(evenly(range(len(layers)), 7), [str(layers[place]) for place in evenly(range(len(layers)), 7)])
    panel.set_xlabel("query head")
    panel.set_ylabel("layer")
    made.colorbar(image, ax=panel, label="relative error")
    made.suptitle(f"Attention output at s = {style.count_text(size)}, n = {drawn[0]['n']:,}", fontsize=10.5)
    return made


def _baselines(rows: Sequence[Row]) -> Figure:
    """Relative output error of every bias against the pairs that it scores per token, at the cost of the same s."""
    whole = [row for row in rows if row["group"] == "all"]
    made, (panel,) = style.figure(4.0)
    style.log_x(panel, [row["num_samples"] for row in whole if row["num_samples"]])
    panel.set_yscale("log")
    labels = []
    for index, bias in enumerate(dict.fromkeys(row["bias"] for row in whole)):
        line = [row for row in whole if row["bias"] == bias and row["num_samples"] and row["output_error_relative"]]
        x, y, half, texts = _columns(line)
        if not x.size:
            continue
        colour = style.BIAS_COLOURS[bias]
        ends = _ends(y, half) if half.any() else None
        panel.errorbar(x, y, ends, color=colour, marker=style.MARKERS[index], capsize=2.5)
        _texts_bars(panel, x, y, texts, colour)
        labels.append(EndLabel(x[-1], y[-1], BIAS_NAMES[bias], colour))
    style.plain_log_y(panel)
    panel.set_xlabel("number of draws s, whose pairs all methods have")
    panel.set_ylabel("relative error")
    made.suptitle(f"Attention output at equal pairs, n = {whole[0]['n']:,}", fontsize=10.5)
    drawn = drawn_row(whole)
    _key(made, drawn, [style.interval_key(seeds_interval(drawn))] if seeds_interval(drawn) else [])
    style.label_ends({panel: labels})
    return made


def _key(made: Figure, drawn: Row, handles: list[Any]) -> None:
    """A legend below, with the bars over texts if there are some."""
    if texts_interval(drawn):
        handles.append(style.interval_key(texts_interval(drawn), **TEXTS))
    if handles:
        made.legend(handles=handles, loc="outside lower center", ncols=2)


def _texts_bars(panel: Axes, x: np.ndarray, y: np.ndarray, half: np.ndarray, colour: Any) -> None:
    """The intervals over texts, behind the lines."""
    if half.any():
        panel.errorbar(x, y, _ends(y, half), color=colour, zorder=2, **TEXTS)


def _ends(y: np.ndarray, half: np.ndarray) -> np.ndarray:
    """How far bars reach down and up: on a logarithmic axis at most to a tenth of the mean."""
    return np.stack([y - np.maximum(y - half, y / 10), half])


def _columns(line: Sequence[Row]) -> tuple[np.ndarray, ...]:
    """Draws s, relative errors, and the half-widths of their intervals over seeds and over texts, 0 for none."""
    field = "output_error_relative"
    x, y = (np.array([row[key] for row in line], dtype=float) for key in ("num_samples", field))
    halves = (np.array([row.get(f"{field}{end}") or 0.0 for row in line]) for end in ("_ci95", "_ci95_inputs"))
    return x, y, *halves
