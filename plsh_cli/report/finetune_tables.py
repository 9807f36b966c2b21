"""The table of `plsh finetune`: what the model reaches before and after, under each bias and at each length."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from plsh_cli.report.eval_tables import BIAS_NAMES, key_of, labels
from plsh_cli.report.text import Row, Sheet, interval, mean_ci, number
from plsh_cli.report.train_tables import trained


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """One table: per weights, bias and length the perplexity with its interval, bits per byte, top-1 and entropy."""
    rows, summary = result["rows"], result["summary"]
    named = names(rows)
    lines = [
        [
            weights(row, summary),
            named[name_key(row)],
            f"{row['n']:,}",
            interval(row["perplexity"], row["perplexity_low"], row["perplexity_high"]),
            mean_ci(row["bits_per_byte"], row["bits_per_byte_ci95"]),
            number(row["top1"]),
            number(row["entropy"]),
            f"{row['tokens']:,}",
        ]
        for row in rows
    ]
    headers = ["weights", "scored under", "n", "perplexity", "bits/byte", "top-1", "entropy", "tokens"]
    ends = {
        index
        for index, (row, after) in enumerate(itertools.pairwise(rows))
        if weights(row, summary) != weights(after, summary)
    }
    return [Sheet(_title(summary), headers, lines, _caption(rows, summary), 3, 2, ends)]


def names(rows: Sequence[Row]) -> dict[tuple[Any, ...], str]:
    """How each bias of the rows is called; which one the weights were trained under is said elsewhere."""
    return labels([{**row, "own": False} for row in rows])


def name_key(row: Row) -> tuple[Any, ...]:
    """The key of a row in `names`."""
    return key_of({**row, "own": False})


def weights(row: Row, summary: Mapping[str, Any]) -> str:
    """Which weights a row scores: before, after, or after a baseline's own fine-tuning."""
    if row["stage"] == "before":
        return "before"
    return "after" if row["adapter"] == summary["bias"] else f"after {BIAS_NAMES[row['adapter']]}"


def missing(rows: Sequence[Row]) -> str:
    """A sentence about intervals that are not there, or leave something out; empty where there is nothing to say."""
    without = [row for row in rows if row["perplexity_low"] is None]
    if len(without) == len(rows):
        return "no intervals: too little text was scored, one block of tokens"
    said = "no interval in brackets: too little text was scored there, one block of tokens" if without else ""
    if any(row["seeds"] == 1 for row in rows if row["perplexity_low"] is not None):
        said += "; " if said else ""
        said += "positional LSH under one set of draws, whose noise its intervals leave out"
    return said


def _title(summary: Mapping[str, Any]) -> str:
    lora, all_of_them = summary["lora"], f"{summary['parameters']:,} parameters"
    how = f"LoRA of rank {lora['r']}, {lora['trainable']:,} of {all_of_them}" if lora else f"all {all_of_them}"
    return (
        f"{summary['model']} fine-tuned under {trained(summary)} at {summary['context']:,} tokens ({how}): "
        f"{summary['steps']:,} steps, {summary['tokens']:,} tokens"
    )


def _caption(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    baselines = [weights(row, summary) for row in rows if row["stage"] == "after" and row["adapter"] != summary["bias"]]
    some = any(row["perplexity_low"] is not None for row in rows)
    lines = [
        "in brackets and ±: 95 % t interval over held-out documents, or blocks of tokens where they are fewer than five"
        if some
        else "",
        missing(rows),
        "after NAME: other weights, fine-tuned in the same way under that bias" if baselines else "",
        f"the model kept is {summary['model_kept']}; attention: {summary['attention_backend']}; entropy in nats",
    ]
    return "\n".join(line for line in lines if line)
