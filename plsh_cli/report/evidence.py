"""What one run says about a claim, and the few rules by which an interval decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plsh_cli.report.library import Record

HOLDS, FAILS, UNDECIDED, NOT_MEASURED = "holds", "does not hold", "undecided", "not measured"
VERDICTS = (HOLDS, FAILS, UNDECIDED, NOT_MEASURED)


@dataclass(frozen=True)
class Evidence:
    """One run's word on a claim: its verdict, and the measurement as a text with n, seeds and interval."""

    record: Record
    verdict: str
    text: str


def below(value: float, half: float | None, limit: float) -> str:
    """Whether a value with this half-width lies below a limit: undecided where its interval holds it, or has none."""
    if half is None or abs(value - limit) <= half:
        return UNDECIDED
    return HOLDS if value < limit else FAILS


def every(verdicts: Iterable[str]) -> str:
    """Of a claim about several cells: holds where all hold, does not where any fails, else undecided."""
    said = list(verdicts)
    if FAILS in said:
        return FAILS
    return HOLDS if said and all(one == HOLDS for one in said) else UNDECIDED


def listed(numbers: Iterable[int]) -> str:
    """Distinct whole numbers in order: "10, 20 and 40", or their ends where they are many."""
    found = [f"{number:,}" for number in sorted(set(numbers))]
    if len(found) > 6:
        return f"{found[0]} to {found[-1]}"
    return " and ".join(part for part in (", ".join(found[:-1]), *found[-1:]) if part)


def span(values: Sequence[float], text: str = "{:.3g}") -> str:
    """The smallest and largest value as text: "0.10 to 0.21", or the one value."""
    low, high = text.format(min(values)), text.format(max(values))
    return low if low == high else f"{low} to {high}"
