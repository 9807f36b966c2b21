"""The table of a sweep of `plsh finetune` over s, from the sweep's rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from plsh_cli.report.eval_tables import BIAS_NAMES
from plsh_cli.report.text import Row, Sheet, few_seeds, mean_ci

#: The differences that rows have, and how their columns are headed.
OVER = {"over_alibi": "over exact ALiBi", "over_fixed_blocks": "over fixed blocks"}


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """One table, length by length: per bias, setting and s the perplexity and its paired differences."""
    summary = result["summary"]
    rows = sorted(result["rows"], key=lambda row: row["n"])
    over = [key for key in OVER if any(row[key] is not None for row in rows)]
    lines = [
        [
            f"{row['n']:,}",
            name(row["bias"], row["setting"]),
            "-" if row["num_samples"] is None else f"{row['num_samples']:,}",
            *_cells(row, over),
        ]
        for row in rows
    ]
    headers = ["n", "trained under", "s", "perplexity", *(OVER[key] for key in over)]
    ends = {index for index, (row, after) in enumerate(itertools.pairwise(rows)) if row["n"] != after["n"]}
    at = "several lengths" if summary["context"] is None else f"{summary['context']:,} tokens"
    title = (
        f"perplexity against s: {summary['model']} fine-tuned on {summary['data']} at {at}, "
        f"each under its own bias, {_seeds(summary)}"
    )
    return [Sheet(title, headers, lines, "\n".join(_caption(rows, summary, over)), 3, 2, ends)]


def name(bias: str, setting: str) -> str:
    """What a line is called: its bias, and what else was swept."""
    return f"{BIAS_NAMES[bias]}, {setting}" if setting else BIAS_NAMES[bias]


def _cells(row: Row, over: Sequence[str]) -> list[str]:
    """Perplexity and differences; a note where some of the seeds are missing."""
    if row["perplexity"] is None:
        return ["missing", *("-" for _ in over)]
    part = f" ({row['seeds']} of {row['jobs']})" if row["seeds"] < row["jobs"] else ""
    return [
        mean_ci(row["perplexity"], row["perplexity_ci95"]) + part,
        *("-" if row[key] is None else mean_ci(row[key], row[f"{key}_ci95"]) for key in over),
    ]


def _seeds(summary: Mapping[str, Any]) -> str:
    seeds = summary["seeds"]
    return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds))})"


def _caption(rows: Sequence[Row], summary: Mapping[str, Any], over: Sequence[str]) -> list[str]:
    """What the intervals are over, which ones are not there, and what is missing."""
    lines = []
    if any(row["perplexity_ci95"] is not None for row in rows):
        lines.append("± is the 95 % t interval over seeds, which change held-out text, data order and draws")
        single = any(row["seeds"] == 1 for row in rows)
        lines += ["no ±: a single seed, so no interval"] if single else []
        lines += [few_seeds(max(rows, key=lambda row: row["seeds"]))]
    else:
        lines.append("one seed, so no intervals")
    if over:
        lines.append("over ...: more than that baseline's perplexity, paired by seed; below 0 is better")
    lines += [sentence for sentence in absent(summary, rows)]
    failed = summary["failed"]
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        lines.append(f"{len(failed)} of {summary['jobs']} jobs failed: {failed[0]}{more}")
    return [line for line in lines if line]


def absent(summary: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """A sentence for each of exact ALiBi and fixed blocks that the sweep does not have, and why."""
    there = {row["bias"] for row in rows if row["perplexity"] is not None}
    return [
        f"{BIAS_NAMES[bias]} is missing: " + ("its jobs failed" if bias in summary["baselines"] else "not asked for")
        for bias in ("alibi", "fixed_blocks")
        if bias not in there
    ]
