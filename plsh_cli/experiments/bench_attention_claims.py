"""What positional LSH is held to, at the sizes that each target was set for, from the rows of one run.

The targets are for 2 CPU cores, 8 heads with their own slopes, d = 64, one sequence, causal, i.i.d. draws. Fields of a
claim: claim, n (tokens; null: over several), dtype, passes, measured, unit ("times faster" | "times the time" |
"of torch.mm" | "exponent" | "s" | "KB per token", KB = 1000 bytes), comparison (">=" | "<="), target, met, seconds,
seconds_other (medians of what is compared, where times are).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plsh_cli.config.schema.lab import BenchAttentionCommand

Rows = Sequence[Mapping[str, Any]]

OURS = "fused plsh s=20"
INTEGER = "fused plsh integer s=10"
SHAPE = {"heads": 8, "head_dim": 64, "batch": 1, "exact_when_cheaper": False}
LONG = 16_384  # tokens from which on memory per token is held to its target


@dataclass(frozen=True)
class Ratio:
    """Two methods' times at one size. unit "times faster": other / method, "times the time": method / other."""

    claim: str
    n: int
    dtype: str
    passes: str
    method: str
    other: str
    unit: str
    target: float


RATIOS = (
    Ratio("against SDPA with the mask", 8192, "float32", "forward", OURS, "sdpa_mask alibi", "times faster", 15.0),
    Ratio("against SDPA with the mask", 8192, "bfloat16", "forward", OURS, "sdpa_mask alibi", "times faster", 22.0),
    Ratio("against the same kernel dense", LONG, "float32", "forward", OURS, "fused alibi", "times faster", 12.0),
    Ratio("against ALiBi cut at 0.001", 4096, "float32", "forward", OURS, "fused window 0.001", "times the time", 1.0),
    Ratio("against ALiBi cut at 0.001", LONG, "float32", "forward", OURS, "fused window 0.001", "times the time", 1.0),
    Ratio(
        "against SDPA's autograd", 4096, "float32", "forward+backward", OURS, "sdpa_mask alibi", "times faster", 15.0
    ),
    Ratio(
        "against the same kernel dense", LONG, "float32", "forward+backward", OURS, "fused alibi", "times faster", 15.0
    ),
    Ratio(
        "blocks against fused, s=10",
        4096,
        "float32",
        "forward",
        "blocks plsh integer s=10",
        INTEGER,
        "times the time",
        14.0,
    ),
    Ratio(
        "blocks against fused, s=10",
        LONG,
        "float32",
        "forward",
        "blocks plsh integer s=10",
        INTEGER,
        "times the time",
        10.0,
    ),
)


def claims(cfg: BenchAttentionCommand, device: str, rows: Rows, exponents: Rows) -> list[dict[str, object]]:
    """The claims whose sizes this run has measured; none on another device, shape or sigma."""
    shape = {key: getattr(cfg.bench, key) for key in SHAPE}
    if device != "cpu" or shape != SHAPE or cfg.bias.sigma is not None:
        return []
    timed = [row for row in rows if row["skipped"] is None and row["causal"]]
    return [*_ratios(timed), *_others(timed), *_growth(exponents)]


def claim(
    name: str,
    where: Mapping[str, Any],
    measured: float,
    unit: str,
    comparison: str,
    target: float,
    seconds: tuple[float | None, float | None] = (None, None),
) -> dict[str, object]:
    """The record of one claim; see the fields at the head of this file. where: n, dtype and passes."""
    return {
        "claim": name,
        "n": where["n"],
        "dtype": where["dtype"],
        "passes": where["passes"],
        "measured": measured,
        "unit": unit,
        "comparison": comparison,
        "target": target,
        "met": measured >= target if comparison == ">=" else measured <= target,
        "seconds": seconds[0],
        "seconds_other": seconds[1],
    }


def _ratios(rows: Rows) -> Iterator[dict[str, object]]:
    for ratio in RATIOS:
        kind = {"n": ratio.n, "dtype": ratio.dtype, "passes": ratio.passes}
        for row in _where(rows, kind | {"method": ratio.method}):
            others = _where(rows, kind | {"method": ratio.other, "grid": row["grid"]})
            if not others:
                continue
            mine, other = row["seconds"], others[0]["seconds"]
            faster = ratio.unit == "times faster"
            measured, sign = (other / mine, ">=") if faster else (mine / other, "<=")
            name = ratio.claim if ratio.method != OURS else f"{OURS} {ratio.claim}"
            yield claim(name, kind, measured, ratio.unit, sign, ratio.target, (mine, other))
            break


def _others(rows: Rows) -> Iterator[dict[str, object]]:
    ours = _where(rows, {"method": OURS, "dtype": "float32"})
    forward = _where(ours, {"passes": "forward"})
    for row in _where(forward, {"n": LONG})[:1]:
        share = row["matmul_share"]
        yield claim(f"{OURS}, rate", row, share, "of torch.mm", ">=", 0.65, (row["seconds"], None))
    for row in _where(forward, {"n": 262_144})[:1]:
        yield claim(f"{OURS}, time", row, row["seconds"], "s", "<=", 6.0, (row["seconds"], None))
    for passes in ("forward", "forward+backward"):
        used = [row for row in _where(ours, {"passes": passes}) if row["extra_bytes_per_token"] is not None]
        for row in sorted((row for row in used if row["n"] >= LONG), key=lambda row: -row["n"])[:1]:
            kilobytes = row["extra_bytes_per_token"] / 1000
            yield claim(f"{OURS}, extra memory", row, kilobytes, "KB per token", "<=", 6.0)


def _growth(exponents: Rows) -> Iterator[dict[str, object]]:
    kind = {"method": OURS, "dtype": "float32", "passes": "forward", "causal": True, "n_first": LONG, "n_last": 262_144}
    for fit in _where(exponents, kind)[:1]:
        yield claim(f"{OURS}, growth with n", fit | {"n": None}, fit["exponent"], "exponent", "<=", 1.1)


def _where(rows: Rows, kind: Mapping[str, object]) -> list[Mapping[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in kind.items())]
