"""The table of a sweep over s: per line (a bias with what else was swept) and length, means over seeds.

Fields of a row:
- bias, setting (what else was swept, as "sampler=iid"; empty where nothing was), num_samples (null without draws)
- n (tokens of a window), jobs (seeds asked for), seeds (those that are there: others failed), seed_first
- perplexity, perplexity_ci95: mean and half-width of the 95 % t interval over seeds; null for no seed, the interval
  also for one. bits_per_byte likewise.
- over_alibi, over_alibi_ci95, over_alibi_seeds: perplexity less that of exact ALiBi with the same seed and setting:
  mean, half-width and number of pairs; null where there is no pair. over_fixed_blocks likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plsh_cli.stats import t_interval

#: What the lines are compared with, where the sweep has it.
COMPARED = ("alibi", "fixed_blocks")


@dataclass(frozen=True)
class Cell:
    """One job of a sweep and what it measured: by length, the row of its result under its own bias; none: it failed."""

    bias: str
    setting: tuple[tuple[str, str], ...]
    num_samples: int | None
    seed: int
    by_length: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def line(self) -> tuple[str, tuple[tuple[str, str], ...], int | None]:
        """What its seeds are averaged over."""
        return self.bias, self.setting, self.num_samples


def own_rows(rows: Sequence[Mapping[str, Any]], bias: str) -> dict[int, Mapping[str, Any]]:
    """By length, the rows of weights fine-tuned and scored under this bias that have a finite perplexity."""
    return {
        row["n"]: row
        for row in rows
        if row["stage"] == "after"
        and row["own"]
        and row["adapter"] == row["bias"] == bias
        and row["perplexity"] is not None
    }


def table(cells: Sequence[Cell]) -> list[dict[str, object]]:
    """The rows: lines in the order of their first job, of each every length that any job of its setting has."""
    found = []
    for line in dict.fromkeys(cell.line for cell in cells):
        group = [cell for cell in cells if cell.line == line]
        lengths = {n for cell in group for n in cell.by_length} or {n for cell in cells for n in cell.by_length}
        found += [_row(group, n, cells) for n in sorted(lengths)]
    return found


def setting_text(setting: Sequence[tuple[str, str]]) -> str:
    """What else was swept, as text: the last part of every key with its value."""
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in setting)


def _row(group: Sequence[Cell], n: int, cells: Sequence[Cell]) -> dict[str, object]:
    first, there = group[0], [cell for cell in group if n in cell.by_length]
    row: dict[str, object] = {
        "bias": first.bias,
        "setting": setting_text(first.setting),
        "num_samples": first.num_samples,
        "n": n,
        "jobs": len(group),
        "seeds": len(there),
        "seed_first": min((cell.seed for cell in there), default=None),
    }
    for key in ("perplexity", "bits_per_byte"):
        row |= _mean(key, [cell.by_length[n][key] for cell in there if cell.by_length[n][key] is not None])
    for name in COMPARED:
        differences = _differences(there, _beside(first, name, cells), n) if name != first.bias else []
        row |= _mean(f"over_{name}", differences) | {f"over_{name}_seeds": len(differences)}
    return row


def _beside(cell: Cell, name: str, cells: Sequence[Cell]) -> dict[int, Cell]:
    """The cells of a baseline with this cell's setting, as far as the baseline has its keys, by seed."""
    return {other.seed: other for other in cells if other.bias == name and set(other.setting) <= set(cell.setting)}


def _differences(there: Sequence[Cell], others: Mapping[int, Cell], n: int) -> list[float]:
    pairs = [(cell, others[cell.seed]) for cell in there if cell.seed in others]
    return [
        cell.by_length[n]["perplexity"] - other.by_length[n]["perplexity"]
        for cell, other in pairs
        if n in other.by_length
    ]


def _mean(key: str, values: Sequence[float]) -> dict[str, object]:
    mean, half = t_interval(values) if values else (None, None)
    return {key: mean, f"{key}_ci95": half}
