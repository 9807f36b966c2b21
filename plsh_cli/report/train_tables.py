"""The tables of `plsh train`: one run's evaluation, or a study's comparison with its claims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from plsh_cli.report.eval_tables import unusual_draws
from plsh_cli.report.text import Row, Sheet, mean_ci, number, seeds_text


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Per bias and length what the model reaches; of a study, per variant, and then its claims."""
    if result["summary"].get("kind") == "study":
        return [_study(result), _claims(result["summary"])]
    return [_run(result["rows"], result["summary"])]


def _run(rows: list[Row], summary: Mapping[str, Any]) -> Sheet:
    headers = ["scored under", "n", "bits/byte", "perplexity", "top-1", "top-10", "top-100", "MRR", "entropy", "tokens"]
    lines = [
        [
            _name(row),
            f"{row['n']:,}",
            mean_ci(row["bits_per_byte"], row["bits_per_byte_ci95"]),
            number(row["perplexity"]),
            *(number(row[key]) for key in ("top1", "top10", "top100", "mrr", "entropy")),
            f"{row['tokens']:,}",
        ]
        for row in rows
    ]
    ends = {index for index, (row, after) in enumerate(itertools.pairwise(rows)) if row["own"] != after["own"]}
    title = (
        f"{summary['model']} ({summary['parameters']:,} parameters) trained under {trained(summary)} at "
        f"{summary['context']:,} tokens: {summary['steps']:,} steps, {summary['tokens']:,} tokens"
    )
    caption = (
        f"held-out documents; ± is the 95 % t interval over them; the model kept is {summary['model_kept']}; "
        f"attention: {summary['attention_backend']}; entropy in nats"
    )
    return Sheet(title, headers, lines, caption, section_ends=ends)


def _study(result: Mapping[str, Any]) -> Sheet:
    rows, summary = result["rows"], result["summary"]
    lengths = sorted({row["n"] for row in rows})
    groups: dict[tuple[str, bool, str], dict[int, Row]] = {}
    for row in rows:
        groups.setdefault((row["variant"], row["own"], row["bias"]), {})[row["n"]] = row
    lines = []
    for (variant, own, bias), by_length in groups.items():
        first = by_length[lengths[0]]
        over = mean_ci(first["bits_over_alibi"], first["bits_over_alibi_ci95"])
        cells = [mean_ci(by_length[n]["bits_per_byte"], by_length[n]["bits_per_byte_ci95"]) for n in lengths]
        lines.append([variant, "its own" if own else f"exact {bias}", *cells, over])
    headers = ["trained with", "scored under", *(f"n = {n:,}" for n in lengths), f"over alibi, n = {lengths[0]:,}"]
    spread = "± is the 95 % t interval over seeds" if summary["seeds"] > 1 else "one seed, so no interval"
    title = (
        f"bits per byte on held-out {summary['data']} text: {summary['model']} trained at {summary['context']:,} "
        f"tokens, {summary['steps']} steps of {summary['tokens_per_step']:,} tokens, {seeds_text(rows[0])}, {spread}"
    )
    return Sheet(
        title,
        headers,
        lines,
        "over alibi: paired by seed, both under their own bias or as said",
        keys=2,
        text_columns=2,
    )


def _claims(summary: Mapping[str, Any]) -> Sheet:
    lines = [
        [str(claim["of"]), str(claim["claim"]), mean_ci(claim["value"], claim["ci95"]), str(claim["verdict"])]
        for claim in summary["claims"]
    ]
    caption = (
        "difference: the claimed side is below 0, a margin that the claim names is taken off; held or not held only "
        "where the whole 95 % t interval is on one side"
    )
    return Sheet(
        "what this says", ["of", "claim", "difference (bits/byte)", "verdict"], lines, caption, keys=2, text_columns=2
    )


def _name(row: Row) -> str:
    drawn = " ".join(["", f"s={row['num_samples']}", row["sampler"], *unusual_draws(row)]) if row["num_samples"] else ""
    return f"{row['bias']}{drawn}" if row["own"] else f"exact {row['bias']}{drawn}"


def trained(summary: Mapping[str, Any]) -> str:
    """The bias that a run trained under, with its draws."""
    how = ", ".join([str(summary["sampler"]), *unusual_draws(summary)])
    drawn = f" s={summary['num_samples']} ({how})" if summary["num_samples"] else ""
    return f"{summary['bias']}{drawn}"
