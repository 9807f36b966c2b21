"""The tables of `plsh bench attention` for the terminal; rows.csv has every field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plsh_cli.report.text import Row, Sheet, mean_ci, number

RATIOS = {
    "SDPA\n+ mask": "faster_than_sdpa_mask",
    "Flex-\nAttention": "faster_than_flex",
    "ALiBi cut\nat 0.001": "faster_than_window",
    "fixed\nblocks": "faster_than_fixed_blocks",
    "same,\ndense": "faster_than_dense",
}
UNITS = {"times faster": "× faster", "times the time": "× the time", "of torch.mm": " of torch.mm"}
SIGNS = {">=": "≥", "<=": "≤"}
CAPTION = (
    "Left of the time: how many times faster than SDPA with the ALiBi mask made beforehand, the fastest FlexAttention, "
    "the fastest exact ALiBi cut at 0.001, the fastest fixed blocks, and exact ALiBi by the same backend. Error: "
    "‖a − b‖ / ‖b‖ against exact ALiBi. mm: useful FLOPs as a share of torch.mm's rate in the same rounds (above 100: "
    "products of small tiles are faster than torch.mm of large matrices, or another program held the processor). "
    "KB per token: peak memory beside inputs and gradients, where it was measured (bench.memory). Prepared: draws, "
    "tables, masks, compilation; once, not in the time."
)


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Claims where targets apply, the ratios of every case, growth exponents, and what was skipped."""
    rows, summary = result["rows"], result["summary"]
    sheets = [_claims(summary["claims"])] if summary["claims"] else []
    timed = [row for row in rows if row["skipped"] is None]
    groups = list(groups_of(timed))
    sheets += [_ratios(group, CAPTION if group is groups[-1] else "") for group in groups]
    if summary["exponents"]:
        sheets.append(_exponents(summary["exponents"]))
    skipped = [row for row in rows if row["skipped"] is not None]
    return [*sheets, _skipped(skipped)] if skipped else sheets


def groups_of(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows of each grid, type, causality and pass, over all lengths."""
    keys = list(dict.fromkeys(_group(row) for row in rows))
    for key in keys:
        yield [row for row in rows if _group(row) == key]


def group_text(row: Row) -> str:
    """What the rows of a group have in common: "float32, causal, forward"."""
    return f"{row['dtype']}, {'causal' if row['causal'] else 'bidirectional'}, {row['passes']}"


def _group(row: Row) -> tuple[object, ...]:
    return tuple(row[key] for key in ("grid", "dtype", "causal", "passes"))


def _ratios(rows: list[Row], caption: str) -> Sheet:
    first = rows[0]
    batch = f", batch {first['batch']}" if first["batch"] > 1 else ""
    title = (
        f"{group_text(first)}, {first['heads']} heads of {first['head_dim']}{batch}, {first['threads']} threads: "
        f"times faster than …; medians of {first['repeats']} interleaved rounds"
    )
    shown = {name: key for name, key in RATIOS.items() if any(row[key] is not None for row in rows)}
    lines, ends = [], []
    for n in sorted({row["n"] for row in rows}):
        for row in sorted((row for row in rows if row["n"] == n), key=lambda row: row["seconds"]):
            lines.append([f"{n:,}", _method(row), *(number(row[key]) for key in shown.values()), *_facts(row)])
        ends.append(len(lines) - 1)
    facts = ["time\n(ms)", "relative\nerror", "mm\n(%)", "KB per\ntoken", "prepared\n(s)"]
    return Sheet(title, ["n", "method", *shown, *facts], lines, caption, keys=2, text_columns=2, section_ends=ends[:-1])


def _method(row: Row) -> str:
    exact = f", exact: {row['exact_heads']}" if row["exact_heads"] else ""
    ran = f" ({row['ran']})" if row["backend"] == "auto" else ""
    return f"{row['method']}{ran}{exact}"


def _facts(row: Row) -> list[str]:
    used = row["extra_bytes_per_token"]
    share = row["matmul_share"]
    return [
        number(1000 * row["seconds"]),
        number(row["output_error_relative"], 2),
        "-" if share is None else f"{100 * share:.0f}",
        "-" if used is None else f"{used / 1000:,.1f}",
        number(row["prepare_seconds"], 2),
    ]


def _claims(claims: Sequence[Row]) -> Sheet:
    lines = [
        [
            str(row["claim"]),
            "-" if row["n"] is None else f"{row['n']:,}",
            str(row["dtype"]),
            str(row["passes"]),
            _with_unit(row["measured"], row["unit"]),
            f"{SIGNS[row['comparison']]} {row['target']:g}",
            "yes" if row["met"] else "NO",
        ]
        for row in claims
    ]
    return Sheet("targets", ["claim", "n", "type", "pass", "measured", "target", "met"], lines)


def _with_unit(value: float, unit: str) -> str:
    if unit == "exponent":
        return number(value)
    return f"{number(value)}{UNITS.get(unit, f' {unit}')}"


def _exponents(fits: Sequence[Row]) -> Sheet:
    lines = [
        [
            str(fit["method"]),
            group_text(fit),
            f"{fit['n_first']:,} - {fit['n_last']:,}",
            mean_ci(fit["exponent"], fit["exponent_ci95"]),
        ]
        for fit in fits
    ]
    spread = (
        "± is the 95 % t interval over rounds" if fits[0]["exponent_ci95"] is not None else "one round: no interval"
    )
    title = f"growth of the time with n: exponent p of n^p; {spread}"
    return Sheet(title, ["method", "case", "n", "exponent"], lines, text_columns=2)


def _skipped(rows: Sequence[Row]) -> Sheet:
    lines = [[str(row["method"]), f"n={row['n']:,}, {group_text(row)}", str(row["skipped"])] for row in rows]
    return Sheet("not timed", ["method", "case", "note"], lines, text_columns=3)
