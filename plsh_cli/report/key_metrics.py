"""The one number that stands for a run in a list of runs, and the curve that it is a point of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plsh_cli.report.library import Record
from plsh_cli.report.text import Row, kernel_name, mean_ci


@dataclass(frozen=True)
class KeyMetric:
    """A run's key number. half: half-width of its 95 % interval, None where it has none. unit: "" for a ratio.

    of: which cell of the result it is, such as "n=2,048 s=40". axis: the quantity along the curve, with its unit;
    curve: its points (axis, value), of cells that differ from this one in that quantity alone.
    """

    name: str
    value: float
    half: float | None = None
    unit: str = ""
    of: str = ""
    axis: str = ""
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def text(self) -> str:
        """The number with its interval and unit: "0.183 ±0.012 nats"."""
        return f"{mean_ci(self.value, self.half)} {self.unit}".rstrip()

    @property
    def label(self) -> str:
        """Name, number and which cell it is: "spectral error 0.12 ±0.06 (n=2,048 s=40)"."""
        return f"{self.name} {self.text}{f' ({self.of})' if self.of else ''}"


def key_metric(record: Record) -> KeyMetric | None:
    """The key number of a finished run, by fixed rules and not by how good it looks; None where it has none.

    A result that does not have what its command's results have gives None, never an error.
    """
    if record.state != "done" or not record.rows:
        return None
    try:
        found = _OF_COMMAND.get(record.command, _any)(record.rows, record.summary)
        return found if found is None or found.label else None
    except Exception:
        return None


def _approx(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """The largest n, the widest kernel, the first sampler, the most draws."""
    n = max(row["n"] for row in rows)
    widest = max((row for row in rows if row["n"] == n), key=lambda row: row["sigma"] or 0)
    same = _same(rows, widest, "n", "kernel", "sampler", "pitch")
    row = max(same, key=lambda row: row["num_samples"])
    of = f"n={n:,} {'sigma=' if row['sigma'] is not None else ''}{kernel_name(row)} s={row['num_samples']:,}"
    return _metric("relative spectral error", row, "spectral_error_relative", of, ("draws s", "num_samples", same))


def _attn_error(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """Positional LSH over all layers and heads, the most draws."""
    same = [row for row in rows if row["group"] == "all" and row["bias"] == "plsh"]
    row = max(same, key=lambda row: row["num_samples"])
    of = f"n={row['n']:,} s={row['num_samples']:,}"
    return _metric("relative output error", row, "output_error_relative", of, ("draws s", "num_samples", same))


def _eval(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """The first bias at the shortest length."""
    same = _same(rows, rows[0], "bias", "num_samples")
    row = min(same, key=lambda row: row["n"])
    of = f"{row['bias']} n={row['n']:,}"
    return _metric("bits per byte", row, "bits_per_byte", of, ("tokens n", "n", same))


def _train(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """A run under its own bias at the shortest length; of a study its first variant of positional LSH, over ALiBi."""
    own = [row for row in rows if row["own"]]
    if summary.get("kind") == "study":
        drawn = [row for row in own if row["bias"] == "plsh" and row["bits_over_alibi"] is not None]
        same = _same(drawn or own, (drawn or own)[0], "variant")
        field, name = ("bits_over_alibi", "bits/byte over alibi") if drawn else ("bits_per_byte", "bits per byte")
    else:
        # Of a fine-tuned model: the weights after it, and its own bias among the baselines'.
        after = [row for row in own if row.get("stage", "after") == "after"]
        same = _same(after, after[0], "bias", "num_samples", "adapter")
        field, name = "bits_per_byte", "bits per byte"
    row = min(same, key=lambda row: row["n"])
    return _metric(name, row, field, f"{row.get('variant', row['bias'])} n={row['n']:,}", ("tokens n", "n", same))


def _compare(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """The first measure and method, the most draws: the paired difference to the baseline."""
    same = _same(rows, rows[0], "measure", "method", "baseline", "n")
    row = max(same, key=lambda row: row["num_samples"] or 0)
    drawn = "" if row["num_samples"] is None else f" s={row['num_samples']:,}"
    name = f"{row['measure'].replace('_', ' ')}, {row['method']} less {row['baseline']}"
    of = f"n={row['n']:,}{drawn}, {row['verdict']}"
    return _metric(name, row, "difference", of, ("draws s", "num_samples", same))


def _finetune_sweep(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """Perplexity over exact ALiBi's at the shortest length, the first setting, the most draws."""
    drawn = [row for row in rows if row["bias"] == "plsh" and row["perplexity"] is not None]
    field = "perplexity" if any(row["over_alibi"] is None for row in drawn) else "over_alibi"
    n = min(row["n"] for row in drawn)
    first = next(row for row in drawn if row["n"] == n)
    same = _same(drawn, first, "n", "setting")
    row = max(same, key=lambda row: row["num_samples"])
    name = "perplexity" if field == "perplexity" else "perplexity over alibi"
    return _metric(name, row, field, f"n={n:,} s={row['num_samples']:,}", ("draws s", "num_samples", same))


def _bench_attention(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """Positional LSH's fastest method at the largest n; its time where nothing dense was timed beside it."""
    timed = [row for row in rows if row["skipped"] is None]
    drawn = [row for row in timed if row["bias"] == "plsh"] or timed
    ratios = [row for row in drawn if row["faster_than_sdpa_mask"] is not None]
    n = max(row["n"] for row in ratios or drawn)
    row = min((row for row in ratios or drawn if row["n"] == n), key=lambda row: row["seconds"])
    same = _same(drawn, row, "grid", "method", "dtype", "causal", "passes")
    of = f"{row['method']} n={n:,} {row['dtype']} {row['passes']}"
    if ratios:
        return _metric("times as fast as dense SDPA", row, "faster_than_sdpa_mask", of, ("tokens n", "n", same))
    return _metric("time", row, "seconds", of, ("tokens n", "n", same), "s")


def _bench_matrix(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """The first claim."""
    row = rows[0]
    unit = "times faster" if row["unit"] == "times faster" else row["unit"]
    return _metric(row["claim"], row, "measured", f"n={row['n']:,}", unit=unit)


def _any(rows: Sequence[Row], summary: Mapping[str, Any]) -> KeyMetric | None:
    """Of a command that nothing is known about: the first field of the first row that has an interval beside it."""
    row = rows[0]
    for field in row:
        if f"{field}_ci95" in row and _is_number(row[field]):
            return _metric(field.replace("_", " "), row, field)
    return None


def _metric(
    name: str,
    row: Row,
    field: str,
    of: str = "",
    along: tuple[str, str, Sequence[Row]] | None = None,
    unit: str = "",
) -> KeyMetric | None:
    """The metric of a row's field; `along`: the axis, its field, and the rows that differ in it alone."""
    if not _is_number(row[field]):
        return None
    half = row.get(f"{field}_ci95")
    axis, curve = "", ()
    if along is not None:
        axis, key, rows = along
        points = {one[key]: one[field] for one in rows if _is_number(one[key]) and _is_number(one[field])}
        curve = tuple(sorted(points.items()))
    return KeyMetric(name, row[field], half if _is_number(half) else None, unit, of, axis, curve)


def _same(rows: Sequence[Row], like: Row, *keys: str) -> list[Row]:
    """The rows that agree with this one in these fields, where they have them."""
    return [row for row in rows if all(row.get(key) == like.get(key) for key in keys)]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_OF_COMMAND: dict[str, Callable[[Sequence[Row], Mapping[str, Any]], KeyMetric | None]] = {
    "approx": _approx,
    "attn_error": _attn_error,
    "bench_attention": _bench_attention,
    "bench_matrix": _bench_matrix,
    "compare": _compare,
    "eval": _eval,
    "finetune": _train,
    "finetune_sweep": _finetune_sweep,
    "train": _train,
}
