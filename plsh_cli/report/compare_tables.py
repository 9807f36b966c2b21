"""The tables of `plsh compare`: per measure, every method beside its baseline, with the paired difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from plsh_cli.report.text import Row, Sheet, few_seeds, mean_ci, number, seeds_text

BIAS_NAMES = {
    "plsh": "positional LSH",
    "window": "window",
    "fixed_blocks": "fixed blocks",
    "alibi": "exact ALiBi",
    "none": "no bias",
    "original": "the model's own",
}
MEASURE_NAMES = {
    "output_error_relative": "relative error of attention outputs, ||T - T*|| / ||T*|| (Frobenius)",
    "row_error_median": "relative error of attention outputs, median over rows",
    "spectral_error_relative": "spectral error of the bias matrix over ||L*||_2",
    "max_error": "largest error of the bias matrix",
    "bits_per_byte": "bits per byte on held-out text",
    "perplexity": "perplexity on held-out text",
}


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """A table per measure; the first line of the first title says whether all budgets are equal."""
    rows, summary = result["rows"], result["summary"]
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    return [
        _sheet([row for row in rows if row["measure"] == measure], summary, place == 0)
        for place, measure in enumerate(measures)
    ]


def method_name(row: Row) -> str:
    """A row's method with its knob: "window eps=0.064 (s=10)"."""
    text = f"{row['method']} {row['knob']}".strip()
    return f"{text} (s={row['num_samples']})" if row["num_samples"] and row["method"] != "plsh" else text


def _sheet(rows: Sequence[Row], summary: Mapping[str, Any], first: bool) -> Sheet:
    several = len({row["n"] for row in rows}) > 1
    title = f"{MEASURE_NAMES[rows[0]['measure']]}, against {rows[0]['baseline']}; {_subject(rows, summary)}"
    if first:
        title = f"{summary['first_line']}\n{title}"
    headers = [
        *(["n"] if several else []),
        "method",
        "verdict",
        "difference",
        "p",
        "pairs",
        "error",
        "baseline's",
        "its cost",
        "baseline",
        "its cost over",
    ]
    group = "n" if several else "method"
    ends = {place for place, (row, after) in enumerate(pairwise(rows)) if row[group] != after[group]}
    keys = 2 if several else 1
    return Sheet(title, headers, [_line(row, several) for row in rows], _caption(rows, summary), keys, keys, ends)


def _reference(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """What the baseline has at its own setting: a larger budget need not make it better."""
    own = summary.get("reference")
    if not own:
        return ""
    error, cost = own["errors"][rows[0]["measure"]]["error"], own["cost"]
    beaten = [row for row in rows if row["method"] != row["baseline"] and row["method_error"] > error]
    cheaper = all(row["method_cost"] > cost for row in rows) and all(row["baseline_error"] > error for row in rows)
    text = f"\n{own['bias']} at its own {own['knob']}: error {number(error)} at a cost of {number(cost)}"
    text += ": LESS of both than with the methods' budget" if cheaper else ""
    if beaten:
        text += f"; there it is better than {', '.join(method_name(row) for row in beaten)}"
    return text


def _line(row: Row, several: bool) -> list[str]:
    off = f"{100 * (row['cost_ratio'] - 1):+.2g} %" if row["matched"] else f"{number(row['cost_ratio'])} times, UNEQUAL"
    return [
        *([f"{row['n']:,}"] if several else []),
        method_name(row),
        row["verdict"],
        mean_ci(row["difference"], row["difference_ci95"]),
        number(row["p_value"], 2),
        str(row["pairs"]),
        number(row["method_error"]),
        number(row["baseline_error"]),
        number(row["method_cost"]),
        row["baseline_knob"] or row["baseline"],
        off,
    ]


def _subject(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    sigma = summary["sigma"]
    told = (
        f"sigma = {sigma[0]:g}" if len(set(sigma)) == 1 else f"{len(sigma)} heads, sigma {min(sigma):g}-{max(sigma):g}"
    )
    lengths = ", ".join(f"{n:,}" for n in sorted({row["n"] for row in rows}))
    drawn = f", {summary['sampler']} draws" if _drawn(rows) else ""
    return f"{summary['subject']}; n = {lengths}; {told}{drawn}; {seeds_text(rows[0]) if _seeded(rows) else 'no seeds'}"


def _drawn(rows: Sequence[Row]) -> bool:
    return any("plsh" in (row["method"], row["baseline"]) for row in rows)


def _seeded(rows: Sequence[Row]) -> bool:
    return rows[0]["level"] == "training" or _drawn(rows)


def _caption(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    units = list(dict.fromkeys(f"{row['pairs']} times {row['unit']}" for row in rows))
    text = f"cost: {summary['cost_name']}; difference: method - baseline, below 0 the method is better; "
    text += "±: 95 % t interval over pairs; p: paired t test"
    text += f"\npairs: {'; '.join(units)}"
    if any(row["pairs"] == 1 for row in rows):
        text += "; a single pair has no interval and stays undecided"
    if any(row["p_value_texts"] is not None for row in rows):
        most = max(row["p_value_texts"] for row in rows if row["p_value_texts"] is not None)
        text += f"\npairs of one text share it: the verdict also needs the interval over the {rows[0]['texts']} texts' "
        text += f"means (largest p {number(most, 2)})"
    few = few_seeds(rows[0]) if _seeded(rows) and rows[0]["pairs"] == rows[0]["seeds"] else ""
    return (f"{text}; {few}" if few else text) + _reference(rows, summary)
