"""The figures of `plsh bench attention`: time against n, and error against time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from plsh_cli.report import style
from plsh_cli.report.bench_attention_tables import group_text, groups_of
from plsh_cli.report.style import EndLabel
from plsh_cli.report.text import Row, evenly

NAMES = {"plsh": "positional LSH", "alibi": "exact ALiBi", "window": "ALiBi cut at ε", "fixed_blocks": "fixed blocks"}
#: A backend's line: solid for the fused kernels, broken for the others.
LINES = {"fused": "-", "triton": "-", "blocks": (0, (5, 2)), "sdpa_mask": (0, (1, 1)), "flex": (0, (3, 1, 1, 1))}
OTHER_LINE = (0, (2, 2))
MARKERS = (*style.MARKERS, "P", "X", "<", ">", "*", "h", "p", "d")
MOST_LENGTHS = 3  # figures of error against time
MOST_GROUPS = 4  # figures of time against n


def figures(run_path: Path, result: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """How to draw time (per group with two lengths or more) and error_time (per length, of the first forward group)."""
    timed = [row for row in result["rows"] if row["skipped"] is None]
    made: dict[str, Callable[[], Figure]] = {}
    groups = [group for group in groups_of(timed) if len({row["n"] for row in group}) > 1]
    for number, group in enumerate(groups[:MOST_GROUPS]):
        made[f"time_{number + 1}" if number else "time"] = partial(_time, group)
    for n, rows in _comparable(timed):
        made[f"error_time_{n}"] = partial(_error_time, rows)
    return made


def _comparable(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    """Lengths with the rows of one grid's group there, the one with the most methods that only approximate ALiBi."""
    best: dict[int, list[Row]] = {}
    for group in groups_of(rows):
        for n in {row["n"] for row in group}:
            mine = [row for row in group if row["n"] == n and row["output_error_relative"]]
            if _inexact(mine) > max(1, _inexact(best.get(n, []))):
                best[n] = mine
    for n in evenly(sorted(best), MOST_LENGTHS):
        yield n, best[n]


def _inexact(rows: Sequence[Row]) -> int:
    return sum(row["bias"] in ("plsh", "window", "fixed_blocks") for row in rows)


def _time(rows: Sequence[Row]) -> Figure:
    """Seconds against n, a line per method with its name at the end."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    made, (panel,) = style.figure(max(3.6, 1.6 + 0.24 * len(methods)))
    style.log_x(panel, [row["n"] for row in rows])
    panel.set_yscale("log")
    labels = []
    for method in methods:
        line = sorted((row for row in rows if row["method"] == method), key=lambda row: row["n"])
        named = _method(
            line[0], any(row["bias"] == "plsh" and row["num_samples"] != line[0]["num_samples"] for row in rows)
        )
        colour, kind = style.BIAS_COLOURS[line[0]["bias"]], LINES.get(line[0]["ran"], OTHER_LINE)
        x, y = [row["n"] for row in line], [row["seconds"] for row in line]
        panel.plot(x, y, color=colour, linestyle=kind, marker="o", markersize=3.5)
        labels.append(EndLabel(x[-1], y[-1], style.plain(named), colour))
    style.plain_log_y(panel)
    panel.set_xlabel("tokens n")
    panel.set_ylabel("seconds")
    made.suptitle(f"Attention, {group_text(rows[0])}", fontsize=10.5)
    style.label_ends({panel: labels})
    return made


def _method(row: Row, with_samples: bool) -> str:
    """A method's name at the end of its line, with s where several are drawn."""
    name = {"plsh": "plsh", "alibi": "exact ALiBi", "window": "cut ALiBi"}.get(
        row["bias"], row["bias"].replace("_", " ")
    )
    if row["bias"] == "plsh" and with_samples:
        name += f" s={row['num_samples']}"
    if row["bias"] == "window":
        name += f" {row['eps']:g}"
    sampler = f" {row['sampler']}" if row["bias"] == "plsh" and row["sampler"] != "iid" else ""
    return f"{name}{sampler} ({row['ran'].replace('_', ' ')})"


def _error_time(rows: Sequence[Row]) -> Figure:
    """Relative error against milliseconds, a line through the settings of each family; down left is better."""
    families = _families(rows)
    made, (panel,) = style.figure(3.4 + 0.2 * len(families))
    panel.set_xscale("log")
    panel.set_yscale("log")
    key = {}
    for index, family in enumerate(families):
        family = sorted(family, key=lambda row: (row["num_samples"] or 0, -(row["eps"] or 0.0)))
        name, look = _family(family, index)
        x, y = [1000 * row["seconds"] for row in family], [row["output_error_relative"] for row in family]
        panel.plot(x, y, **look)
        key[name] = look
    style.plain_log_y(panel)
    _plain_times(panel)
    panel.set_xlabel("milliseconds")
    panel.set_ylabel("relative output error")
    drawn = {(family[0]["bias"], family[0]["backend"]) for family in families}
    left_out = {(row["bias"], row["backend"]) for row in rows} - drawn
    note = "; each bias by its fastest backend" if left_out else ""
    made.suptitle(f"n = {rows[0]['n']:,}, {group_text(rows[0])}{note}", fontsize=10.5)
    handles = [Line2D([], [], label=name, **look) for name, look in key.items()]
    made.legend(handles=handles, loc="outside lower center")
    return made


def _families(rows: Sequence[Row]) -> list[list[Row]]:
    """The settings of each bias on the backend that is fastest at it; exact ALiBi on every backend."""
    found: dict[tuple[object, ...], dict[object, list[Row]]] = {}
    for row in rows:
        kind = tuple(row[key] for key in ("bias", "sampler", "pitch"))
        backend = row["backend"] if row["bias"] == "alibi" else None
        found.setdefault((*kind, backend), {}).setdefault(row["backend"], []).append(row)
    return [min(of.values(), key=lambda family: min(row["seconds"] for row in family)) for of in found.values()]


def _family(family: Sequence[Row], index: int) -> tuple[str, dict[str, Any]]:
    """The name and look of a family of settings, given in their order along its line."""
    row, last = family[0], family[-1]
    colour, name = style.BIAS_COLOURS[row["bias"]], NAMES.get(row["bias"], row["bias"])
    if row["bias"] == "plsh":
        colour = style.SAMPLER_COLOURS[row["sampler"]]
        name = f"{name}, {style.SAMPLER_NAMES[row['sampler']]}"
        name += ", integer" if row["pitch"] == "integer" else ""
        name += f", s = {_range(row['num_samples'], last['num_samples'])}"
    elif row["bias"] == "window":
        name += f" = {_range(row['eps'], last['eps'])}"
    look = {"color": colour, "linestyle": LINES.get(row["ran"], OTHER_LINE)}
    look |= {"marker": MARKERS[index % len(MARKERS)]}
    return f"{name} ({row['backend'].replace('_', ' ')})", look


def _range(first: float, last: float) -> str:
    return f"{first:g}" if first == last else f"{first:g} .. {last:g}"


def _plain_times(panel: Axes) -> None:
    """Label a logarithmic time axis in plain numbers: at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = panel.get_xlim()
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
