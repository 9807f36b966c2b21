"""The table of `plsh bench matrix` for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plsh_cli.report.text import Row, Sheet, number

UNITS = {"times faster": " ×", "s": " s", "GiB": " GiB", "relative": ""}


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Every claim with its measurement, target and whether it was met."""
    rows, timing = result["rows"], result["timing"]
    title = (
        f"speed and memory, σ={rows[0]['sigma']:g}: medians of {rows[0]['repeats']} interleaved repetitions of one run "
        "(×: times faster)"
    )
    caption = (
        f"M~: {number(timing['m_tilde_seconds'])} s, of which listing the blocks "
        f"{number(timing['m_tilde_boundaries_seconds'])} s and the sums {number(timing['m_tilde_sums_seconds'])} s. "
        f"{_scaled(rows)}"
    )
    lines = []
    for row in rows:
        sign = {">=": "≥", "<=": "≤"}[row["comparison"]]
        target = f"{sign} {row['target']:g}" if row["target"] is not None else "-"
        met = {None: "-", True: "yes", False: "NO"}[row["met"]]
        line = [
            str(row["claim"]),
            f"{row['n']:,}",
            f"{row['num_samples']:,}",
            number(row["measured"]) + UNITS[row["unit"]],
            target,
            met,
            number(row["seconds"]),
            number(row["seconds_other"]),
        ]
        lines.append(line)
    headers = ["claim", "n", "s", "measured", "target", "met", "fast\n(s)", "slow\n(s)"]
    return [Sheet(title, headers, lines, caption)]


def _scaled(rows: list[Row]) -> str:
    scaled = [
        f"{row['claim'].removeprefix('M~ against ')} from {row['scaled_from_draws']:,}"
        for row in rows
        if row["scaled_from_draws"]
    ]
    return f"Scaled in proportion to the draws: {', '.join(scaled)} draws." if scaled else ""
