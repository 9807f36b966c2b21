"""The theorem's bound on a row's error against the error itself, from the rows that a run of attn-error kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import evenly

SHOWN_SIZES = 4
_BINS = 12
_LARGEST = 100.0  # bounds beyond it say nothing and are left out
_TRIVIAL = 2.0  # the difference of any two outputs, over the largest value
_FEWEST = 5  # rows of a bin


def row_bound(run_path: Path) -> Figure:
    """Errors of rows against their bounds: per s the median in bins of the bound, and the band up to the largest."""
    with np.load(run_path / "values.npz") as arrays:
        sizes = [
            (place, int(size))
            for place, (bias, size) in enumerate(zip(arrays["biases"], arrays["num_samples"], strict=True))
            if bias == "plsh"
        ]
        found = {size: (arrays["picked_bound"][place], arrays["picked_error"][place]) for place, size in sizes}
    shown = evenly(sorted(found), SHOWN_SIZES)
    made, (panel,) = style.figure(4.2)
    panel.set_xscale("log")
    panel.set_yscale("log")
    labels, limits = [], []
    for index, (size, colour) in enumerate(
        zip(shown, style.shades(style.BIAS_COLOURS["plsh"], len(shown)), strict=True)
    ):
        x, median, largest, tenth = binned(*found[size])
        if not x.size:
            continue
        panel.plot(x, median, color=colour, marker=style.MARKERS[index])
        panel.fill_between(x, tenth, largest, color=colour, alpha=0.2, linewidth=0)
        labels.append(EndLabel(x[-1], median[-1], f"s = {style.count_text(size)}", colour))
        limits += [x[0], x[-1]]
    bound = {"color": style.INK, "linestyle": (0, (4, 2)), "linewidth": 1.1}
    if limits:
        panel.plot([min(limits), max(limits)], [min(limits), max(limits)], **bound)
        panel.axvline(_TRIVIAL, color=style.MUTED, linestyle=":", linewidth=1.1)
    panel.set_xlabel("the theorem's bound on a row's error, over max ‖v‖")
    panel.set_ylabel("error of the row, over max ‖v‖")
    made.suptitle("Rows of the attention output, all layers and heads", fontsize=10.5)
    band = Patch(color=style.MUTED, alpha=0.3, label="10 % point to largest")
    trivial = Line2D([], [], label="true of any output", color=style.MUTED, linestyle=":", linewidth=1.1)
    handles = [Line2D([], [], label="the bound", **bound), band, trivial]
    made.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, columnspacing=1.0)
    style.label_ends({panel: labels})
    return made


def binned(bound: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """In bins of equal width of ln bound: its geometric middle, and the median, largest and 10 % point of the errors.

    Rows without an error or with a bound beyond _LARGEST, and bins with very few rows are left out.
    """
    kept = (bound <= _LARGEST) & (error > 0.0) & (bound > 0.0)
    bound, error = bound[kept], error[kept]
    if not bound.size:
        return (np.zeros(0),) * 4
    edges = np.geomspace(bound.min(), bound.max() * (1 + 1e-9), _BINS + 1)
    of = np.clip(np.digitize(bound, edges) - 1, 0, _BINS - 1)
    bins = [place for place in range(_BINS) if (of == place).sum() >= min(_FEWEST, bound.size)]
    middles = np.array([np.exp(np.log(bound[of == place]).mean()) for place in bins])
    return (
        middles,
        np.array([np.median(error[of == place]) for place in bins]),
        np.array([error[of == place].max() for place in bins]),
        np.array([np.quantile(error[of == place], 0.1) for place in bins]),
    )
