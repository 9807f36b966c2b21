"""What an experiment returns: plain numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """Rows are flat records (they become result.json `rows` and rows.csv); summary holds fits and flags; timing holds
    seconds and rates, which are not compared by `plsh rerun`."""

    rows: list[dict[str, object]]
    summary: dict[str, object] = field(default_factory=dict)
    timing: dict[str, object] = field(default_factory=dict)
