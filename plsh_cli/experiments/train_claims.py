"""The table of a study over its seeds, and what it says about the paper's claims.

Fields of a row: variant, bias (that it was scored under), own (whether it was trained under it), n (tokens), seeds,
seed_first, tokens (scored per seed, mean), bits_per_byte and bits_per_byte_ci95 (mean and half-width of the 95 % t
interval over seeds; null for one seed), perplexity, top1, mrr (means over seeds), bits_over_alibi and
bits_over_alibi_ci95 (paired by seed with variant alibi at the same length, both under the bias given; null without it).

A claim is about a mean paired difference over seeds: held where its whole 95 % t interval lies on the claimed side of
the limit, not held where it lies on the other side, undecided otherwise, also with a single seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plsh_cli.stats import t_interval

Records = Sequence[Mapping[str, Any]]

#: "Close to exact ALiBi" and "no worse at a longer length": within so large a share of its bits per byte.
CLOSE, SAME = 0.05, 0.01


@dataclass(frozen=True)
class _Cell:
    """Bits per byte by seed, of one variant, bias and length."""

    by_seed: dict[int, float]

    def minus(self, other: _Cell, share: float = 0.0) -> list[float]:
        """This less (1 + share) times the other, for each seed that both have."""
        return [
            self.by_seed[seed] - (1 + share) * other.by_seed[seed] for seed in self.by_seed if seed in other.by_seed
        ]


def rows(results: Records, variants: Iterable[str]) -> list[dict[str, object]]:
    """The table, by variant in the order given, its own bias first, by length."""
    table = []
    for variant in variants:
        mine = [row for row in results if row["variant"] == variant]
        for own, bias in sorted({(row["own"], row["bias"]) for row in mine}, reverse=True):
            for n in sorted({row["n"] for row in mine}):
                group = [row for row in mine if (row["own"], row["bias"], row["n"]) == (own, bias, n)]
                table.append(_row(variant, own, bias, n, group, results))
    return table


def claims(results: Records, context: int) -> list[dict[str, object]]:
    """What the paper claims, and some of our own, for the variants that are there; see the module's head.

    A record has claim, of (paper or plsh), value (mean of the difference named in it, in bits per byte), ci95 (its
    half-width), and verdict.
    """
    found = []
    for name in ("plsh_10", "plsh_20"):
        found += _about_draws(results, name, context)
    found += [
        _less(results, "paper", "quality approaches ALiBi as s grows: s=20 better than s=10",
              ("plsh_20", True, context), ("plsh_10", True, context)),
        _less(results, "paper", "RoPE does not extrapolate: worse at 4 times its training length than at it",
              ("original", True, context), ("original", True, 4 * context)),
        _less(results, "paper", "exact ALiBi is no worse at 4 times its training length than at it (within 1 %)",
              ("alibi", True, 4 * context), ("alibi", True, context), SAME),
        _less(results, "plsh", "without any position a model is worse than with s=10",
              ("plsh_10", True, context), ("none", True, context)),
    ]  # fmt: skip
    for name, s in (("plsh_10", 10), ("plsh_20", 20)):
        found.append(
            _less(results, "plsh", f"stratified draws with integer widths are better than i.i.d. ones at s={s}",
                  (f"{name}_stratified", True, context), (name, True, context))
        )  # fmt: skip
    return [claim for claim in found if claim is not None]


def _about_draws(results: Records, name: str, context: int) -> list[dict[str, object] | None]:
    s, own = name.removeprefix("plsh_"), (name, True, context)
    return [
        _less(results, "paper", f"s={s} comes within 5 % of exact ALiBi's bits per byte", own,
              ("alibi", True, context), CLOSE),
        _less(results, "paper", f"s={s} is better than the original model (RoPE)", own, ("original", True, context)),
        _less(results, "paper", f"s={s} is better than the original model at twice the length",
              (name, True, 2 * context), ("original", True, 2 * context)),
        _less(results, "paper", f"s={s} is no worse at twice the training length than at it (within 1 %)",
              (name, True, 2 * context), own, SAME),
        _less(results, "paper", f"s={s} is better than fixed blocks", own, ("fixed_blocks", True, context)),
        _less(results, "plsh", f"trained with s={s}, it is better under exact ALiBi than under its own draws",
              (name, False, context), own),
    ]  # fmt: skip


def _less(
    results: Records, of: str, text: str, left: tuple[str, bool, int], right: tuple[str, bool, int], share: float = 0.0
) -> dict[str, object] | None:
    """The claim that left < (1 + share) right, each (variant, own bias or exact ALiBi, length); None without data."""
    differences = _cell(results, *left).minus(_cell(results, *right), share)
    if not differences:
        return None
    mean, half = t_interval(differences)
    verdict = "undecided" if half is None or abs(mean) <= half else ("held" if mean < 0 else "not held")
    return {"claim": text, "of": of, "value": mean, "ci95": half, "seeds": len(differences), "verdict": verdict}


def _cell(results: Records, variant: str, own: bool, n: int) -> _Cell:
    chosen = [row for row in results if (row["variant"], row["own"], row["n"]) == (variant, own, n)]
    return _Cell({row["seed"]: row["bits_per_byte"] for row in chosen})


def _row(variant: str, own: bool, bias: str, n: int, group: Records, results: Records) -> dict[str, object]:
    mean, half = t_interval([row["bits_per_byte"] for row in group])
    over = _cell(group, variant, own, n).minus(_cell(results, "alibi", True, n)) if variant != "alibi" else []
    more, more_half = t_interval(over) if over else (None, None)
    means = {key: sum(row[key] for row in group) / len(group) for key in ("tokens", "perplexity", "top1", "mrr")}
    return {
        "variant": variant,
        "bias": bias,
        "own": own,
        "n": n,
        "seeds": len(group),
        "seed_first": min(row["seed"] for row in group),
        "tokens": round(means["tokens"]),
        "bits_per_byte": mean,
        "bits_per_byte_ci95": half,
        "perplexity": means["perplexity"],
        "top1": means["top1"],
        "mrr": means["mrr"],
        "bits_over_alibi": more,
        "bits_over_alibi_ci95": more_half,
    }
