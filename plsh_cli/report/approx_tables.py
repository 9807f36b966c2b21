"""The tables of `plsh approx` for the terminal; rows.csv has every column and every kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

from plsh_cli.report.text import (
    TABLE_WIDTH,
    Row,
    Sheet,
    evenly,
    few_seeds,
    interval,
    kernel_name,
    mean_ci,
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


def tables(result: Mapping[str, Any]) -> list[RenderableType]:
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


@dataclass(frozen=True)
class Fitted:
    """A table of rows under their keys, without empty columns; its caption explains the columns that it has.

    Columns named in `expendable` are left out, in that order, until it fits, and the caption says so. Where that is
    not enough, none is left out and it is printed as several tables.
    """

    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    notes: Sequence[str]
    expendable: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.sheet(min(options.max_width, TABLE_WIDTH))

    def sheet(self, width: int) -> Sheet:
        """The table for this many characters."""
        filled = [column for column in self.columns if any(column.cell(row) != "-" for row in self.rows)]
        for count in range(len(self.expendable) + 1):
            names = {column.name for column in filled} - set(self.expendable[:count])
            shown = [
                column for column in filled if column.name in names and (not column.needs or column.needs in names)
            ]
            sheet = self._sheet(shown, [column.plain_name for column in filled if column not in shown])
            if sheet.fits(width):
                return sheet
        names = {column.name for column in filled}
        shown = [column for column in filled if not column.needs or column.needs in names]
        return self._sheet(shown, [column.plain_name for column in filled if column not in shown])

    def _sheet(self, columns: Sequence[Column], left_out: Sequence[str]) -> Sheet:
        keys = _keys(self.rows)
        every = [
            *keys,
            ("s", lambda row: f"{row['num_samples']:,}"),
            *((column.name, column.cell) for column in columns),
        ]
        last = self.rows[-1]["num_samples"]
        return Sheet(
            self.title,
            [name for name, _ in every],
            [[cell(row) for _, cell in every] for row in self.rows],
            _caption(columns, left_out, self.notes),
            keys=len(keys) + 1,
            text_columns=len(keys),
            section_ends={index for index, row in enumerate(self.rows) if row["num_samples"] == last},
        )


def _caption(shown: Sequence[Column], left_out: Sequence[str], notes: Sequence[str]) -> str:
    meanings = "; ".join(f"{column.plain_name}: {column.meaning}" for column in shown if column.meaning)
    dropped = f"left out here: {', '.join(left_out)}; all in rows.csv" if left_out else ""
    return "\n".join(line for line in (meanings, *notes, dropped) if line)


def _errors(rows: Sequence[Row], summary: Row, left_out: str) -> Fitted:
    first = rows[0]
    size = f"n={first['n']:,}, " if len({row["n"] for row in rows}) == 1 else ""
    sampler = f"{first['sampler']} draws, " if len({row["sampler"] for row in rows}) == 1 else ""
    spread = "± is the 95 % t interval over seeds" if first["seeds"] > 1 else "one seed, so no interval"
    title = f"M~ against L*: {size}{sampler}{first['pitch']} widths, means over {seeds_text(first)}, {spread}{left_out}"
    return Fitted(
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
        ["s for\n10 %", "tail\nprob."],
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


def _costs(rows: Sequence[Row]) -> Fitted:
    title = "widths and cost: tokens, and pairs scored per token, means over seeds"
    summed = "pairs summed over draws"
    return Fitted(
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


def _slopes(rows: Sequence[Row], summary: Row) -> Sheet:
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
    lines = []
    for name in named:
        pair = [slopes[name["kernel"], name["n"], name["sampler"], norm] for norm in ("spectral", "max")]
        notes = "; ".join(dict.fromkeys(one["note"] for one in pair if one["note"]))
        means = [mean_ci(one["slope"], one["slope_ci95"]) for one in pair]
        lines.append([*(cell(name) for _, cell in keys), *means, number(pair[0]["theory"], 1), notes])
    return Sheet(title, columns, lines, caption, keys=len(keys), text_columns=len(keys))


def _flagged(summary: Row) -> Sheet:
    title = "violated bounds, with the probability that the bound allowed"
    columns = ["kernel", "n", "s", "seed", "bound", "measured", "limit", "allowed\nprobability"]
    lines = [
        [
            str(one["kernel"]),
            f"{one['n']:,}",
            f"{one['num_samples']:,}",
            str(one["seed"]),
            str(one["bound"]),
            number(one["measured"]),
            number(one["limit"]),
            number(one["allowed_probability"], 2),
        ]
        for one in summary["flagged"]
    ]
    return Sheet(title, columns, lines, keys=4)


def _gains(rows: Sequence[Row], summary: Row) -> Fitted:
    sigma = {row["kernel"]: row["sigma"] for row in rows}
    gains = [{**one, "sigma": sigma[one["kernel"]]} for one in summary["gains"] if one["kernel"] in sigma]
    samplers = list(dict.fromkeys(one["sampler"] for one in gains))
    title = (
        f"gain of {' and '.join(samplers)} draws: i.i.d. error over theirs at the same s, "
        f"means over {gains[0]['seeds']} seeds (bootstrap 95 % interval)"
    )
    basis = gains[0]["samples_basis"].partition(" (")[0]
    return Fitted(
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
