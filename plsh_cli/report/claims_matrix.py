"""The claims about M~ and about attention outputs under it, from runs of `plsh approx` and `plsh attn-error`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scipy import stats

from plsh_cli.report.evidence import FAILS, HOLDS, UNDECIDED, Evidence, below, every, listed, span
from plsh_cli.report.library import Record
from plsh_cli.report.text import Row, seeds_text

#: The widest interval of a fitted exponent that says anything about a law.
SHARP = 0.25


def expectation(record: Record) -> Evidence | None:
    """Whether the mean spectral errors, with their intervals, lie below the bound on the expectation."""
    rows = [row for row in _approx(record) if row["bound_expectation"] is not None]
    if not rows:
        return None
    said = every(below(row["spectral_error"], row["spectral_error_ci95"], row["bound_expectation"]) for row in rows)
    ratios = span([row["bound_expectation_ratio"] for row in rows], "{:.2f}")
    seed = "" if rows[0]["seeds"] > 1 else "; one seed, no interval"
    return Evidence(record, said, f"{ratios} of the bound in {_cells(rows)}{seed}")


def rate(record: Record) -> Evidence | None:
    """Whether the fitted exponents of error against s, of i.i.d. draws, are -1/2."""
    if record.command != "approx":
        return None
    slopes = [one for one in record.summary["slopes"] if one["theory"] is not None and one["slope"] is not None]
    if not slopes:
        return None
    fits = [(one["slope"], one["slope_ci95"], one["seeds"]) for one in slopes]
    rows = [row for row in _approx(record) if row["sampler"] == "iid"]
    return Evidence(record, _is_half(fits), f"{_exponents(fits)} over {_cells(rows)}")


def tail(record: Record) -> Evidence | None:
    """Whether the tail bound is contradicted at the errors found; it says nothing where it is 1."""
    rows = [row for row in _approx(record) if row["tail_probability"] is not None]
    return _bound(record, rows, "tail", [row for row in rows if row["tail_probability"] < 1.0])


def max_norm(record: Record) -> Evidence | None:
    """Whether max |M~ - L*| stays below eps(s, n, delta); it says nothing where that is 1 or more."""
    rows = [row for row in _approx(record) if row["bound_max"] is not None]
    return _bound(record, rows, "max", [row for row in rows if row["bound_max"] < 1.0])


def output_bound(record: Record) -> Evidence | None:
    """Whether every row's output error lies within the theorem's bound."""
    found = [claim for claim in record.summary["claims"] if "rows" in claim] if record.command == "attn_error" else []
    if not found:
        return None
    one = found[0]
    text = (
        f"{one['rows']:,} rows, the largest error {one['largest_ratio']:.2f} of its bound; the bound is below "
        f"2 max ‖v‖, which holds anyway, in {100 * one['informative']:.3g} % of them; {_about_outputs(record)}"
    )
    return Evidence(record, HOLDS if one["met"] else FAILS, text)


def output_rate(record: Record) -> Evidence | None:
    """Whether the exponent of the relative output error against s, over all layers, is -1/2."""
    found = [one for one in record.summary["slopes"] if one["group"] == "all"] if record.command == "attn_error" else []
    if not found or found[0]["slope"] is None:
        return None
    one = found[0]
    fits = [(one["slope"], one["slope_ci95"], one["count"])]
    return Evidence(record, _is_half(fits), f"{_exponents(fits, one['over'])}; {_about_outputs(record)}")


def better_than_blocks(record: Record) -> Evidence | None:
    """Whether draws have a smaller output error than fixed blocks of as many pairs."""
    return _against(record, "fixed_blocks", "fixed blocks")


def better_than_window(record: Record) -> Evidence | None:
    """Whether draws have a smaller output error than exact ALiBi on the nearest keys, of as many pairs."""
    return _against(record, "window", "the window")


def stratified(record: Record) -> Evidence | None:
    """Whether the bootstrap intervals of the gain of stratified draws lie above 1."""
    if record.command != "approx":
        return None
    gains = [one for one in record.summary["gains"] if one["sampler"] == "stratified" and one["gain_spectral"]]
    if not gains:
        return None
    said = every(
        HOLDS if one["gain_spectral_low"] > 1 else FAILS if one["gain_spectral_high"] < 1 else UNDECIDED
        for one in gains
    )
    best, worst = (pick(gains, key=lambda one: one["gain_spectral"]) for pick in (max, min))
    parts = [
        f"{one['gain_spectral']:.2f} ({one['gain_spectral_low']:.2f} .. {one['gain_spectral_high']:.2f}) times smaller "
        f"at s = {one['num_samples']:,}"
        for one in ([worst] if best is worst else [worst, best])
    ]
    rows = [row for row in _approx(record) if row["sampler"] == "stratified"]
    text = f"spectral error {', '.join(parts)} (bootstrap 95 % intervals); {_cells(rows)}"
    return Evidence(record, said, text)


def _approx(record: Record) -> Sequence[Row]:
    return record.rows if record.command == "approx" else []


def _bound(record: Record, rows: Sequence[Row], name: str, telling: Sequence[Row]) -> Evidence | None:
    """A bound that holds with a probability: flagged where it was broken although that was less likely than delta."""
    if not rows:
        return None
    broken = [one for one in record.summary["flagged"] if one["bound"] == name]
    checked, delta = sum(row["seeds"] for row in telling), record.summary["delta"]
    if not checked and not broken:
        return Evidence(record, UNDECIDED, f"the bound is 1 or more, so that it says nothing, in {_cells(rows)}")
    text = (
        f"broken in {len(broken)} of {checked} draws of masks that could break it (allowed: {delta:g}); {_cells(rows)}"
    )
    chance = stats.binom.sf(len(broken) - 1, max(checked, len(broken)), delta) if broken else 1.0
    return Evidence(record, HOLDS if not broken else FAILS if chance < 0.025 else UNDECIDED, text)


def _against(record: Record, bias: str, name: str) -> Evidence | None:
    if record.command != "attn_error":
        return None
    whole = {(row["bias"], row["num_samples"]): row for row in record.rows if row["group"] == "all"}
    pairs = [
        (row, whole[bias, row["num_samples"]])
        for (of, size), row in whole.items()
        if of == "plsh" and (bias, size) in whole
    ]
    if not pairs:
        return None
    said = [
        below(row["output_error_relative"], row["output_error_relative_ci95"], other["output_error_relative"])
        for row, other in pairs
    ]
    ratios = span([row["output_error_relative"] / other["output_error_relative"] for row, other in pairs])
    return Evidence(record, every(said), f"{ratios} times the error of {name}; {_about_outputs(record)}")


def _is_half(fits: Sequence[tuple[float, float | None, int]]) -> str:
    """Whether all exponents are -1/2: 95 % intervals widened for their number (Bonferroni), one of them narrow."""
    known = [(slope, half, count) for slope, half, count in fits if half is not None and count > 1]
    if not known:
        return UNDECIDED
    level = 0.05 / (2 * len(known))
    for slope, half, count in known:
        wider = half * stats.t.ppf(1 - level, count - 1) / stats.t.ppf(0.975, count - 1)
        if abs(slope + 0.5) > wider:
            return FAILS
    return HOLDS if min(half for _, half, _ in known) <= SHARP else UNDECIDED


def _exponents(fits: Sequence[tuple[float, float | None, int]], over: str = "seeds") -> str:
    if len(fits) == 1:
        slope, half, count = fits[0]
        return f"exponent {slope:.2f}" + (f" ± {half:.2f} over {count} {over}" if half is not None else ", no interval")
    halves = [half for _, half, _ in fits if half is not None]
    text = f"{len(fits)} exponents from {span([slope for slope, _, _ in fits], '{:.2f}')}"
    return text + (f", ± {span(halves, '{:.2f}')}," if halves else ", no intervals,")


def _cells(rows: Sequence[Row]) -> str:
    """How many rows these are, and their n, s and seeds."""
    kernels = len({row["kernel"] for row in rows})
    what = f"{kernels} scales" if kernels > 1 else str(rows[0]["kernel"])
    return (
        f"{len(rows)} cell{'s' * (len(rows) != 1)}: {what}, n = {listed(row['n'] for row in rows)}, "
        f"s = {listed(row['num_samples'] for row in rows)}, {seeds_text(rows[0])}"
    )


def _about_outputs(record: Record) -> str:
    drawn: list[Any] = [row for row in record.rows if row["bias"] == "plsh" and row["group"] == "all"]
    texts = f"{drawn[0]['inputs']} text{'s' if drawn[0]['inputs'] > 1 else ''}"
    return (
        f"n = {drawn[0]['n']:,}, s = {listed(row['num_samples'] for row in drawn)}, {seeds_text(drawn[0])}, {texts}, "
        f"{len(record.summary['layers'])} layers"
    )
