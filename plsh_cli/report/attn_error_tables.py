"""The tables of `plsh attn-error` for the terminal; rows.csv has every head at every s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plsh_cli.report.text import Sheet, evenly, few_seeds, kernel_name, mean_ci, number, seeds_text

SHOWN_SIZES = 5
SHOWN_LAYERS = 5


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Relative error per layer and s (mean over heads) with its slope, then per head at the largest s."""
    rows, summary = result["rows"], result["summary"]
    return [_layers(rows, summary), _heads(rows)]


def _layers(rows: list[Mapping[str, Any]], summary: Mapping[str, Any]) -> Sheet:
    first, means = rows[0], {(row["layer"], row["num_samples"]): row for row in rows if row["head"] is None}
    sizes = evenly(sorted({size for _, size in means}), SHOWN_SIZES)
    spread = "± is the 95 % t interval over seeds" if first["seeds"] > 1 else "one seed, so no interval"
    title = (
        f"attention output under M~ against L*: ‖a − b‖ / ‖b‖ (Frobenius), mean over heads, {first['sampler']} draws, "
        f"n={first['n']:,}, {seeds_text(first)}, {spread}"
    )
    caption = f"{summary['model']} on {summary['text']}, perplexity {number(summary['perplexity'])}"
    caption += f"\n{few_seeds(first)}" if few_seeds(first) else ""
    lines = []
    for slope in summary["slopes"]:
        errors = [means[slope["layer"], size] for size in sizes]
        cells = [mean_ci(row["output_error_relative"], row["output_error_relative_ci95"]) for row in errors]
        lines.append([str(slope["layer"]), *cells, mean_ci(slope["slope"], slope["slope_ci95"])])
    headers = ["layer", *(f"s = {size:,}" for size in sizes), "slope"]
    return Sheet(title, headers, lines, caption, text_columns=0)


def _heads(rows: list[Mapping[str, Any]]) -> Sheet:
    largest = max(row["num_samples"] for row in rows)
    heads = {
        (row["head"], row["layer"]): row for row in rows if row["head"] is not None and row["num_samples"] == largest
    }
    layers = evenly(sorted({layer for _, layer in heads}), SHOWN_LAYERS)
    kind = "σ" if all(row["sigma"] is not None for row in heads.values()) else "kernel"
    lines = []
    for head in sorted({head for head, _ in heads}):
        line = [heads[head, layer] for layer in layers]
        cells = [mean_ci(row["output_error_relative"], row["output_error_relative_ci95"]) for row in line]
        lines.append([str(head), kernel_name(line[0]), *cells])
    headers = ["head", kind, *(f"layer {layer}" for layer in layers)]
    return Sheet(f"the same per query head at s={largest:,}", headers, lines, keys=2, text_columns=0)
