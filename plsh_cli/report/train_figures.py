"""The figures of `plsh train`, drawn from its run folder: the loss curve, and quality against length."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plsh_cli.report import style
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row

_SMOOTH = 25  # steps


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw loss and perplexity (of a run), or length (of a study)."""
    rows, summary = result["rows"], result["summary"]
    if summary.get("kind") == "study":
        return {"length": partial(_study, rows, summary)}
    return {"loss": partial(loss, steps(run_path), summary), "perplexity": partial(_lengths, rows, summary)}


def steps(run_path: Path) -> list[dict[str, Any]]:
    """The records of a run's steps, from its metrics.jsonl."""
    records = []
    for line in (run_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "loss" in record:
            records.append(record)
    return records


def loss(records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> Figure:
    """Training loss of every step with its running mean, and the held-out losses."""
    made, (panel,) = style.figure(3.4)
    places = np.array([record["step"] for record in records])
    losses = np.array([np.nan if record["loss"] is None else record["loss"] for record in records])
    colour = style.BIAS_COLOURS.get(summary["bias"], style.INK)
    panel.plot(places, losses, color=colour, alpha=0.3, linewidth=0.8, label="every step")
    if len(losses) > 2 * _SMOOTH:
        smooth = np.convolve(losses, np.ones(_SMOOTH) / _SMOOTH, "valid")
        panel.plot(places[_SMOOTH // 2 : -(_SMOOTH // 2)], smooth, color=colour, label=f"mean of {_SMOOTH}")
    held_out = [(record["step"], record["eval_loss"]) for record in records if record.get("eval_loss") is not None]
    if held_out:
        panel.plot(*zip(*held_out, strict=True), color=colour, marker="o", linestyle="--", label="held-out")
    panel.set_xlabel("optimiser step")
    panel.set_ylabel("loss (nats per token)")
    made.suptitle(style.plain(f"{summary['model']} under {summary['bias']}: training loss"), fontsize=10.5)
    made.legend(loc="outside lower center", ncols=3)
    return made


def _lengths(rows: Sequence[Row], summary: Mapping[str, Any]) -> Figure:
    """Perplexity against the length of a window, the same tokens at every length, with intervals over documents."""
    made, (panel,) = style.figure(3.4)
    style.log_x(panel, [row["n"] for row in rows])
    labels = []
    for index, own in enumerate(dict.fromkeys(row["own"] for row in rows)):
        line = [row for row in rows if row["own"] == own]
        colour = style.BIAS_COLOURS.get(line[0]["bias"], style.INK)
        x, y = ([row[key] for row in line] for key in ("n", "perplexity"))
        if all(row["perplexity_low"] is not None for row in line):
            low, high = ([row[key] for row in line] for key in ("perplexity_low", "perplexity_high"))
            panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        panel.plot(x, y, color=colour, marker=style.MARKERS[index])
        text = line[0]["bias"] if own else f"exact {line[0]['bias']}"
        labels.append(EndLabel(x[-1], y[-1], text, colour))
    panel.axvline(summary["context"], color=style.MUTED, linewidth=0.8, linestyle=":")
    panel.set_xlabel("length of a window (tokens); dotted: trained at")
    panel.set_ylabel("perplexity")
    made.suptitle(style.plain(f"{summary['model']} under {summary['bias']}, held-out text"), fontsize=10.5)
    if any(row["perplexity_low"] is not None for row in rows):
        patch = Patch(color=style.MUTED, alpha=0.3, label="95 % CI over held-out documents (the same for both)")
        made.legend(handles=[patch], loc="outside lower center")
    style.label_ends({panel: labels})
    return made


def _study(rows: Sequence[Row], summary: Mapping[str, Any]) -> Figure:
    """Bits per byte against length, a line per variant under its own bias, with intervals over seeds."""
    made, (panel,) = style.figure(4.2)
    style.log_x(panel, [row["n"] for row in rows])
    labels = []
    for index, variant in enumerate(dict.fromkeys(row["variant"] for row in rows)):
        line = [row for row in rows if row["variant"] == variant and row["own"]]
        colour = _colour(variant, line[0])
        x, y = ([row[key] for row in line] for key in ("n", "bits_per_byte"))
        half = [row["bits_per_byte_ci95"] or 0.0 for row in line]
        dashes = "--" if "stratified" in variant else "-"
        panel.errorbar(x, y, half, color=colour, marker=style.MARKERS[index % 5], linestyle=dashes, capsize=2)
        labels.append(EndLabel(x[-1], y[-1], style.plain(variant), colour))
    panel.set_xlabel("length of a window (tokens)")
    panel.set_ylabel("bits per byte")
    made.suptitle(style.plain(f"{summary['model']} trained at {summary['context']:,} tokens"), fontsize=10.5)
    if summary["seeds"] > 1:
        made.legend(handles=[style.interval_key()], loc="outside lower center")
    style.label_ends({panel: labels})
    return made


def _colour(variant: str, row: Row) -> Any:
    if row["bias"] != "plsh":
        return style.BIAS_COLOURS.get(row["bias"], style.INK)
    light, dark = style.shades(style.BIAS_COLOURS["plsh"], 2)
    return dark if "20" in variant else light
