"""The claims about trained models: from scratch, of studies of `plsh train`; fine-tuned, of sweeps over s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plsh_cli.report.evidence import FAILS, HOLDS, UNDECIDED, Evidence, below, every
from plsh_cli.report.library import Record
from plsh_cli.report.text import Row, mean_ci

_OF_STUDY = {"held": HOLDS, "not held": FAILS, "undecided": UNDECIDED}


def close(record: Record) -> Evidence | None:
    """Whether positional LSH is within 5 % of exact ALiBi's bits per byte at the training length."""
    return _study(record, "comes within 5 % of exact ALiBi")


def original(record: Record) -> Evidence | None:
    """Whether it is better than the model with RoPE at the training length."""
    return _study(record, "better than the original model (RoPE)")


def twice(record: Record) -> Evidence | None:
    """Whether at twice the training length it is no worse than at it, and better than the model with RoPE."""
    return _study(record, "twice the")


def scratch_blocks(record: Record) -> Evidence | None:
    """Whether it is better than fixed blocks."""
    return _study(record, "better than fixed blocks")


def approaches(record: Record) -> Evidence | None:
    """Whether the distance to exact ALiBi is smaller at the largest s than at the smallest, beyond both intervals."""
    rows = [row for row in _sweep(record) if row["over_alibi"] is not None]
    sizes = sorted({row["num_samples"] for row in rows})
    if len(sizes) < 2:
        return None
    said, parts = [], []
    for n in sorted({row["n"] for row in rows}):
        few, many = (_mean_row([row for row in rows if row["n"] == n and row["num_samples"] == size])
                     for size in (sizes[0], sizes[-1]))  # fmt: skip
        if few is None or many is None:
            continue
        halves = [row["over_alibi_ci95"] for row in (few, many)]
        noise = None if None in halves else sum(halves)
        said.append(below(many["over_alibi"] - few["over_alibi"], noise, 0.0))
        parts.append(
            f"n = {n:,}: {mean_ci(few['over_alibi'], halves[0])} at s = {sizes[0]:,}, "
            f"{mean_ci(many['over_alibi'], halves[1])} at s = {sizes[-1]:,}"
        )
    text = f"perplexity over exact ALiBi's, {'; '.join(parts)}; {_seeds(rows)}"
    return Evidence(record, every(said), text) if said else None


def tuned_blocks(record: Record) -> Evidence | None:
    """Whether the perplexity is below that of fixed blocks, paired by seed, at every s and length."""
    rows = [row for row in _sweep(record) if row["over_fixed_blocks"] is not None]
    if not rows:
        return None
    said = [below(row["over_fixed_blocks"], row["over_fixed_blocks_ci95"], 0.0) for row in rows]
    worst = max(rows, key=lambda row: row["over_fixed_blocks"])
    text = (
        f"perplexity less than fixed blocks' in {said.count(HOLDS)} of {len(said)} cells, more in {said.count(FAILS)}; "
        f"the largest difference {mean_ci(worst['over_fixed_blocks'], worst['over_fixed_blocks_ci95'])} "
        f"at s = {worst['num_samples']:,}, n = {worst['n']:,}; {_seeds(rows)}"
    )
    return Evidence(record, every(said), text)


def _study(record: Record, part: str) -> Evidence | None:
    """A study's own claims with this text in them, as one."""
    if record.command != "train" or record.summary.get("kind") != "study":
        return None
    found: list[Any] = [
        claim for claim in record.summary["claims"] if claim["of"] == "paper" and part in claim["claim"]
    ]
    if not found:
        return None
    said = every(_OF_STUDY[claim["verdict"]] for claim in found)
    parts = [f"{claim['claim']}: {mean_ci(claim['value'], claim['ci95'])}, {claim['verdict']}" for claim in found]
    seeds = found[0]["seeds"]
    what = f"differences in bits per byte (claimed below 0), paired over {seeds} seed{'s' if seeds > 1 else ''}, "
    return Evidence(record, said, f"{what}trained at {record.summary['context']:,} tokens. {'. '.join(parts)}")


def _sweep(record: Record) -> list[Row]:
    """The rows of positional LSH in a sweep of fine-tuning over s."""
    if record.command != "finetune_sweep":
        return []
    return [row for row in record.rows if row["bias"] == "plsh" and row["perplexity"] is not None]


def _mean_row(rows: Sequence[Row]) -> Row | None:
    """The row of a length and s; of several settings the first, which is the sampler's default."""
    return rows[0] if rows else None


def _seeds(rows: Sequence[Row]) -> str:
    counts = {row["seeds"] for row in rows}
    return "one seed, no interval" if counts == {1} else f"± over {min(counts)} seeds, 95 % t interval"
