"""What the rows of `plsh attn-error` say together: how errors fall with s, and whether the theorem holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from plsh_cli.experiments.attn_error_metrics import SLACK
from plsh_cli.experiments.attn_error_rows import errors_of, groups
from plsh_cli.experiments.attn_error_values import FIELDS, Values
from plsh_cli.stats import loglog_slope, t_interval

#: Relative errors below this are rounding and say nothing about s.
ROUNDING = {"dense": 1e-12, "fused": 1e-5}

RELATIVE = {
    "corrected": "||T~ - T*||_F / ||T*||_F per head",
    "paper": "2 ||T~ - T*||_F / (||T~||_F + ||T*||_F) per head",
}
PROTOCOLS = {
    "corrected": "Q and K after RoPE, Q K^T, the model's own key heads, causal mask, M~ with true zeros; i.i.d. draws "
    "nested over s and shared by layers and inputs",
    "paper": "Q and K before RoPE, K Q^T, key head min(h, g - 1), no causal mask, zeros of M~ as 1e-20 in the softmax; "
    "new draws for every input, layer, head and s",
}


def summary(values: Values, protocol: str) -> dict[str, Any]:
    """Slopes, claims and conventions."""
    return {
        "protocol": protocol,
        "perplexity": float(np.mean(values.perplexities)),
        "perplexities": values.perplexities,
        "layers": values.layers,
        "groups": {name: [values.layers[place] for place in places] for name, places in groups(values.layers).items()},
        "kernels": [kernel.label for kernel in values.kernels],
        "method": values.computed_by,
        "slopes": slopes(values),
        "claims": [_falls(values), _bound_holds(values)],
        "conventions": {
            "measured": PROTOCOLS[protocol],
            "error": RELATIVE[protocol],
            "unnormalised": "E is exp(scores) with every row scaled to sum 1 over the keys that it sees",
            "ci95": "half-width of the 95 % t interval over seeds; _inputs: over texts",
            "slope": "log-log slope of the mean relative error over heads against s, fitted per seed (of one seed, per "
            "text), then a t interval",
        },
    }


def slopes(values: Values) -> list[dict[str, Any]]:
    """The exponent p of error ~ s^p per group of layers and per layer, of plsh.

    Null with a single s and where an error is at rounding level.
    """
    chosen = [(name, None, places) for name, places in groups(values.layers).items()]
    chosen += [(None, layer, [place]) for place, layer in enumerate(values.layers)]
    return [{"group": group, "layer": layer, **_slope(values, places)} for group, layer, places in chosen]


def _slope(values: Values, places: Sequence[int]) -> dict[str, Any]:
    drawn = _plsh(values)
    sizes = [values.subjects[subject].num_samples for subject in drawn]
    by_cell = np.stack([errors_of(values, subject, places) for subject in drawn])
    over = "seeds" if values.seeds > 1 or values.inputs == 1 else "inputs"
    each = by_cell.mean(axis=1 if over == "seeds" else 2)
    if len(sizes) < 2 or not (np.isfinite(each).all() and (each > ROUNDING[values.method]).all()):
        return {"slope": None, "slope_ci95": None, "over": over, "count": each.shape[1]}
    slope, half = t_interval([loglog_slope(sizes, line) for line in each.T])
    return {"slope": slope, "slope_ci95": half, "over": over, "count": each.shape[1]}


def _falls(values: Values) -> dict[str, Any]:
    """Whether each larger s has a smaller mean relative error, over all layers, heads, texts and seeds."""
    drawn = _plsh(values)
    means = [float(errors_of(values, subject, range(len(values.layers))).mean()) for subject in drawn]
    by_size = {str(values.subjects[subject].num_samples): mean for subject, mean in zip(drawn, means, strict=True)}
    met = all(after < before for before, after in pairwise(means)) if len(means) > 1 else None
    return {"claim": "the relative output error falls with every larger s", "met": met, "values": by_size}


def _bound_holds(values: Values) -> dict[str, Any]:
    """Whether no row's error is beyond the theorem's bound."""
    drawn = _plsh(values)
    violated, ratios, informative = (
        values.values[FIELDS.index(name)][:, :, drawn]
        for name in ("row_bound_violated", "row_bound_ratio_max", "row_bound_informative")
    )
    return {
        "claim": "no row's error is beyond the theorem's bound",
        "met": bool((violated == 0).all()),
        "rows": violated.size // values.inputs * sum(values.tokens),
        "largest_ratio": float(ratios.max()),
        "informative": float(informative.mean()),
        "slack": SLACK[values.method],
    }


def _plsh(values: Values) -> list[int]:
    return [place for place, subject in enumerate(values.subjects) if subject.bias == "plsh"]
