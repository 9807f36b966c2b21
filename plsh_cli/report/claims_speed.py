"""The claims about speed and memory, from runs of `plsh bench`."""

from __future__ import annotations

from collections.abc import Sequence

from plsh_cli.report.evidence import FAILS, HOLDS, UNDECIDED, Evidence, below, every
from plsh_cli.report.library import Record
from plsh_cli.report.text import Row, mean_ci, number

#: What counts as growing about linearly.
LINEAR = 1.2
CUT = 0.001
_CASE = ("grid", "n", "dtype", "causal", "passes")


def faster(record: Record) -> Evidence | None:
    """Whether positional LSH takes less time than SDPA with the ALiBi mask at the greatest length that has both."""
    return _times(record, [row for row in _timed(record) if row["backend"] == "sdpa_mask" and row["bias"] == "alibi"])


def faster_than_window(record: Record) -> Evidence | None:
    """Whether it takes less time than the fastest exact ALiBi without the weights below 0.001."""
    return _times(record, [row for row in _timed(record) if row["bias"] == "window" and row["eps"] == CUT])


def growth(record: Record) -> Evidence | None:
    """Whether the exponent of the time against n lies below 1.2, for every method with draws that was fitted."""
    fits = record.summary["exponents"] if record.command == "bench_attention" else []
    fits = [fit for fit in fits if "plsh" in fit["method"].split()]
    if not fits:
        return None
    said = every(below(fit["exponent"], fit["exponent_ci95"], LINEAR) for fit in fits)
    worst = max(fits, key=lambda fit: fit["exponent"])
    which = f"the largest of {len(fits)} exponents" if len(fits) > 1 else "exponent"
    text = (
        f"{which} {mean_ci(worst['exponent'], worst['exponent_ci95'])} over rounds "
        f"({worst['method']}, n = {worst['n_first']:,} to {worst['n_last']:,})"
    )
    return Evidence(record, said, text)


def targets(record: Record) -> Evidence | None:
    """Whether every target that applies at the sizes of this run was met; medians of one run, without intervals."""
    if record.command == "bench_attention":
        found: Sequence[Row] = record.summary["claims"]
    elif record.command == "bench_matrix":
        found = [row for row in record.rows if row["met"] is not None]
    else:
        return None
    if not found:
        return None
    missed = [claim for claim in found if not claim["met"]]
    text = f"{len(found) - len(missed)} of {len(found)} met, medians of one run, no intervals"
    if missed:
        text += f"; missed: {'; '.join(_missed(claim) for claim in missed)}"
    return Evidence(record, FAILS if missed else HOLDS, text)


def _missed(claim: Row) -> str:
    where = [] if claim["n"] is None else [f"n = {claim['n']:,}"]
    where += [str(claim[field]) for field in ("dtype", "passes") if claim.get(field)]
    at = f" at {', '.join(where)}" if where else ""
    measured = f"{number(claim['measured'])} {claim['unit']}"
    return f"{claim['claim']}{at}: {measured}, target {claim['comparison']} {claim['target']:g}"


def _timed(record: Record) -> list[Row]:
    rows = record.rows if record.command == "bench_attention" else []
    return [row for row in rows if row["skipped"] is None]


def _times(record: Record, others: Sequence[Row]) -> Evidence | None:
    """Positional LSH, by its fastest method, against others in the largest case that has both.

    It decides where all rounds of one are faster than all rounds of the other.
    """
    drawn = [row for row in _timed(record) if row["bias"] == "plsh"]
    cases = {_case(row) for row in drawn} & {_case(row) for row in others}
    forward = [case for case in cases if case[-1] == "forward"] or list(cases)
    if not forward:
        return None
    case = max(forward, key=lambda case: (case[1], case[2] == "float32", case[3]))
    mine, other = (
        min((row for row in rows if _case(row) == case), key=lambda row: row["seconds"]) for rows in (drawn, others)
    )
    if mine["seconds_max"] < other["seconds_min"]:
        said = HOLDS
    else:
        said = FAILS if mine["seconds_min"] > other["seconds_max"] else UNDECIDED
    if mine["repeats"] < 2:
        said = UNDECIDED
    text = (
        f"{number(other['seconds'] / mine['seconds'])} times as fast as {other['method']} at n = {mine['n']:,}, "
        f"{mine['dtype']}, {'causal' if mine['causal'] else 'bidirectional'}, {mine['passes']} ({mine['method']}; "
        f"medians of {mine['repeats']} rounds)"
    )
    return Evidence(record, said, text)


def _case(row: Row) -> tuple[object, ...]:
    return tuple(row[key] for key in _CASE)
