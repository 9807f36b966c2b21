"""The tables of `plsh eval` for the terminal; rows.csv has every field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plsh_cli.report.text import Row, Sheet, interval, mean_ci, number

BIAS_NAMES = {
    "plsh": "positional LSH",
    "alibi": "exact ALiBi",
    "window": "window",
    "fixed_blocks": "fixed blocks",
    "none": "no bias",
    "original": "original",
}


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Perplexity per bias and length, then the other measures, losses by left text, and tasks where there are any."""
    rows, summary = result["rows"], result["summary"]
    sheets = [_perplexity(rows, summary), _measures(rows), _positions(summary)]
    return [*sheets, _tasks(summary)] if summary["tasks"] else sheets


def labels(rows: Sequence[Row]) -> dict[tuple[Any, ...], str]:
    """How each bias of the rows is called, in their order; draws and sampler only where they tell it from others."""
    keys = list(dict.fromkeys(key_of(row) for row in rows))
    kinds = {key[3:5] for key in keys if key[2] is not None}
    named = {}
    for key in keys:
        bias, own, size, sampler, pitch, *unusual = key
        text = BIAS_NAMES[bias]
        if size is not None:
            text += f", s={size}" + (f", {sampler}, {pitch} widths" if len(kinds) > 1 else "")
        text += "".join(f", {one}" for one in unusual)
        named[key] = text + (" (as trained)" if own and bias != "original" else "")
    return named


def key_of(row: Row) -> tuple[Any, ...]:
    """What tells one bias of a result from another."""
    return row["bias"], row["own"], row["num_samples"], row["sampler"], row["pitch"], *unusual_draws(row)


def unusual_draws(one: Row) -> list[str]:
    """Kernel and merge of draws, where they are not alibi and lse; runs of earlier versions do not say them."""
    usual = {"kernel": "alibi", "merge": "lse"}
    return [f"{key}={one[key]}" for key, value in usual.items() if one.get(key) not in (None, value)]


def _perplexity(rows: Sequence[Row], summary: Mapping[str, Any]) -> Sheet:
    lengths, named = summary["lengths"], labels(rows)
    found = {(key_of(row), row["n"]): row for row in rows}
    lines = [
        [
            text,
            *(
                interval(row["perplexity"], row["perplexity_low"], row["perplexity_high"])
                for row in (found[key, n] for n in lengths)
            ),
        ]
        for key, text in named.items()
    ]
    caption = f"{summary['model']} on {summary['text']}, {scored_text(summary)}\n{_intervals(rows, summary)}"
    title = f"perplexity of a token given a window of n tokens, {summary['windows']} windows"
    return Sheet(title, ["bias", *(f"n = {n:,}" for n in lengths)], lines, caption)


def scored_text(summary: Mapping[str, Any]) -> str:
    """How many tokens were scored, and whether they are the same at every length."""
    counts = summary["scored_tokens"]
    if summary["windows"] == "matched":
        return f"the same {next(iter(counts.values())):,} tokens at every n"
    return "scored tokens: " + ", ".join(f"{count:,} at n={int(n):,}" for n, count in counts.items())


def interval_text(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """What the intervals are over, for captions and figures."""
    text = f"95 % CI over {summary['clusters']} {summary['interval_over']}"
    sets = max((row["seeds"] for row in rows if row["seeds"]), default=0)
    if sets == 0:
        return text
    return f"{text}, of draws also {sets} sets" if sets > 1 else f"{text}; noise of draws not included"


def _intervals(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    clusters, what = summary["clusters"], summary["interval_over"]
    text = f"in brackets and ±: {interval_text(rows, summary)}" if clusters > 1 else "one block, no intervals"
    if what == "blocks" and clusters > 1:
        text += ", about these texts only"
    seeds = {(row["seed_first"], row["seeds"]) for row in rows if row["seeds"]}
    if not seeds:
        return text
    if clusters > 1 and max(count for _, count in seeds) == 2:
        text += "; 2 sets: their part has 1 degree of freedom"
    first, count = min(seeds)
    drawn = (
        f"seed {first}" if count == 1 else f"the mean over {count} sets of draws (seeds {first}-{first + count - 1})"
    )
    return f"{text}; positional LSH: {drawn}"


def _measures(rows: Sequence[Row]) -> Sheet:
    named, paired = labels(rows), any(row.get("nats_difference") is not None for row in rows)
    drawn = any(row["nats_draws_sd"] is not None for row in rows)
    headers = ["bias", "n", "nats/token", "bits/byte", "top-1", "top-10", "top-100", "MRR", "entropy"]
    headers += ["Δ nats"] * paired + ["sd of draws"] * drawn
    lines, last, ends = [], None, []
    for row in rows:
        if last is not None and key_of(row) != last:
            ends.append(len(lines) - 1)
        last = key_of(row)
        line = [named[last], f"{row['n']:,}", mean_ci(row["nats_per_token"], row["nats_per_token_ci95"])]
        line += [mean_ci(row["bits_per_byte"], row["bits_per_byte_ci95"])]
        line += [number(row[field]) for field in ("top1", "top10", "top100", "mrr", "entropy")]
        line += [mean_ci(row.get("nats_difference"), row.get("nats_difference_ci95"))] * paired
        line += [number(row["nats_draws_sd"])] * drawn
        lines.append(line)
    caption = "entropy in nats; top-k and MRR: the rank of the token that came"
    if paired:
        caption += f"; Δ nats: more than {named[key_of(rows[0])]} on the same tokens, paired"
    backends = {
        backend: [named[key_of(row)] for row in rows if row["backend"] == backend] for backend in _backends(rows)
    }
    caption += "\nattention: " + "; ".join(
        f"{backend}: {', '.join(dict.fromkeys(names))}" if len(backends) > 1 else backend
        for backend, names in backends.items()
    )
    return Sheet("other measures", headers, lines, caption, keys=2, section_ends=ends)


def _backends(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["backend"] for row in rows))


def _positions(summary: Mapping[str, Any]) -> Sheet:
    bins = summary["positions"]
    named = labels(bins)
    found = {(key_of(one), one["n"], one["left_from"]): one for one in bins}
    places = dict.fromkeys((one["n"], one["left_from"], one["left_to"], one["tokens"]) for one in bins)
    lines = [
        [
            f"{n:,}",
            f"{first:,} - {last:,}",
            f"{tokens:,}",
            *(number(found[key, n, first]["nats_per_token"]) for key in named),
        ]
        for n, first, last, tokens in places
    ]
    headers = ["n", "left text", "tokens", *named.values()]
    return Sheet("nats per token by tokens of left text in the window", headers, lines, keys=2, text_columns=0)


def _tasks(summary: Mapping[str, Any]) -> Sheet:
    records = summary["tasks"]
    named = labels(records)
    lines = [
        [
            one["task"],
            one["metric"],
            named[key_of(one)],
            number(one["value"]) + (f" ±{number(one['stderr'])}" if one["stderr"] is not None else ""),
            "-" if one["examples"] is None else f"{one['examples']:,}",
        ]
        for one in records
    ]
    headers = ["task", "metric", "bias", "value", "examples"]
    caption = "± is the standard error that lm-evaluation-harness gives; positional LSH under its first set of draws"
    return Sheet("tasks of lm-evaluation-harness", headers, lines, caption, text_columns=3)
