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


#: How far two costs are apart, over the second, that count as equal.
_NEAR = 0.02


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """A table per measure; the lead of the first says whether all budgets are equal."""
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
    title = f"{MEASURE_NAMES[rows[0]['measure']]}, against {rows[0]['baseline']}; {subject(rows, summary)}"
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
    lead = summary["first_line"] if first else ""
    lines = [_line(row, several) for row in rows]
    return Sheet(title, headers, lines, _caption(rows, summary), keys, keys, ends, lead)


def _reference(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """What the baseline has at its own setting: a larger budget need not make it better."""
    own = summary.get("reference")
    if not own:
        return ""
    error, cost = own["errors"][rows[0]["measure"]]["error"], own["cost"]
    rows = [row for row in rows if row["method_error"] is not None and row["baseline_error"] is not None]
    if error is None or not rows:
        return ""
    beaten = [row for row in rows if row["method"] != row["baseline"] and row["method_error"] > error]
    text = f"\n{own['bias']} at its own {own['knob']}: error {number(error)} at a cost of {number(cost)}"
    text += ": LESS of both than with the methods' budget" if at_its_own(own, rows) else ""
    if beaten:
        text += f"; there it is better than {', '.join(method_name(row) for row in beaten)}"
    return text


def at_its_own(own: Mapping[str, Any], rows: Sequence[Row]) -> bool:
    """Whether the baseline has less error at less cost with its own setting than at any method's cost.

    own: the summary's reference. rows: of one measure.
    """
    error, told = own["errors"][rows[0]["measure"]]["error"], [row for row in rows if row["baseline_error"] is not None]
    cheaper = all(row["method_cost"] > own["cost"] for row in told)
    return bool(told) and error is not None and cheaper and all(row["baseline_error"] > error for row in told)


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


def subject(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """What the errors are of: inputs, lengths, heads, draws and seeds."""
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


def _missed(row: Row, rows: Sequence[Row]) -> str:
    """Where a method that was given the cost of s draws has another one, as it cannot reach it."""
    drawn = [one for one in rows if one["method"] == "plsh" and one["num_samples"] == row["num_samples"]]
    if not drawn or row["method"] == "plsh" or abs(row["method_cost"] / drawn[0]["method_cost"] - 1.0) <= _NEAR:
        return ""
    costs = f"it has {number(row['method_cost'])}, they {number(drawn[0]['method_cost'])}"
    return f"\n{method_name(row)} does not reach the cost of {row['num_samples']} draws: {costs}"


def _unit(row: Row) -> str:
    """How many pairs and what one is: "15 (each a text with a seed of its draws)"."""
    return f"{row['pairs']} ({'each ' if row['pairs'] > 1 else ''}{row['unit']})"


def _caption(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    units = list(dict.fromkeys(_unit(row) for row in rows))
    text = f"cost: {summary['cost_name']}; difference: method - baseline, below 0 the method is better; "
    text += "±: 95 % t interval over pairs; p: paired t test"
    text += f"\npairs: {'; '.join(units)}"
    if any(row["pairs"] == 1 for row in rows):
        text += "; a single pair has no interval and stays undecided"
    text += "".join(dict.fromkeys(_missed(row, rows) for row in rows))
    for row in rows:
        if row.get("not_finite"):
            text += (
                f"\n{method_name(row)}: errors of {row['not_finite']} are not finite, as after a training that diverged"
            )
    if any(row["p_value_texts"] is not None for row in rows):
        most = max(row["p_value_texts"] for row in rows if row["p_value_texts"] is not None)
        text += f"\npairs of one text share it: the verdict also needs the interval over the {rows[0]['texts']} texts' "
        text += f"means (largest p {number(most, 2)})"
    few = few_seeds(rows[0]) if _seeded(rows) and rows[0]["pairs"] == rows[0]["seeds"] else ""
    return (f"{text}; {few}" if few else text) + _reference(rows, summary)
