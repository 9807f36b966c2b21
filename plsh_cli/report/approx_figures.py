"""The figures of `plsh approx`, drawn from its run folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly, kernel_name, seeds_text

SHOWN_LINES = 3
PANELS = (("spectral_error", "Spectral norm", "bound_expectation"), ("max_error", "Max norm", "bound_max"))


def draw(run_path: Path, result: Mapping[str, Any]) -> list[Path]:
    """Draw error (one per n), picture, block_sizes, and gain where several samplers were compared."""
    rows, folder = result["rows"], run_path / "figures"
    files: list[Path] = []
    with style.look():
        sizes = list(dict.fromkeys(row["n"] for row in rows))
        for n in sizes:
            name = "error" if len(sizes) == 1 else f"error_n{n}"
            files += style.save(_error([row for row in rows if row["n"] == n]), folder, name)
        with np.load(run_path / "picture.npz") as arrays:
            files += style.save(_picture(arrays), folder, "picture")
        with np.load(run_path / "block_sizes.npz") as arrays:
            files += style.save(_block_sizes(arrays), folder, "block_sizes")
        gains = [
            gain for gain in result["summary"]["gains"] if gain["n"] == sizes[0] and gain["gain_spectral"] is not None
        ]
        if gains:
            files += style.save(_gain(gains, rows), folder, "gain")
    return files


def _error(rows: Sequence[Row]) -> Figure:
    """Error against s on log-log axes, one panel per norm; a line per kernel, or per sampler at the middle kernel."""
    samplers = list(dict.fromkeys(row["sampler"] for row in rows))
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    if len(samplers) > 1:
        kernel = kernels[(len(kernels) - 1) // 2]
        lines = [
            (style.SAMPLER_NAMES[sampler], style.SAMPLER_COLOURS[sampler], _line(rows, kernel, sampler))
            for sampler in samplers
        ]
        subject = f"{_symbol(lines[0][2][0])}, "
    else:
        shown = evenly(kernels, SHOWN_LINES)
        colours = style.shades(style.SAMPLER_COLOURS[samplers[0]], len(shown))
        lines = [
            (_symbol(_line(rows, kernel, samplers[0])[0]), colour, _line(rows, kernel, samplers[0]))
            for kernel, colour in zip(shown, colours, strict=True)
        ]
        subject = f"{style.SAMPLER_NAMES[samplers[0]]} draws, "
    made, axes = style.figure(6.4, rows=2)
    for panel, (field, title, bound) in zip(axes, PANELS, strict=True):
        _error_panel(panel, lines, field, bound)
        panel.set_title(title)
        panel.set_ylabel("error")
    axes[-1].set_xlabel("number of draws s")
    made.suptitle(f"‖M̃ − L*‖ at n = {rows[0]['n']:,}, {subject}{seeds_text(rows[0])}", fontsize=10.5)
    made.legend(handles=_error_key(rows), loc="outside lower center", ncols=3, handlelength=2.2)
    style.label_ends(
        {panel: _error_labels(lines, field, bound) for panel, (field, _, bound) in zip(axes, PANELS, strict=True)}
    )
    return made


def _error_panel(panel: Axes, lines: Sequence[tuple[str, Any, Sequence[Row]]], field: str, bound: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    for index, (_, colour, line) in enumerate(lines):
        points = [row for row in line if row[field]]
        x, y = (np.array([row[key] for row in points], dtype=float) for key in ("num_samples", field))
        half = np.array([row[f"{field}_ci95"] or 0.0 for row in points])
        panel.plot(x, y, color=colour, marker=style.MARKERS[index], zorder=3)
        if x.size == 1:
            panel.errorbar(x, y, half, color=colour, capsize=3)
        panel.fill_between(x, np.maximum(y - half, y / 10), y + half, color=colour, alpha=0.2, linewidth=0)
        allowed = [(row["num_samples"], row[bound]) for row in line if row[bound]]
        if allowed and (bound == "bound_expectation" or index == 0):
            dash = colour if bound == "bound_expectation" else style.INK
            panel.plot(*zip(*allowed, strict=True), color=dash, linestyle=(0, (4, 2)), linewidth=1.1)
    sizes = sorted({row["num_samples"] for _, _, line in lines for row in line})
    panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
    if not any(row[field] for _, _, line in lines for row in line):
        panel.text(0.5, 0.5, "every error is exactly 0", transform=panel.transAxes, ha="center", color=style.MUTED)
    style.plain_ticks(panel, evenly(sizes, 7))
    style.plain_log_y(panel)


def _error_labels(lines: Sequence[tuple[str, Any, Sequence[Row]]], field: str, bound: str) -> list[EndLabel]:
    labels = [
        EndLabel(line[-1]["num_samples"], line[-1][field], text, colour)
        for text, colour, line in lines
        if line[-1][field]
    ]
    allowed = [(colour, line[-1]) for _, colour, line in lines if line[-1][bound]]
    if bound == "bound_max" and allowed:
        labels.append(EndLabel(allowed[0][1]["num_samples"], allowed[0][1][bound], "bound", style.INK))
    if bound == "bound_expectation":
        same_kernel = len({line[-1]["kernel"] for _, _, line in lines}) == 1
        labels += [
            EndLabel(row["num_samples"], row[bound], "bound" if same_kernel else f"bound, {_symbol(row)}", colour)
            for colour, row in allowed
        ]
    return labels


def _error_key(rows: Sequence[Row]) -> list[Line2D | Patch]:
    mean = Line2D([], [], color=style.MUTED, marker="o", label="mean error")
    band = Patch(color=style.MUTED, alpha=0.3, label="95 % CI over seeds")
    key = [mean, band] if rows[0]["seeds"] > 1 else [mean]
    dashes = {"color": style.MUTED, "linestyle": (0, (4, 2)), "linewidth": 1.1}
    if any(row["bound_max"] for row in rows):
        key.append(Line2D([], [], label="theory's bound", **dashes))
    return key


def _picture(arrays: Mapping[str, np.ndarray]) -> Figure:
    """L*, M~ and their difference over the first tokens, as images."""
    exact, approximate = arrays["l_star"], arrays["m_tilde"]
    difference = approximate - exact
    reach = float(np.abs(difference).max()) or 1.0
    made, axes = style.figure(2.7, columns=3)
    shared = {"cmap": "cividis", "vmin": 0.0, "vmax": 1.0}
    panels = (
        ("L*", exact, shared),
        ("M̃", approximate, shared),
        ("M̃ − L*", difference, {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach}),
    )
    images = []
    for panel, (title, values, options) in zip(axes, panels, strict=True):
        images.append(panel.imshow(values, interpolation="none", **options))
        panel.set_title(title, loc="center")
        panel.grid(False)
        ends = [0, max(values.shape[0] - 1, 1)]
        panel.set_xticks(ends)
        for label, side in zip(panel.get_xticklabels(), ("left", "right"), strict=True):
            label.set_horizontalalignment(side)
        panel.set_yticks(ends if panel is axes[0] else [])
        panel.tick_params(length=2)
    axes[0].set_ylabel("token i", labelpad=-14)
    axes[1].set_xlabel("token j")
    bars = [
        made.colorbar(images[0], ax=axes[:2], orientation="horizontal", shrink=0.6, aspect=30, pad=0.02),
        made.colorbar(images[2], ax=axes[2], orientation="horizontal", shrink=0.8, aspect=15, pad=0.02),
    ]
    bars[1].set_ticks([-reach, 0.0, reach], labels=[f"−{reach:.2g}", "0", f"{reach:.2g}"])
    for bar in bars:
        bar.outline.set_visible(False)
    shown = f"tokens 0 to {exact.shape[0] - 1} of {int(arrays['n']):,}"
    made.suptitle(f"{_pretty(str(arrays['label']))}, s = {int(arrays['num_samples']):,}, {shown}", fontsize=10.5)
    return made


def _block_sizes(arrays: Mapping[str, np.ndarray]) -> Figure:
    """The size of a random token's block: drawn, its exact law at this n, and the Gamma density of the widths."""
    labels, n = [str(label) for label in arrays["labels"]], int(arrays["n"])
    made, axes = style.figure(1.4 + 1.6 * len(labels), rows=len(labels))
    for position, (panel, label) in enumerate(zip(axes, labels, strict=True)):
        _block_panel(
            panel,
            {name: arrays[f"{name}_{position}"] for name in ("edges", "measured", "exact", "grid", "gamma", "widths")},
            n,
        )
        panel.set_title(_pretty(label))
        panel.set_ylabel("density\n(1 / token)")
    axes[-1].set_xlabel("size of the block (tokens)")
    made.suptitle(f"Block that holds a random token, s = {int(arrays['num_samples']):,}, n = {n:,}", fontsize=10.5)
    key = [
        Patch(color=style.BIAS_COLOURS["plsh"], alpha=0.45, label="drawn"),
        Line2D([], [], color=style.BIAS_COLOURS["plsh"], label="exact law at this n"),
    ]
    if arrays["gamma_0"].size:
        key.append(Line2D([], [], color=style.INK, linestyle=(0, (4, 2)), label="Gamma(2, σ) density"))
    key.append(Line2D([], [], color=style.MUTED, marker="|", linestyle="", label="drawn widths"))
    made.legend(handles=key, loc="outside lower center", ncols=2)
    return made


def _block_panel(panel: Axes, arrays: Mapping[str, np.ndarray], n: int) -> None:
    edges, measured, exact, gamma, widths = (arrays[name] for name in ("edges", "measured", "exact", "gamma", "widths"))
    panel.bar(
        edges[:-1] - 0.5, measured, width=np.diff(edges), align="edge", color=style.BIAS_COLOURS["plsh"], alpha=0.45
    )
    panel.stairs(exact, edges - 0.5, color=style.BIAS_COLOURS["plsh"], linewidth=1.4)
    if gamma.size:
        panel.plot(arrays["grid"], gamma, color=style.INK, linestyle=(0, (4, 2)))
    inside = widths[widths < edges[-1] - 0.5]
    if inside.size:
        panel.plot(inside, np.zeros_like(inside), "|", color=style.MUTED, markersize=5, alpha=0.6, clip_on=False)
    panel.set_xlim(0, edges[-1] - 0.5)
    top = 1.15 * max(measured.max(), exact.max())
    if edges[-1] > n and edges.size > 2 and exact[-1] > 2 * exact[:-1].max():
        # Draws that leave the sequence whole would dwarf all others.
        top = 1.6 * max(measured[:-1].max(), exact[:-1].max())
        share = (measured[-1] * (edges[-1] - edges[-2]), exact[-1] * (edges[-1] - edges[-2]))
        panel.text(
            0.97,
            0.9,
            f"all {n:,} tokens: {100 * share[0]:.0f} % (law {100 * share[1]:.0f} %) →",
            transform=panel.transAxes,
            ha="right",
            va="top",
            fontsize=9.5,
        )
    panel.set_ylim(0, top)


def _gain(gains: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Figure:
    """i.i.d. error over each sampler's error against s at the middle kernel, with bootstrap intervals, per norm."""
    kernels = list(dict.fromkeys(gain["kernel"] for gain in gains))
    kernel = kernels[(len(kernels) - 1) // 2]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for gain in gains:
        if gain["kernel"] == kernel:
            lines.setdefault(gain["sampler"], []).append(gain)
    made, axes = style.figure(5.6, rows=2)
    for panel, norm in zip(axes, ("spectral", "max"), strict=True):
        panel.set_xscale("log")
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
        style.plain_ticks(panel, evenly(sorted({gain["num_samples"] for gain in gains}), 7))
    axes[-1].set_xlabel("number of draws s")
    symbol = _symbol(next(row for row in rows if row["kernel"] == kernel))
    made.suptitle(
        f"Gain at equal s, n = {gains[0]['n']:,}, {symbol}, {gains[0]['seeds']} seeds, bootstrap 95 % CI", fontsize=10.5
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
    panel.errorbar(x, y, [y - low, high - y], color=colour, marker="o", capsize=3)


def _line(rows: Sequence[Row], kernel: str, sampler: str) -> list[Row]:
    return [row for row in rows if (row["kernel"], row["sampler"]) == (kernel, sampler)]


def _symbol(row: Row) -> str:
    if row.get("sigma") is not None:
        return f"σ = {kernel_name(row)}"
    return re.sub(r"=([0-9.e+-]+)", lambda number: f"={float(number[1]):.3g}", str(row["kernel"]))


def _pretty(label: str) -> str:
    """A kernel's label as a heading: "alibi(sigma=16)" as "ALiBi, σ = 16 tokens"."""
    if label.startswith("alibi(sigma="):
        return f"ALiBi, σ = {float(label.removeprefix('alibi(sigma=').removesuffix(')')):.4g} tokens"
    return label
