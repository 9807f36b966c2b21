"""The rows of `plsh approx`: a flat record per n, kernel, sampler and s, measured values beside what the theory allows.

Fields (means are over seeds; *_ci95 is the half-width of the 95 % t interval over seeds, null for one seed):
- n (tokens), kernel (label), sigma (tokens, ALiBi only), sampler, pitch, num_samples, seeds (count), seed_first
- spectral_error ||M~ - L*||_2, spectral_error_relative (over kernel_norm = ||L*||_2), max_error max |M~ - L*|, each
  with _ci95
- max_width (mean of the widest drawn width, tokens); for i.i.d. draws max_width_median and max_width_upper_1pct, the
  value that the widest of s exceeds with probability 1 %; max_block (longest block over seeds, tokens)
- num_blocks (mean over seeds, all draws), blocks_per_draw
- pairs_per_token_draws (sum over draws and blocks) and pairs_per_token_union (distinct pairs), each also with _causal
  and _bidirectional; the name without ending is the causal one, the paper's cost
- for i.i.d. draws bound_max = eps(s, n, delta); with ALiBi also bound_expectation (on E ||M~ - L*||_2, up to a constant
  of the paper), bound_expectation_ratio (measured mean over bound), tail_probability (at each seed's error, clipped at
  1; the smallest over seeds, the one that can be violated), rule_of_thumb_samples (s for an error of 0.1 ||L*||_2)
- norm_method (dense | banded | blocks), norm_residual_relative (largest over seeds: an
  eigenvalue of M~ - L* lies within this fraction of spectral_error; see norms.spectral_norm)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plsh_cli.positional import bounds, norms
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.measure import Measurement
from plsh_cli.stats import t_interval


@dataclass(frozen=True)
class Theory:
    """What is known before drawing; None where the statement does not hold for this sampler or kernel."""

    kernel_norm: float
    bound_expectation: float | None = None
    bound_max: float | None = None
    max_width_median: float | None = None
    max_width_upper_1pct: float | None = None
    rule_of_thumb_samples: int | None = None

    @classmethod
    def of(cls, kernel: Kernel, n: int, num_samples: int, delta: float, sampler: str, pitch: str) -> Theory:
        """The theory of s draws at n tokens; the bounds hold for i.i.d. draws, those with sigma for ALiBi."""
        norm = norms.kernel_norm(kernel, n)
        if sampler != "iid":
            return cls(norm)
        sigma = kernel.sigma
        return cls(
            kernel_norm=norm,
            bound_expectation=None if sigma is None else bounds.expectation_bound(sigma, n, num_samples),
            bound_max=bounds.max_norm_bound(n, num_samples, delta),
            max_width_median=bounds.max_width_quantile(kernel, num_samples, 0.5, pitch),
            max_width_upper_1pct=bounds.max_width_quantile(kernel, num_samples, 0.99, pitch),
            rule_of_thumb_samples=None if sigma is None else bounds.rule_of_thumb_samples(sigma, n, 0.1 * norm),
        )


def row(
    kernel: Kernel,
    n: int,
    sampler: str,
    pitch: str,
    seeds: Sequence[int],
    measured: Sequence[Measurement],
    theory: Theory,
) -> dict[str, object]:
    """The record of one n, kernel, sampler and s; `measured` has one entry per seed."""
    return {
        "n": n,
        "kernel": kernel.label,
        "sigma": kernel.sigma,
        "sampler": sampler,
        "pitch": pitch,
        "num_samples": measured[0].num_samples,
        "seeds": len(seeds),
        "seed_first": seeds[0],
        **_errors(measured, theory.kernel_norm),
        **_sizes(measured, theory),
        **_costs(measured),
        **_bounds(kernel, n, measured, theory),
        "norm_method": "+".join(sorted({one.method for one in measured})),
        "norm_residual_relative": max(_residual_relative(one) for one in measured),
    }


def _errors(measured: Sequence[Measurement], kernel_norm: float) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, values in {
        "spectral_error": [one.spectral_error for one in measured],
        "spectral_error_relative": [one.spectral_error / kernel_norm for one in measured],
        "max_error": [one.max_error for one in measured],
    }.items():
        found[name], found[f"{name}_ci95"] = t_interval(values)
    return found | {"kernel_norm": kernel_norm}


def _sizes(measured: Sequence[Measurement], theory: Theory) -> dict[str, float | None]:
    blocks = _mean([one.num_blocks for one in measured])
    return {
        "max_width": _mean([one.max_width for one in measured]),
        "max_width_median": theory.max_width_median,
        "max_width_upper_1pct": theory.max_width_upper_1pct,
        "max_block": max(one.max_block for one in measured),
        "num_blocks": blocks,
        "blocks_per_draw": blocks / measured[0].num_samples,
    }


def _bounds(kernel: Kernel, n: int, measured: Sequence[Measurement], theory: Theory) -> dict[str, float | None]:
    expected, spectral = theory.bound_expectation, _mean([one.spectral_error for one in measured])
    tails = None if kernel.sigma is None or expected is None else tail_probabilities(kernel.sigma, n, measured)
    return {
        "bound_expectation": expected,
        "bound_expectation_ratio": spectral / expected if expected else None,
        "tail_probability": min(tails) if tails else None,
        "bound_max": theory.bound_max,
        "rule_of_thumb_samples": theory.rule_of_thumb_samples,
    }


def tail_probabilities(sigma: float, n: int, measured: Sequence[Measurement]) -> list[float]:
    """The tail bound at each seed's spectral error, clipped at 1; holds for ALiBi and i.i.d. draws only."""
    return [bounds.tail_probability(sigma, n, one.num_samples, one.spectral_error) for one in measured]


def _costs(measured: Sequence[Measurement]) -> dict[str, float]:
    """Pairs per token, means over seeds; the bare names are the causal counts."""
    costs = {}
    for name in ("pairs_per_token_draws", "pairs_per_token_union"):
        both = {
            ending: _mean([getattr(one, f"{name}_{ending}") for one in measured])
            for ending in ("causal", "bidirectional")
        }
        costs |= {name: both["causal"], **{f"{name}_{ending}": value for ending, value in both.items()}}
    return costs


def _residual_relative(one: Measurement) -> float:
    return one.spectral_residual / one.spectral_error if one.spectral_error else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))
