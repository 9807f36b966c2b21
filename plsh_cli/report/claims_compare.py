"""The claims about comparisons at equal cost, from runs of `plsh compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plsh_cli.report.compare_tables import at_its_own, subject
from plsh_cli.report.evidence import FAILS, HOLDS, UNDECIDED, Evidence, every, listed
from plsh_cli.report.library import Record
from plsh_cli.report.text import Row, number

_OF_ROW = {"better": HOLDS, "worse": FAILS, "undecided": UNDECIDED}


def blocks(record: Record) -> Evidence | None:
    """Whether draws are better than fixed blocks of the same cost."""
    return _against(record, "fixed_blocks")


def window(record: Record) -> Evidence | None:
    """Whether draws are better than exact ALiBi that is cut to the same cost."""
    return _against(record, "window")


def _against(record: Record, baseline: str) -> Evidence | None:
    """Every measure, s and length whose costs agree within 2 %, by the run's own paired tests."""
    if record.command != "compare":
        return None
    rows = [row for row in record.rows if (row["method"], row["baseline"]) == ("plsh", baseline) and row["matched"]]
    if not rows:
        return None
    said = [_OF_ROW[row["verdict"]] for row in rows]
    values = [row["p_value"] for row in rows if row["p_value"] is not None]
    first = rows[0]
    text = (
        f"better in {said.count(HOLDS)} of {len(said)} paired comparisons at equal cost ({first['cost']}), worse in "
        f"{said.count(FAILS)}; {first['level']}: {', '.join(dict.fromkeys(str(row['measure']) for row in rows))}; "
        f"s = {listed(row['num_samples'] for row in rows)}, {first['pairs']} pairs each; "
        f"{subject(rows, record.summary)}"
    )
    text += f"; largest p {number(max(values), 2)}" if values else ""
    return Evidence(record, every(said), text + _own_setting(rows, record.summary))


def _own_setting(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """Where the baseline has less error at less cost with its own setting than with the matched one: equal cost is not
    its best then."""
    own = summary.get("reference")
    if not own:
        return ""
    measures = [
        measure
        for measure in dict.fromkeys(row["measure"] for row in rows)
        if at_its_own(own, [row for row in rows if row["measure"] == measure])
    ]
    if not measures:
        return ""
    return f"; at its own {own['knob']} {rows[0]['baseline']} has less error at less cost ({', '.join(measures)})"
