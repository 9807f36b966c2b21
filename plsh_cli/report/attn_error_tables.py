"""The tables of `plsh attn-error` for the terminal; rows.csv has every layer and head at every s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plsh_cli.report.text import Row, Sheet, evenly, few_seeds, kernel_name, mean_ci, number, seeds_text

SHOWN_SIZES = 6
SHOWN_LAYERS = 5
TEXTS = "± texts"
BIAS_NAMES = {"plsh": "positional LSH", "window": "window", "fixed_blocks": "fixed blocks"}


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Errors by bias and s, matrix norms beside theory, errors by layers with slopes, and by head at the largest s."""
    rows, summary = result["rows"], result["summary"]
    return [_outputs(rows, summary), _matrices(rows, summary), _layers(rows, summary), _heads(rows)]


def seeds_interval(row: Row) -> str:
    """What ± is over, in a plsh row's table and figure; empty with one seed."""
    return f"95 % CI over {row['seeds']} seeds" if row["seeds"] > 1 else ""


def texts_interval(row: Row) -> str:
    """What "± texts" is over, in tables and figures; empty with one text."""
    return f"95 % CI over {row['inputs']} texts" if row["inputs"] > 1 else ""


def drawn_row(rows: Sequence[Row]) -> Row:
    """A row of plsh, whose seeds the captions name."""
    return next(row for row in rows if row["bias"] == "plsh")


def method_name(row: Row) -> str:
    """How a row's bias is called, with what its cost is: "window, pairs of s=10"."""
    name = BIAS_NAMES[row["bias"]]
    if row["bias"] == "plsh":
        return f"{name}, s={row['num_samples']:,}"
    return f"{name}, {'2σ' if row['num_samples'] is None else 'pairs of s=' + format(row['num_samples'], ',')}"


def _cells(rows: Sequence[Row], field: str, header: str) -> tuple[list[str], list[list[str]]]:
    """Headers, and per row the cells of a field: its mean ± over seeds, and ± over texts where a row has that."""
    texts = [row.get(f"{field}_ci95_inputs") for row in rows]
    cells = [[mean_ci(row[field], row.get(f"{field}_ci95"))] for row in rows]
    if all(half is None for half in texts):
        return [header], cells
    beside = ["-" if half is None else f"±{number(half, 2)}" for half in texts]
    return [header, TEXTS], [[*cell, one] for cell, one in zip(cells, beside, strict=True)]


def _joined(parts: Sequence[tuple[list[str], list[list[str]]]]) -> tuple[list[str], list[list[str]]]:
    """Several fields' headers and cells, side by side."""
    headers = [name for names, _ in parts for name in names]
    return headers, [
        [cell for cells in line for cell in cells] for line in zip(*(cells for _, cells in parts), strict=True)
    ]


def _whole(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["group"] == "all"]


def _outputs(rows: Sequence[Row], summary: Mapping[str, Any]) -> Sheet:
    whole = _whole(rows)
    first = drawn_row(whole)
    title = f"attention output under M~ against L*, mean over {len(summary['layers'])} layers and their heads, "
    title += f"n={first['n']:,}, {first['sampler']} draws, {seeds_text(first)}, protocol={first['protocol']}"
    fields = {
        "row median": "row_error_median",
        "row p90": "row_error_p90",
        "row p99": "row_error_p99",
        "cosine": "cosine",
        "Frobenius": "output_error_frobenius",
        "unnorm. F": "unnormalised_error_frobenius",
        "unnorm. max": "unnormalised_error_max",
    }
    names, cells = _cells(whole, "output_error_relative", "relative")
    lines = [
        [method_name(row), number(row["pairs_per_token"]), *cell, *(number(row[field]) for field in fields.values())]
        for row, cell in zip(whole, cells, strict=True)
    ]
    headers = ["bias", "pairs/token", *names, *fields]
    return Sheet(title, headers, lines, _about(first, summary), section_ends=_sections(whole))


def _sections(whole: Sequence[Row]) -> set[int]:
    return {place for place in range(len(whole) - 1) if whole[place]["bias"] != whole[place + 1]["bias"]}


def _about(first: Row, summary: Mapping[str, Any]) -> str:
    text = f"{summary['model']} on {summary['text']}, perplexity {number(summary['perplexity'])}"
    text += f"\nrelative: {summary['conventions']['error']}; {_intervals(first)}"
    return text + f"\n{summary['conventions']['unnormalised']}; outputs by {first['method']}"


def _intervals(first: Row) -> str:
    """What ± and "± texts" are, for the caption."""
    parts = []
    if seeds_interval(first):
        parts += [f"±: {seeds_interval(first)}", few_seeds(first)]
    elif texts_interval(first) and first["protocol"] == "corrected":
        parts.append("one seed: the noise of the draws is not shown")
    if texts_interval(first):
        same = " under the same draws" if first["protocol"] == "corrected" else ", each under its own draws"
        parts.append(f"{TEXTS}: {texts_interval(first)}{same}")
    return "; ".join(part for part in parts if part) or "one text and seed, no interval"


def _matrices(rows: Sequence[Row], summary: Mapping[str, Any]) -> Sheet:
    whole = _whole(rows)
    fields = {"spectral_error": "spectral", "spectral_error_relative": "relative", "max_error": "max"}
    names, cells = _joined([_cells(whole, field, name) for field, name in fields.items()])
    lines = [
        [
            method_name(row),
            *cell,
            number(row["bound_expectation"]),
            number(row["tail_probability"]),
            number(row["row_bound_ratio_max"]),
            _share(row["row_bound_informative"]),
        ]
        for row, cell in zip(whole, cells, strict=True)
    ]
    headers = ["bias", *names, "bound on E", "least tail", "row ratio", "row informative"]
    holds = next(one for one in summary["claims"] if "rows" in one)
    verdict = "none is beyond it" if holds["met"] else "SOME ARE BEYOND IT"
    caption = "bound on E: Psi (sqrt(ln n / s) + ln n / s), up to a constant; least tail: of the paper's bounds on "
    caption += "P[spectral error >= found], clipped at 1\nrow ratio: largest ||T~_i - T*_i|| over the theorem's bound "
    caption += (
        f"of that row, {holds['rows']:,} rows of positional LSH, {verdict}; row informative: share of rows whose "
    )
    caption += "bound is below 2 max ||v||"
    first = drawn_row(whole)
    caption = "; ".join(part for part in (seeds_interval(first) and f"±: {seeds_interval(first)}", caption) if part)
    title = "norms of M~ - L* beside theory, means over the heads' kernels"
    return Sheet(title, headers, lines, caption, section_ends=_sections(whole))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def _layers(rows: Sequence[Row], summary: Mapping[str, Any]) -> Sheet:
    drawn = [row for row in rows if row["bias"] == "plsh" and row["head"] is None]
    sizes = evenly(sorted({row["num_samples"] for row in drawn}), SHOWN_SIZES)
    found = {(row["group"], row["layer"], row["num_samples"]): row for row in drawn}
    shown = evenly(summary["layers"], SHOWN_LAYERS)
    told = [one for one in summary["slopes"] if one["layer"] is None or one["layer"] in shown]
    by_size = [[found[one["group"], one["layer"], size] for one in told] for size in sizes]
    names, cells = _joined(
        [_cells(own, "output_error_relative", f"s = {size:,}") for size, own in zip(sizes, by_size, strict=True)]
    )
    lines = [
        [
            _group_name(one["group"], summary) if one["group"] else f"layer {one['layer']}",
            *cell,
            mean_ci(one["slope"], one["slope_ci95"]),
        ]
        for one, cell in zip(told, cells, strict=True)
    ]
    ends = [max(place for place, one in enumerate(told) if one["layer"] is None)]
    over = summary["slopes"][0]
    caption = f"slope: log-log of error against s, i.i.d. theory -1/2; ± over {over['count']} "
    caption += "seeds" if over["over"] == "seeds" else "texts"
    headers = ["layers", *names, "slope"]
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
    places = sorted({head for head, _ in heads})
    names, cells = _joined(
        [_cells([heads[head, layer] for head in places], "output_error_relative", f"layer {layer}") for layer in layers]
    )
    lines = [[str(head), kernel_name(heads[head, layers[0]]), *cell] for head, cell in zip(places, cells, strict=True)]
    headers = ["head", kind, *names]
    return Sheet(f"relative error per query head at s={largest:,}", headers, lines, keys=2, text_columns=0)
