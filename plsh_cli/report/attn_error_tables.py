"""The tables of `plsh attn-error` for the terminal; rows.csv has every layer and head at every s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plsh_cli.report.text import Row, Sheet, evenly, few_seeds, kernel_name, mean_ci, number, seeds_text

SHOWN_SIZES = 6
SHOWN_LAYERS = 5
BIAS_NAMES = {"plsh": "positional LSH", "window": "window", "fixed_blocks": "fixed blocks"}


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Errors by bias and s, matrix norms beside theory, errors by layers with slopes, and by head at the largest s."""
    rows, summary = result["rows"], result["summary"]
    return [_outputs(rows, summary), _matrices(rows, summary), _layers(rows, summary), _heads(rows)]


def interval_key(row: Row) -> str:
    """The ending of the interval that is shown: over texts where there are several, else over seeds."""
    return "_ci95_inputs" if row["inputs"] > 1 else "_ci95"


def interval_text(row: Row) -> str:
    """What that interval is over, for captions and figures."""
    if row["inputs"] > 1:
        return f"95 % CI over {row['inputs']} texts"
    return f"95 % CI over {row['seeds']} seeds" if (row["seeds"] or 1) > 1 else "one text and seed, no interval"


def method_name(row: Row) -> str:
    """How a row's bias is called, with what its cost is: "window, pairs of s=10"."""
    name = BIAS_NAMES[row["bias"]]
    if row["bias"] == "plsh":
        return f"{name}, s={row['num_samples']:,}"
    return f"{name}, {'2σ' if row['num_samples'] is None else 'pairs of s=' + format(row['num_samples'], ',')}"


def _cell(row: Row, field: str) -> str:
    return mean_ci(row[field], row.get(f"{field}{interval_key(row)}"))


def _whole(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["group"] == "all"]


def _outputs(rows: Sequence[Row], summary: Mapping[str, Any]) -> Sheet:
    whole = _whole(rows)
    first = whole[0]
    title = f"attention output under M~ against L*, mean over {len(summary['layers'])} layers and their heads, "
    title += f"n={first['n']:,}, {first['sampler']} draws, {seeds_text(first)}, protocol={first['protocol']}"
    fields = {
        "relative": "output_error_relative",
        "row median": "row_error_median",
        "row p90": "row_error_p90",
        "row p99": "row_error_p99",
        "cosine": "cosine",
        "Frobenius": "output_error_frobenius",
        "unnorm. F": "unnormalised_error_frobenius",
        "unnorm. max": "unnormalised_error_max",
    }
    lines = [
        [
            method_name(row),
            number(row["pairs_per_token"]),
            _cell(row, "output_error_relative"),
            *(number(row[field]) for field in list(fields.values())[1:]),
        ]
        for row in whole
    ]
    headers = ["bias", "pairs/token", *fields]
    return Sheet(title, headers, lines, _about(first, summary), section_ends=_sections(whole))


def _sections(whole: Sequence[Row]) -> set[int]:
    return {place for place in range(len(whole) - 1) if whole[place]["bias"] != whole[place + 1]["bias"]}


def _about(first: Row, summary: Mapping[str, Any]) -> str:
    text = f"{summary['model']} on {summary['text']}, perplexity {number(summary['perplexity'])}"
    text += f"\nrelative: {summary['conventions']['error']}; ±: {interval_text(first)}"
    if first["inputs"] > 1 and first["protocol"] == "corrected":
        text += " under the same draws"
    if first["inputs"] == 1 and few_seeds(first):
        text += f"; {few_seeds(first)}"
    return text + f"\n{summary['conventions']['unnormalised']}; outputs by {first['method']}"


def _matrices(rows: Sequence[Row], summary: Mapping[str, Any]) -> Sheet:
    whole = _whole(rows)
    lines = [
        [
            method_name(row),
            *(_cell(row, field) for field in ("spectral_error", "spectral_error_relative", "max_error")),
            number(row["bound_expectation"]),
            number(row["tail_probability"]),
            number(row["row_bound_ratio_max"]),
            _share(row["row_bound_informative"]),
        ]
        for row in whole
    ]
    headers = ["bias", "spectral", "relative", "max", "bound on E", "least tail", "row ratio", "row informative"]
    holds = next(one for one in summary["claims"] if "rows" in one)
    verdict = "none is beyond it" if holds["met"] else "SOME ARE BEYOND IT"
    caption = "bound on E: Psi (sqrt(ln n / s) + ln n / s), up to a constant; least tail: of the paper's bounds on "
    caption += "P[spectral error >= found], clipped at 1\nrow ratio: largest ||T~_i - T*_i|| over the theorem's bound "
    caption += (
        f"of that row, {holds['rows']:,} rows of positional LSH, {verdict}; row informative: share of rows whose "
    )
    caption += "bound is below 2 max ||v||"
    title = "norms of M~ - L* beside theory, means over the heads' kernels"
    return Sheet(title, headers, lines, caption, section_ends=_sections(whole))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def _layers(rows: Sequence[Row], summary: Mapping[str, Any]) -> Sheet:
    drawn = [row for row in rows if row["bias"] == "plsh" and row["head"] is None]
    sizes = evenly(sorted({row["num_samples"] for row in drawn}), SHOWN_SIZES)
    found = {(row["group"], row["layer"], row["num_samples"]): row for row in drawn}
    shown = evenly(summary["layers"], SHOWN_LAYERS)
    lines, ends = [], []
    for one in summary["slopes"]:
        if one["layer"] is not None and one["layer"] not in shown:
            continue
        own = [found[one["group"], one["layer"], size] for size in sizes]
        name = _group_name(one["group"], summary) if one["group"] else f"layer {one['layer']}"
        cells = [_cell(row, "output_error_relative") for row in own]
        if one["layer"] is None:
            ends = [len(lines)]
        lines.append([name, *cells, mean_ci(one["slope"], one["slope_ci95"])])
    over = summary["slopes"][0]
    caption = f"slope: log-log of error against s, i.i.d. theory -1/2; ± over {over['count']} "
    caption += "seeds" if over["over"] == "seeds" else "texts"
    headers = ["layers", *(f"s = {size:,}" for size in sizes), "slope"]
    title = "relative error by layer, mean over heads"
    return Sheet(
        title, headers, lines, caption if over["count"] > 1 else caption.partition("; ±")[0], section_ends=ends
    )


def _group_name(group: str, summary: Mapping[str, Any]) -> str:
    layers = summary["groups"][group]
    where = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
    return f"{group} ({where})" if group != "all" else f"all {len(layers)}"


def _heads(rows: Sequence[Row]) -> Sheet:
    drawn = [row for row in rows if row["bias"] == "plsh" and row["head"] is not None]
    largest = max(row["num_samples"] for row in drawn)
    heads = {(row["head"], row["layer"]): row for row in drawn if row["num_samples"] == largest}
    layers = evenly(sorted({layer for _, layer in heads}), SHOWN_LAYERS)
    kind = "σ" if all(row["sigma"] is not None for row in heads.values()) else "kernel"
    lines = []
    for head in sorted({head for head, _ in heads}):
        line = [heads[head, layer] for layer in layers]
        lines.append([str(head), kernel_name(line[0]), *(_cell(row, "output_error_relative") for row in line)])
    headers = ["head", kind, *(f"layer {layer}" for layer in layers)]
    return Sheet(f"relative error per query head at s={largest:,}", headers, lines, keys=2, text_columns=0)
