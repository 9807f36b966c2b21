"""The rows and fits of `plsh attn-error`.

A row is one layer, head and s, or (head null) one layer and s with the mean over heads. Fields:
- n (tokens), layer and head (counted from 0), num_samples, sampler, pitch, seeds (count), seed_first
- sigma (tokens; null for kernels other than ALiBi, and for the mean over heads that differ in sigma)
- kernel (label; for the mean over heads that differ in it, the family)
- output_error_relative: mean over seeds of ||T~ - T*||_F / ||T*||_F, no unit; output_error_relative_ci95: half-width of
  the 95 % t interval over seeds, null for one seed
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.positional.kernels import Kernel
from plsh_cli.stats import loglog_slope, t_interval


def rows(
    cfg: AttnErrorCommand, kernels: Sequence[Kernel], layers: Sequence[int], errors: np.ndarray
) -> list[dict[str, object]]:
    """All records; `errors` has shape (seeds, sizes, layers, heads). The mean over heads precedes the heads."""
    sizes = sorted(cfg.attn_error.num_samples)
    table = []
    for place, layer in enumerate(layers):
        for column, size in enumerate(sizes):
            here = errors[:, column, place]
            table.append(_row(cfg, layer, None, list(kernels), size, here.mean(axis=-1)))
            table += [_row(cfg, layer, head, [kernel], size, here[:, head]) for head, kernel in enumerate(kernels)]
    return table


def slopes(layers: Sequence[int], sizes: Sequence[int], errors: np.ndarray) -> list[dict[str, object]]:
    """Per layer the exponent p of error ~ s^p (mean over heads), fitted per seed, then a t interval over seeds.

    The fit is null with a single s, and where an error is 0 (M~ equals L*).
    """
    fits = []
    for place, layer in enumerate(layers):
        by_seed = errors[:, :, place].mean(axis=-1)
        usable = len(sizes) > 1 and bool((by_seed > 0).all())
        slope, half_width = t_interval([loglog_slope(sizes, line) for line in by_seed]) if usable else (None, None)
        fits.append({"layer": layer, "slope": slope, "slope_ci95": half_width, "seeds": len(by_seed)})
    return fits


def _row(
    cfg: AttnErrorCommand, layer: int, head: int | None, kernels: list[Kernel], num_samples: int, by_seed: np.ndarray
) -> dict[str, object]:
    error, half_width = t_interval(by_seed)
    same = len(set(kernels)) == 1
    return {
        "n": cfg.attn_error.tokens,
        "layer": layer,
        "head": head,
        "sigma": kernels[0].sigma if same else None,
        "kernel": kernels[0].label if same else cfg.bias.kernel,
        "sampler": cfg.bias.sampler,
        "pitch": cfg.bias.pitch,
        "num_samples": num_samples,
        "seeds": len(by_seed),
        "seed_first": cfg.seed,
        "output_error_relative": error,
        "output_error_relative_ci95": half_width,
    }
