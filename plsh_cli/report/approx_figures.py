"""The figures of `plsh approx`, drawn from its run folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.approx_error_figure import error_figure
from plsh_cli.report.approx_gain_figure import gain_figure
from plsh_cli.report.text import Row, seeds_text

ROUNDING = 1e-12  # differences of matrix entries up to here are rounding


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw error (one per n), picture, block_sizes, and gain where several samplers were compared, by name."""
    rows = result["rows"]
    sizes = list(dict.fromkeys(row["n"] for row in rows))
    made: dict[str, Callable[[], Figure]] = {}
    for n in sizes:
        name = "error" if len(sizes) == 1 else f"error_n{n}"
        made[name] = partial(error_figure, [row for row in rows if row["n"] == n])
    # Both are of the first sampler: the picture of the first seed, the block sizes of all seeds.
    made["picture"] = partial(
        _from_arrays, _picture, run_path / "picture.npz", f"seed {rows[0]['seed_first']}{_sampler(rows)}"
    )
    made["block_sizes"] = partial(
        _from_arrays, _block_sizes, run_path / "block_sizes.npz", f"{seeds_text(rows[0])}{_sampler(rows)}"
    )
    gains = [gain for gain in result["summary"]["gains"] if gain["n"] == sizes[0] and gain["gain_spectral"] is not None]
    if gains:
        made["gain"] = partial(gain_figure, gains, rows)
    return made


def _from_arrays(make: Callable[[Mapping[str, np.ndarray], str], Figure], file: Path, draws: str) -> Figure:
    with np.load(file) as arrays:
        return make(arrays, draws)


def _sampler(rows: Sequence[Row]) -> str:
    """The first sampler, to be appended to a title, where several ran."""
    several = len({row["sampler"] for row in rows}) > 1
    return f", {style.SAMPLER_NAMES[rows[0]['sampler']]} draws" if several else ""


def _picture(arrays: Mapping[str, np.ndarray], draws: str) -> Figure:
    """L*, M~ and their difference over the first tokens, as images; `draws` says which draws they are."""
    exact, approximate, difference = (arrays[name] for name in ("l_star", "m_tilde", "difference"))
    reach = float(np.abs(difference).max())
    identical = reach <= ROUNDING
    reach = 1.0 if identical else reach
    blank = ListedColormap(["#f7f7f7"])
    made, axes = style.figure(2.9, columns=3)
    shared = {"cmap": "cividis", "vmin": 0.0, "vmax": 1.0}
    panels = (
        ("L*", exact, shared),
        ("M̃", approximate, shared),
        ("M̃ − L*", difference, {"cmap": blank if identical else "RdBu_r", "vmin": -reach, "vmax": reach}),
    )
    images = []
    for panel, (title, values, options) in zip(axes, panels, strict=True):
        images.append(panel.imshow(values, interpolation="none", **options))
        panel.set_title(title, loc="center")
        panel.grid(False)
        ends = sorted({0, values.shape[0] - 1})
        panel.set_xticks(ends)
        for label, side in zip(panel.get_xticklabels(), ("left", "right"), strict=False):
            label.set_horizontalalignment(side)
        panel.set_yticks(ends if panel is axes[0] else [])
        panel.tick_params(length=2)
    axes[0].set_ylabel("token i", labelpad=-14 if exact.shape[0] > 1 else 4)
    axes[1].set_xlabel("token j")
    bars = [
        made.colorbar(images[0], ax=axes[:2], orientation="horizontal", shrink=0.6, aspect=30, pad=0.02),
        made.colorbar(images[2], ax=axes[2], orientation="horizontal", shrink=0.8, aspect=15, pad=0.02),
    ]
    if identical:
        bars[1].set_ticks([0.0], labels=["identical"])
    else:
        bars[1].set_ticks([-reach, 0.0, reach], labels=[f"−{reach:.2g}", "0", f"{reach:.2g}"])
    for bar in bars:
        bar.outline.set_visible(False)
    shown = f"tokens 0 to {exact.shape[0] - 1} of {int(arrays['n']):,}"
    title = f"{_pretty(str(arrays['label']))}, s = {int(arrays['num_samples']):,}, {draws}\n{shown}"
    made.suptitle(title, fontsize=10.5)
    return made


def _block_sizes(arrays: Mapping[str, np.ndarray], draws: str) -> Figure:
    """The size of a random token's block: drawn, its exact law at this n, and the Gamma density of the widths."""
    labels, n = [str(label) for label in arrays["labels"]], int(arrays["n"])
    made, axes = style.figure(1.6 + 1.6 * len(labels), rows=len(labels))
    visible: set[str] = set()
    for position, (panel, label) in enumerate(zip(axes, labels, strict=True)):
        visible |= _block_panel(
            panel,
            {name: arrays[f"{name}_{position}"] for name in ("edges", "measured", "exact", "grid", "gamma", "widths")},
            n,
        )
        panel.set_title(_pretty(label))
        panel.set_ylabel("density\n(1 / token)")
    axes[-1].set_xlabel("size of the block (tokens)")
    size = f"s = {int(arrays['num_samples']):,}, n = {n:,}, {draws}"
    made.suptitle(f"Block that holds a random token\n{size}", fontsize=10.5)
    key = {
        "drawn": Patch(color=style.BIAS_COLOURS["plsh"], alpha=0.45, label="drawn"),
        "exact": Line2D([], [], color=style.BIAS_COLOURS["plsh"], label="exact law at this n"),
        "gamma": Line2D([], [], color=style.INK, linestyle=(0, (4, 2)), label="Gamma(2, σ) density"),
        "widths": Line2D([], [], color=style.MUTED, marker="|", linestyle="", label="drawn widths"),
    }
    handles = [handle for name, handle in key.items() if name in visible]
    made.legend(handles=handles, loc="outside lower center", ncols=2)
    return made


def _block_panel(panel: Axes, arrays: Mapping[str, np.ndarray], n: int) -> set[str]:
    """Draw one kernel's histogram; which of drawn, exact, gamma and widths can be seen in it."""
    edges, measured, exact, gamma, widths = (arrays[name] for name in ("edges", "measured", "exact", "gamma", "widths"))
    top = _top(panel, edges, measured, exact, n)
    colour = style.BIAS_COLOURS["plsh"]
    panel.bar(edges[:-1] - 0.5, measured, width=np.diff(edges), align="edge", color=colour, alpha=0.45)
    panel.stairs(exact, edges - 0.5, color=colour, linewidth=1.4)
    visible = {"drawn", "exact"}
    if gamma.size and gamma.max() > top / 100:
        panel.plot(arrays["grid"], gamma, color=style.INK, linestyle=(0, (4, 2)))
        visible.add("gamma")
    inside = widths[widths < edges[-1] - 0.5]
    if inside.size and inside.max() > edges[-1] / 200:
        panel.plot(inside, np.zeros_like(inside), "|", color=style.MUTED, markersize=5, alpha=0.6, clip_on=False)
        visible.add("widths")
    panel.set_xlim(0, edges[-1] - 0.5)
    panel.set_ylim(0, top)
    return visible


def _top(panel: Axes, edges: np.ndarray, measured: np.ndarray, exact: np.ndarray, n: int) -> float:
    """The upper end of the density axis, with a note where it cuts off the draws that leave the sequence whole."""
    rest = max(measured[:-1].max(), exact[:-1].max()) if edges.size > 2 else 0.0
    # Those draws would dwarf all others, unless there are hardly any others.
    if edges[-1] <= n or exact[-1] <= 2 * exact[:-1].max(initial=0.0) or rest < exact[-1] / 1000:
        return 1.15 * max(measured.max(), exact.max())
    share = (measured[-1] * (edges[-1] - edges[-2]), exact[-1] * (edges[-1] - edges[-2]))
    note = f"all {n:,} tokens: {100 * share[0]:.0f} % (law {100 * share[1]:.0f} %) →"
    panel.text(0.97, 0.9, note, transform=panel.transAxes, ha="right", va="top", fontsize=9.5)
    return 1.6 * rest


def _pretty(label: str) -> str:
    """A kernel's label as a heading: "alibi(sigma=16)" as "ALiBi, σ = 16 tokens"."""
    alibi = re.fullmatch(r"alibi\(sigma=([\d.]+(?:e[+-]?\d+)?)\)", label)
    return f"ALiBi, σ = {float(alibi[1]):.4g} tokens" if alibi else style.plain(label)
