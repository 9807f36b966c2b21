"""The figure of a sweep of `plsh finetune` over s: perplexity against s, the baselines as horizontal bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.eval_tables import BIAS_NAMES
from plsh_cli.report.finetune_figures import MOST_LENGTHS, length_text
from plsh_cli.report.finetune_sweep_tables import absent
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly

MOST_LINES = 6


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw perplexity_against_s."""
    return {"perplexity_against_s": partial(_against_s, result["rows"], result["summary"])}


def _against_s(rows: Sequence[Row], summary: Mapping[str, Any]) -> Figure:
    """A panel per length; a line per setting with bars of its interval, a band per baseline."""
    shown = [row for row in rows if row["perplexity"] is not None]
    lengths = evenly(sorted({row["n"] for row in shown}), MOST_LENGTHS)
    samples = sorted({row["num_samples"] for row in shown if row["num_samples"] is not None})
    made, panels = style.figure(1.1 + 2.4 * len(lengths), rows=len(lengths))
    ends = {}
    for n, panel in zip(lengths, panels, strict=True):
        here = [row for row in shown if row["n"] == n]
        style.log_x(panel, samples or [1])
        ends[panel] = [*_lines(panel, here), *_bands(panel, here)]
        panel.set_ylabel("perplexity")
        panel.set_title(length_text(n, summary))
    panels[-1].set_xlabel("\n".join(["draws s", *absent(summary, rows)]))
    made.suptitle(style.plain(f"{summary['model']} fine-tuned under positional LSH"), fontsize=10.5)
    made.legend(handles=_key(shown), loc="outside lower center", ncols=2)
    style.label_ends(ends)
    return made


def _lines(panel: Axes, rows: Sequence[Row]) -> list[EndLabel]:
    settings = evenly(list(dict.fromkeys(row["setting"] for row in rows if row["bias"] == "plsh")), MOST_LINES)
    colours = _colours(settings)
    step = style.aside([row["num_samples"] for row in rows if row["num_samples"] is not None] or [1])
    labels = []
    for index, setting in enumerate(settings):
        line = sorted(
            (row for row in rows if (row["bias"], row["setting"]) == ("plsh", setting)),
            key=lambda row: row["num_samples"],
        )
        x = [row["num_samples"] * step ** (index - (len(settings) - 1) / 2) for row in line]
        y = [row["perplexity"] for row in line]
        bars = [row["perplexity_ci95"] or 0.0 for row in line]
        marker = style.MARKERS[index % len(style.MARKERS)]
        panel.errorbar(x, y, bars if any(bars) else None, color=colours[setting], marker=marker, capsize=2.5, zorder=3)
        labels.append(EndLabel(x[-1], y[-1], style.plain(_short(setting)), colours[setting]))
    return labels


def _bands(panel: Axes, rows: Sequence[Row]) -> list[EndLabel]:
    """Draw every baseline over the whole width, a line at its mean and its interval around it."""
    labels = []
    right = panel.get_xlim()[1]
    for bias in dict.fromkeys(row["bias"] for row in rows if row["bias"] != "plsh"):
        alike = evenly([row for row in rows if row["bias"] == bias], MOST_LINES)
        for row, colour in zip(alike, style.shades(style.BIAS_COLOURS[bias], len(alike)), strict=True):
            y, half = row["perplexity"], row["perplexity_ci95"]
            if half is not None:
                panel.axhspan(y - half, y + half, color=colour, alpha=0.13, linewidth=0)
            panel.axhline(y, color=colour, linewidth=1.2, linestyle="--")
            setting = f", {row['setting']}" if row["setting"] else ""
            labels.append(EndLabel(right, y, style.plain(f"{BIAS_NAMES[bias]}{setting}"), colour))
    return labels


def _colours(settings: Sequence[str]) -> dict[str, Any]:
    """A sampler has its own colour, other settings are shades of positional LSH's."""
    samplers = [setting.removeprefix("sampler=") for setting in settings]
    if all(sampler in style.SAMPLER_COLOURS for sampler in samplers):
        return {setting: style.SAMPLER_COLOURS[sampler] for setting, sampler in zip(settings, samplers, strict=True)}
    return dict(zip(settings, style.shades(style.BIAS_COLOURS["plsh"], len(settings)), strict=True))


def _short(setting: str) -> str:
    sampler = setting.removeprefix("sampler=")
    return style.SAMPLER_NAMES.get(sampler, setting) if setting else "positional LSH"


def _key(rows: Sequence[Row]) -> list[Any]:
    """The legend: what bars and bands are, and that a single seed has none."""
    if all(row["perplexity_ci95"] is None for row in rows):
        return [Patch(alpha=0, label="one seed, so no intervals")]
    handles: list[Any] = [style.interval_key()]
    if any(row["bias"] != "plsh" and row["perplexity_ci95"] is not None for row in rows):
        handles.append(Patch(color=style.MUTED, alpha=0.2, label="the same, of a baseline"))
    return handles
