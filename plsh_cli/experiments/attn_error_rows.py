"""The rows of `plsh attn-error`: a flat record per bias and s, for every layer and head and for means over them.

Which: layer and head (counted from 0); with head null, the mean over the layer's heads; with layer null too, over all
layers of `group` (all, or the early, middle and late third). Means are over inputs and seeds; a largest value
(row_bound_ratio_max) stays the largest and tail_probability the smallest. Fields:
- bias (plsh, window, fixed_blocks), num_samples (s; of a baseline the s whose pairs it has; null: blocks of 2 sigma)
- n (tokens of the longest text), sampler, pitch, seeds and seed_first (null but for plsh), inputs (count), protocol,
  method (what computed the outputs)
- sigma (tokens; null for other kernels than ALiBi and where the heads differ), kernel (label; family where they differ)
- pairs_per_token (of weight above 0; causal, or in both directions under protocol=paper)
- spectral_error, spectral_error_relative (over ||L*||_2) and max_error of W - L*; bound_expectation (on the spectral
  error, up to a constant of the paper), tail_probability (the paper's bound at the error found), rule_of_thumb_samples
  (s for a spectral error of 0.1 ||L*||_2): ALiBi and i.i.d. draws only
- the measures of outputs and of the theorem's bound per row: attn_error_metrics.py
- each measured field also with _ci95, half-width of the 95 % t interval over seeds (draws), and _ci95_inputs, over
  inputs; null for a single one. Under protocol=corrected all inputs meet the same draws, so _ci95_inputs is about
  texts alone; under protocol=paper it is about both, as every input has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.experiments.attn_error_metrics import OUTPUT
from plsh_cli.experiments.attn_error_values import FIELDS, Values
from plsh_cli.positional import bounds
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.norms import kernel_norm
from plsh_cli.stats import t_interval

GROUPS = ("early", "middle", "late")
#: How cells are put together, where it is not by their mean.
_EXTREME = {"row_bound_ratio_max": np.max, "tail_probability": np.min}
_WITH_INTERVAL = ("spectral_error", "spectral_error_relative", "max_error", *OUTPUT)


def rows(cfg: AttnErrorCommand, values: Values) -> list[dict[str, Any]]:
    """All records: the groups of layers, then every layer, its mean before its heads."""
    every = range(values.heads)
    table = []
    for group, places in groups(values.layers).items():
        table += [_row(cfg, values, subject, places, every, group=group) for subject in range(len(values.subjects))]
    for place, layer in enumerate(values.layers):
        for subject in range(len(values.subjects)):
            table.append(_row(cfg, values, subject, [place], every, layer=layer))
            table += [_row(cfg, values, subject, [place], [head], layer=layer, head=head) for head in every]
    return table


def groups(layers: Sequence[int]) -> dict[str, list[int]]:
    """The places of all layers, and of their thirds where there are three layers or more."""
    found = {"all": list(range(len(layers)))}
    if len(layers) < len(GROUPS):
        return found
    thirds = np.array_split(np.arange(len(layers)), len(GROUPS))
    return found | {name: third.tolist() for name, third in zip(GROUPS, thirds, strict=True)}


def errors_of(values: Values, subject: int, places: Sequence[int], field: str = "output_error_relative") -> np.ndarray:
    """The mean of a field over the heads of some layers, (inputs, seeds)."""
    return values.values[FIELDS.index(field), :, :, subject][..., list(places), :].mean(axis=(-2, -1))


def _row(
    cfg: AttnErrorCommand,
    values: Values,
    subject: int,
    places: Sequence[int],
    heads: Sequence[int],
    *,
    group: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> dict[str, Any]:
    one = values.subjects[subject]
    drawn = one.bias == "plsh"
    kernels = [values.kernels[place] for place in heads]
    same = len(set(kernels)) == 1
    return {
        "bias": one.bias,
        "num_samples": one.num_samples,
        "group": group,
        "layer": layer,
        "head": head,
        "n": values.n,
        "sigma": kernels[0].sigma if same else None,
        "kernel": kernels[0].label if same else cfg.bias.kernel,
        "sampler": cfg.bias.sampler if drawn else None,
        "pitch": cfg.bias.pitch if drawn else None,
        "seeds": values.seeds if drawn else None,
        "seed_first": cfg.seed if drawn else None,
        "inputs": values.inputs,
        "protocol": cfg.protocol,
        "method": values.computed_by,
        **_measured(values, subject, places, heads),
        **(_theory(cfg, kernels, values.n, one.num_samples) if drawn else _theory(cfg, [], values.n, None)),
    }


def _measured(values: Values, subject: int, places: Sequence[int], heads: Sequence[int]) -> dict[str, float | None]:
    drawn = values.subjects[subject].bias == "plsh"
    cells = values.values[:, :, : values.seeds if drawn else 1, subject][..., list(places), :][..., list(heads)]
    found: dict[str, float | None] = {}
    for place, name in enumerate(FIELDS):
        here = cells[place]
        if np.isnan(here).any():
            found[name] = None
            continue
        if name in _EXTREME:
            found[name] = float(_EXTREME[name](here))
            continue
        each = here.mean(axis=(-2, -1))
        found[name] = float(each.mean())
        if name in _WITH_INTERVAL:
            found[f"{name}_ci95"] = _half_width(each.mean(axis=0))
            found[f"{name}_ci95_inputs"] = _half_width(each.mean(axis=1)) if np.ptp(each, axis=0).any() else None
    return found


def _half_width(each: np.ndarray) -> float | None:
    return t_interval(each)[1] if np.isfinite(each).all() else None


def _theory(cfg: AttnErrorCommand, kernels: Sequence[Kernel], n: int, size: int | None) -> dict[str, float | None]:
    """The paper's bounds, the mean over kernels of the one on the error; None where they do not hold."""
    held = size is not None and cfg.bias.sampler == "iid" and all(kernel.sigma is not None for kernel in kernels)
    if not held or not kernels:
        return {"bound_expectation": None, "rule_of_thumb_samples": None}
    expected = [bounds.expectation_bound(kernel.sigma, n, size) for kernel in kernels]
    samples = _rule_of_thumb(kernels[0], n) if len(set(kernels)) == 1 else None
    return {"bound_expectation": float(np.mean(expected)), "rule_of_thumb_samples": samples}


@cache
def _rule_of_thumb(kernel: Kernel, n: int) -> int | None:
    return bounds.rule_of_thumb_samples(float(kernel.sigma or 0.0), n, 0.1 * kernel_norm(kernel, n))
