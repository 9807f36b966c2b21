"""The one look of all figures: readable at 400 px, colour-blind safe, the same colour for the same thing everywhere.

Colours are Okabe and Ito's palette. Figures are Figure objects without pyplot, so nothing global changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

INK, MUTED, GRID = "#222222", "#6b6b6b", "#dddddd"
BIAS_COLOURS = {
    "plsh": "#0072B2",
    "alibi": "#000000",
    "window": "#E69F00",
    "fixed_blocks": "#CC79A7",
    "none": MUTED,
    "original": "#D55E00",
}
#: Of draws of positional LSH: none is the colour of another bias.
SAMPLER_COLOURS = {"iid": BIAS_COLOURS["plsh"], "stratified": "#56B4E9", "importance": "#009E73"}
SAMPLER_NAMES = {"iid": "i.i.d.", "stratified": "stratified", "importance": "importance"}
MARKERS = ("o", "s", "^", "D", "v")

WIDTH = 5.0  # inches: text of 10 points is 11 px high where the figure is shown 400 px wide
PNG_DPI = 200
LONGEST_NAME = 48  # characters of a name from data

_RC = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 6.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "svg.hashsalt": "plsh",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
}


@contextmanager
def look() -> Iterator[None]:
    """Within the body, matplotlib draws in this style."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_RC, "backend": "agg"}):
        yield


def figure(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of the common width and this height in inches, with its axes row by row."""
    made = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False)
    return made, list(axes.ravel())


def save(made: Figure, folder: Path, name: str) -> list[Path]:
    """Write <name>.png and <name>.svg into `folder`, whole; the SVG is the same to the byte for the same content."""
    folder.mkdir(parents=True, exist_ok=True)
    made.get_layout_engine().execute(made)
    made.set_layout_engine("none")  # once is enough for both files
    written = []
    for ending, options in (("png", {"dpi": PNG_DPI}), ("svg", {"metadata": {"Date": None}})):
        partial, target = folder / f".{name}.{ending}", folder / f"{name}.{ending}"
        try:
            made.savefig(partial, format=ending, **options)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        written.append(target)
    return written


def plain(text: str) -> str:
    """A text from data for a figure: on one line, not too long, its dollars no mathematics."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    line = line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"
    return line.replace("$", r"\$")


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """`count` shades of one colour from light to dark, for an ordered family of lines."""
    base = np.array(to_rgb(colour))
    if count == 1:
        return [tuple(base.tolist())]
    steps = np.linspace(-0.5, 0.5, count)
    return [tuple((base + (1 - base) * -step if step < 0 else base * (1 - step)).tolist()) for step in steps]


@dataclass(frozen=True)
class EndLabel:
    """A text for the right end of a line, at the data point (x, y)."""

    x: float
    y: float
    text: str
    colour: object


def label_ends(labels: Mapping[Axes, Sequence[EndLabel]]) -> None:
    """Write labels right of each axes at their lines' ends, moved apart where they would overlap.

    Call it once per figure, when limits and scales are final.
    """
    for figure in {axes.get_figure() for axes in labels}:
        figure.get_layout_engine().execute(figure)
    for axes, ends in labels.items():
        _label_ends(axes, sorted(ends, key=lambda label: label.y))


def _label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    size = matplotlib.rcParams["legend.fontsize"]
    to_axes = axes.transData + axes.transAxes.inverted()
    # A label of something far outside the axes would take all room: it stays at their edge.
    points = [tuple(np.clip(np.nan_to_num(to_axes.transform((label.x, label.y))), 0.0, 1.0)) for label in labels]
    gap = 1.15 * size / 72 * axes.get_figure().dpi / axes.get_window_extent().height
    for label, point, height in zip(labels, points, spread([point[1] for point in points], gap), strict=True):
        arrow = {
            "arrowstyle": "-",
            "color": label.colour,
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 2,
            "relpos": (0.0, 0.5),
        }
        axes.annotate(
            label.text,
            xy=point,
            xycoords="axes fraction",
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            ha="left",
            color=label.colour,
            fontsize=size,
            arrowprops=arrow,
            annotation_clip=False,
        )


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Ascending positions moved as little as possible (least squares) so that neighbours are at least `gap` apart."""
    # With the required gaps subtracted, this is isotonic regression: pool neighbours that are out of order.
    pools: list[list[float]] = []
    for index, position in enumerate(positions):
        pools.append([position - index * gap, 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value, weight = pools.pop()
            before, size = pools.pop()
            pools.append([(before * size + value * weight) / (size + weight), size + weight])
    flat = [value for value, size in pools for _ in range(int(size))]
    return [value + index * gap for index, value in enumerate(flat)]


def log_x(axes: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic over these values, with room at both ends (also for a single value), and label them.

    Call it before drawing: data of a single x have no limits of their own.
    """
    low, high = min(values), max(values)
    room = 1.5 if low == high else max(1.15, (high / low) ** 0.05)
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    plain_ticks(axes, sorted(set(values)))


def plain_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Label a logarithmic x axis at these values, without those whose labels would nearly touch (round ones stay)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(apart(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))


def apart(values: Sequence[float]) -> list[float]:
    """The ascending values whose labels have room beside each other along a logarithmic axis that just spans them.

    The largest comes first, then powers of ten, other integers and the rest, each from the smallest on.
    """
    span = np.log(max(values) / min(values)) or 1.0
    kept: list[float] = []
    for value in sorted(set(values), key=lambda value: (value != max(values), *_roundness(value), value)):
        if all(abs(np.log(value / other)) / span >= _label_room(value, other) for other in kept):
            kept.append(value)
    return sorted(kept)


def _roundness(value: float) -> tuple[bool, bool]:
    return np.log10(value) % 1 != 0, value != round(value)


def _label_room(first: float, second: float) -> float:
    """The share of an axis that two neighbouring labels and the space between them take from middle to middle."""
    characters = [len(count_text(value).translate(str.maketrans("", "", "${}^"))) for value in (first, second)]
    return 0.024 * (sum(characters) / 2 + 1.2)


def interval_key(label: str = "95 % CI over seeds", **bars: Any) -> ErrorbarContainer:
    """The legend entry of the bars that show an interval; `bars` are how they look, where not the usual way."""
    look_of = {"linestyle": "", "capsize": 0.0 if bars else 2.5} | bars
    return Axes(Figure(), (0, 0, 1, 1)).errorbar([0], [0], [1], color=MUTED, label=label, **look_of)


def aside(values: Sequence[float]) -> float:
    """The factor in x between neighbouring lines whose bars stand side by side at the same values of x.

    A seventh of the smallest step on a logarithmic axis, at most 8 %.
    """
    ordered = sorted(set(values))
    steps = [high / low for low, high in pairwise(ordered)]
    return min(1.08, min(steps, default=2.0) ** (1 / 7))


def plain_log_y(axes: Axes) -> None:
    """Label a logarithmic y axis in plain numbers: decades, or steps between them where it spans few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    if high < 1.5 * low:  # values that differ by rounding only
        low, high = low / 2, high * 2
        axes.set_ylim(low, high)
    steps = {5.0: (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0), 10.0: (1.0, 2.0, 3.0, 5.0), 100.0: (1.0, 2.0, 5.0)}
    axes.yaxis.set_major_locator(
        LogLocator(subs=next((subs for span, subs in steps.items() if high < span * low), (1.0,)))
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _log_text(value, axes.get_ylim()[1])))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _log_text(value: float, highest: float) -> str:
    """A value of a logarithmic axis: plain from 0.001 on, but in powers of ten below and beyond 100,000."""
    if value >= 1e-3 and highest < 1e5:
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    exponent = int(np.floor(np.log10(value) + 1e-9))
    front = value / 10.0**exponent
    return f"$10^{{{exponent}}}$" if round(front, 3) == 1 else f"${front:g}{{\\cdot}}10^{{{exponent}}}$"


def count_text(value: float) -> str:
    """A count or length as axis text: 1.41, 10, 1,000, and powers of ten from 10,000 on."""
    exponent = round(np.log10(value)) if value > 0 else 0
    if exponent >= 4 and value == 10**exponent:
        return f"$10^{exponent}$"
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"
