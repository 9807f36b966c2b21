"""The tables of `plsh approx` for the terminal; rows.csv has every column and every kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from plsh_cli.report.text import (
    Row,
    evenly,
    few_seeds,
    fits,
    interval,
    kernel_name,
    mean_ci,
    new_table,
    number,
    seeds_text,
)

SHOWN_ROWS, SHOWN_KERNELS = 48, 8  # at most, where that leaves three kernels


@dataclass(frozen=True)
class Column:
    """A column: its header, a row's cell, what the caption says of it, and the header it makes no sense without."""

    name: str
    cell: Callable[[Row], str]
    meaning: str = ""
    needs: str = ""

    @property
    def plain_name(self) -> str:
        """The header on one line."""
        return self.name.replace("\n", " ")


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
    title: str, rows: Sequence[Row], columns: Sequence[Column], notes: Sequence[str], expendable: Sequence[str]
) -> Table:
    """A table of rows under their keys, without empty columns; its caption explains the columns that it has.

    Columns named in `expendable` are left out, in that order, until it fits, and the caption says so.
    """
    filled = [column for column in columns if any(column.cell(row) != "-" for row in rows)]
    for count in range(len(expendable) + 1):
        names = {column.name for column in filled} - set(expendable[:count])
        shown = [column for column in filled if column.name in names and (not column.needs or column.needs in names)]
        left_out = [column.plain_name for column in filled if column not in shown]
        table = _filled_table(title, rows, shown, _caption(shown, left_out, notes))
        if fits(table):
            break
    return table


def _filled_table(title: str, rows: Sequence[Row], columns: Sequence[Column], caption: str) -> Table:
    keys = _keys(rows)
    every = [*keys, ("s", lambda row: f"{row['num_samples']:,}"), *((column.name, column.cell) for column in columns)]
    table = new_table(title, [name for name, _ in every], caption or None, text_columns=len(keys))
    for row in rows:
        table.add_row(*(cell(row) for _, cell in every), end_section=row["num_samples"] == rows[-1]["num_samples"])
    return table


def _caption(shown: Sequence[Column], left_out: Sequence[str], notes: Sequence[str]) -> str:
    meanings = "; ".join(f"{column.plain_name}: {column.meaning}" for column in shown if column.meaning)
    dropped = f"left out here: {', '.join(left_out)}; all in rows.csv" if left_out else ""
    return "\n".join(line for line in (meanings, *notes, dropped) if line)


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
            Column("spectral\nerror", lambda row: mean_ci(row["spectral_error"], row["spectral_error_ci95"])),
            Column(
                "relative\nto L*",
                lambda row: mean_ci(row["spectral_error_relative"], row["spectral_error_relative_ci95"]),
            ),
            Column(
                "of its\nbound",
                lambda row: number(row["bound_expectation_ratio"], 2),
                "mean spectral error over the bound on its expectation, which holds up to a constant",
            ),
            Column(
                "tail\nprob.",
                lambda row: number(row["tail_probability"], 2),
                "bound on the probability of so large a spectral error, clipped at 1, smallest over seeds",
            ),
            Column("max\nerror", lambda row: mean_ci(row["max_error"], row["max_error_ci95"])),
            Column(
                "max\nbound",
                lambda row: number(row["bound_max"]),
                f"exceeded by the max error with probability at most {summary['delta']:g}",
            ),
            Column(
                "s for\n10 %",
                lambda row: number(row["rule_of_thumb_samples"]),
                "rule of thumb for the draws that bring the spectral error to 10 % of L*",
            ),
        ],
        [_bounds_line(rows, summary), few_seeds(first)],
        ["s for\n10 %", "tail\nprob.", "relative\nto L*"],
    )


def _bounds_line(rows: Sequence[Row], summary: Row) -> str:
    """How many bounds were checked, which, how many of them could not fail, and how many were violated."""
    checked, vacuous, violated = summary["bounds_checked"], summary["bounds_vacuous"], len(summary["flagged"])
    if not checked:
        return ""
    with_tail = any(row["tail_probability"] is not None for row in rows)
    which = f"{'tail probability and ' if with_tail else ''}max norm at delta={summary['delta']:g}, per seed"
    what = "tail probability clipped at 1 or max bound of 1 or more" if with_tail else "max bound of 1 or more"
    if vacuous == checked:
        return f"bounds: {checked} checked ({which}), all of them vacuous (with {what}): none could be violated"
    verdict = f"{violated} violated, listed below" if violated else "none violated"
    if not vacuous:
        return f"bounds: {checked} checked ({which}), all of them could be violated, {verdict}"
    return (
        f"bounds: {checked} checked ({which}), {checked - vacuous} of them could be violated "
        f"(vacuous: {vacuous}, with {what}), {verdict}"
    )


def _costs(rows: Sequence[Row]) -> Table:
    title = "widths and cost: tokens, and pairs scored per token, means over seeds"
    summed = "pairs summed over draws"
    return _with_keys(
        title,
        rows,
        [
            Column("widest\nwidth", lambda row: number(row["max_width"]), "the largest drawn, mean over seeds"),
            Column(
                "its\nmedian",
                lambda row: number(row["max_width_median"]),
                "of the widest of s i.i.d. widths, by their law",
                needs="widest\nwidth",
            ),
            Column(
                "its 1 %\npoint",
                lambda row: number(row["max_width_upper_1pct"]),
                "what the widest exceeds with probability 1 %",
                needs="widest\nwidth",
            ),
            Column("longest\nblock", lambda row: f"{row['max_block']:,}", "over all seeds, cut off at n"),
            Column("blocks\nper draw", lambda row: number(row["blocks_per_draw"])),
            Column("draws\ncausal", lambda row: number(row["pairs_per_token_draws_causal"]), f"causal {summed}"),
            Column(
                "draws\nboth",
                lambda row: number(row["pairs_per_token_draws_bidirectional"]),
                f"{summed}, both directions",
            ),
            Column("union\ncausal", lambda row: number(row["pairs_per_token_union_causal"]), "distinct causal pairs"),
            Column(
                "union\nboth",
                lambda row: number(row["pairs_per_token_union_bidirectional"]),
                "distinct pairs, both directions",
            ),
        ],
        [],
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
    caption = "theory: -1/2 for i.i.d. draws" + (f"\n{few_seeds(rows[0])}" if few_seeds(rows[0]) else "")
    table = new_table(title, columns, caption, text_columns=len(keys))
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
    basis = gains[0]["samples_basis"].partition(" (")[0]
    return _with_keys(
        title,
        gains,
        [
            Column("spectral gain", lambda one: _interval(one, "spectral")),
            Column("max gain", lambda one: _interval(one, "max")),
            Column(
                "cost\ndraws", lambda one: number(one["cost_ratio_draws"]), "causal pairs of all draws over i.i.d.'s"
            ),
            Column("cost\nunion", lambda one: number(one["cost_ratio_union"]), "distinct causal pairs over i.i.d.'s"),
            Column(
                "same\nerror",
                lambda one: number(one["samples_for_same_error"]) + ("*" if one["samples_extrapolated"] else ""),
                f"i.i.d. draws with the same mean spectral error, by {basis} (*: beyond the measured s)",
            ),
        ],
        [],
        ["cost\ndraws", "cost\nunion"],
    )


def _interval(gain: Row, norm: str) -> str:
    return interval(gain[f"gain_{norm}"], gain[f"gain_{norm}_low"], gain[f"gain_{norm}_high"])
