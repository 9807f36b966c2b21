"""The tables of `plsh approx` for the terminal; rows.csv has every column and every kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from plsh_cli.report.text import Row, evenly, fits, interval, kernel_name, mean_ci, new_table, number, seeds_text

SHOWN_ROWS, SHOWN_KERNELS = 48, 8  # at most, where that leaves three kernels
Columns = Sequence[tuple[str, Callable[[Row], str]]]


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Errors beside their bounds, widths and cost, slopes, violated bounds if any, and gains if there are samplers."""
    rows, summary = result["rows"], result["summary"]
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    shown = evenly(kernels, max(3, min(SHOWN_KERNELS, SHOWN_ROWS * len(kernels) // len(rows))))
    chosen = [row for row in rows if row["kernel"] in shown]
    left_out = f"; {len(shown)} of {len(kernels)} kernels shown, rows.csv has all" if len(shown) < len(kernels) else ""
    made = [_errors(chosen, summary, left_out), _costs(chosen), _slopes(chosen, summary)]
    if summary["flagged"]:
        made.append(_flagged(summary))
    if summary["gains"]:
        made.append(_gains(chosen, summary))
    return made


def _keys(rows: Sequence[Row]) -> list[tuple[str, Callable[[Row], str]]]:
    """The columns that tell rows apart: the kernel, then whichever of n and sampler varies."""
    found = [("σ" if all(row["sigma"] is not None for row in rows) else "kernel", kernel_name)]
    if len({row["n"] for row in rows}) > 1:
        found.append(("n", lambda row: f"{row['n']:,}"))
    if len({row["sampler"] for row in rows}) > 1:
        found.append(("sampler", lambda row: str(row["sampler"])))
    return found


def _with_keys(
    title: str, rows: Sequence[Row], columns: Columns, caption: str | None, expendable: Sequence[str]
) -> Table:
    """A table of rows under their keys, without empty columns.

    Columns named in `expendable` are left out, in that order, until it fits.
    """
    keys = _keys(rows)
    columns = [(name, cell) for name, cell in columns if any(cell(row) != "-" for row in rows)]
    every = [*keys, ("s", lambda row: f"{row['num_samples']:,}"), *columns]
    table = new_table(title, [name for name, _ in every], caption, text_columns=len(keys))
    for row in rows:
        table.add_row(*(cell(row) for _, cell in every), end_section=row["num_samples"] == rows[-1]["num_samples"])
    if fits(table) or not expendable:
        return table
    return _with_keys(
        title, rows, [column for column in columns if column[0] != expendable[0]], caption, expendable[1:]
    )


def _errors(rows: Sequence[Row], summary: Row, left_out: str) -> Table:
    first = rows[0]
    size = f"n={first['n']:,}, " if len({row["n"] for row in rows}) == 1 else ""
    sampler = f"{first['sampler']} draws, " if len({row["sampler"] for row in rows}) == 1 else ""
    spread = "± is the 95 % t interval over seeds" if first["seeds"] > 1 else "one seed, so no interval"
    title = f"M~ against L*: {size}{sampler}{first['pitch']} widths, means over {seeds_text(first)}, {spread}{left_out}"
    return _with_keys(
        title,
        rows,
        [
            ("spectral\nerror", lambda row: mean_ci(row["spectral_error"], row["spectral_error_ci95"])),
            (
                "relative\nto L*",
                lambda row: mean_ci(row["spectral_error_relative"], row["spectral_error_relative_ci95"]),
            ),
            ("of its\nbound", lambda row: number(row["bound_expectation_ratio"], 2)),
            ("tail\nprob.", lambda row: number(row["tail_probability"], 2)),
            ("max\nerror", lambda row: mean_ci(row["max_error"], row["max_error_ci95"])),
            ("max\nbound", lambda row: number(row["bound_max"])),
            ("s for\n10 %", lambda row: number(row["rule_of_thumb_samples"])),
        ],
        _bounds_line(rows, summary),
        ["s for\n10 %", "tail\nprob.", "relative\nto L*"],
    )


def _bounds_line(rows: Sequence[Row], summary: Row) -> str | None:
    if not summary["bounds_checked"]:
        return None
    about_ratio = ". 'of its bound': mean over the bound on the expectation, which holds up to a constant"
    verdict = f"{len(summary['flagged'])} violated, listed below" if summary["flagged"] else "none violated"
    return (
        f"bounds: {summary['bounds_checked']} checked (tail and max norm at delta={summary['delta']:g}, per seed), "
        f"{verdict}{about_ratio if any(row['bound_expectation_ratio'] is not None for row in rows) else ''}"
    )


def _costs(rows: Sequence[Row]) -> Table:
    title = "widths and cost: tokens, and pairs scored per token (causal, both directions), means over seeds"
    return _with_keys(
        title,
        rows,
        [
            ("widest\nwidth", lambda row: number(row["max_width"])),
            ("its\nmedian", lambda row: number(row["max_width_median"])),
            ("its 1 %\npoint", lambda row: number(row["max_width_upper_1pct"])),
            ("longest\nblock", lambda row: f"{row['max_block']:,}"),
            ("blocks\nper draw", lambda row: number(row["blocks_per_draw"])),
            ("draws\ncausal", lambda row: number(row["pairs_per_token_draws_causal"])),
            ("draws\nboth", lambda row: number(row["pairs_per_token_draws_bidirectional"])),
            ("union\ncausal", lambda row: number(row["pairs_per_token_union_causal"])),
            ("union\nboth", lambda row: number(row["pairs_per_token_union_bidirectional"])),
        ],
        None,
        ["draws\nboth", "union\nboth", "blocks\nper draw"],
    )


def _slopes(rows: Sequence[Row], summary: Row) -> Table:
    sigma = {row["kernel"]: row["sigma"] for row in rows}
    slopes = {
        (one["kernel"], one["n"], one["sampler"], one["norm"]): one
        for one in summary["slopes"]
        if one["kernel"] in sigma
    }
    groups = list(dict.fromkeys(key[:3] for key in slopes))
    named = [{"kernel": kernel, "n": n, "sampler": sampler, "sigma": sigma[kernel]} for kernel, n, sampler in groups]
    keys = _keys(named)
    title = "log-log slope of error against s, fitted per seed, mean ± 95 % t interval over seeds"
    columns = [*(name for name, _ in keys), "spectral norm", "max norm", "theory", "note"]
    table = new_table(title, columns, text_columns=len(keys))
    for name in named:
        pair = [slopes[name["kernel"], name["n"], name["sampler"], norm] for norm in ("spectral", "max")]
        notes = "; ".join(dict.fromkeys(one["note"] for one in pair if one["note"]))
        table.add_row(
            *(cell(name) for _, cell in keys),
            *(mean_ci(one["slope"], one["slope_ci95"]) for one in pair),
            number(pair[0]["theory"], 1),
            notes,
        )
    return table


def _flagged(summary: Row) -> Table:
    title = "violated bounds, with the probability that the bound allowed"
    table = new_table(title, ["kernel", "n", "s", "seed", "bound", "measured", "limit", "allowed probability"])
    for one in summary["flagged"]:
        table.add_row(
            one["kernel"],
            f"{one['n']:,}",
            f"{one['num_samples']:,}",
            str(one["seed"]),
            one["bound"],
            number(one["measured"]),
            number(one["limit"]),
            number(one["allowed_probability"], 2),
        )
    return table


def _gains(rows: Sequence[Row], summary: Row) -> Table:
    sigma = {row["kernel"]: row["sigma"] for row in rows}
    gains = [{**one, "sigma": sigma[one["kernel"]]} for one in summary["gains"] if one["kernel"] in sigma]
    samplers = list(dict.fromkeys(one["sampler"] for one in gains))
    title = (
        f"gain of {' and '.join(samplers)} draws: i.i.d. error over theirs at the same s, "
        f"means over {gains[0]['seeds']} seeds (bootstrap 95 % interval)"
    )
    caption = (
        "cost: causal pairs per token over those of i.i.d. draws; same error: i.i.d. draws with the same mean "
        f"spectral error, by {gains[0]['samples_basis'].partition(' (')[0]} (*: beyond the measured s)"
    )
    return _with_keys(
        title,
        gains,
        [
            ("spectral gain", lambda one: _interval(one, "spectral")),
            ("max gain", lambda one: _interval(one, "max")),
            ("cost\ndraws", lambda one: number(one["cost_ratio_draws"])),
            ("cost\nunion", lambda one: number(one["cost_ratio_union"])),
            (
                "same\nerror",
                lambda one: number(one["samples_for_same_error"]) + ("*" if one["samples_extrapolated"] else ""),
            ),
        ],
        caption,
        ["cost\ndraws", "cost\nunion"],
    )


def _interval(gain: Row, norm: str) -> str:
    return interval(gain[f"gain_{norm}"], gain[f"gain_{norm}_low"], gain[f"gain_{norm}_high"])
