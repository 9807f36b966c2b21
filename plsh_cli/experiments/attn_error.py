"""`plsh attn-error`: how far attention under M~ is from attention under L*, on a trained model's Q, K and V.

For every layer, query head and s: the norms of M~ - L*, the error of the outputs T~ against T* before and after
normalisation, and the theorem's bound on each row (see attn_error_metrics and attn_error_rows). Code name to the
paper's symbol: num_samples s, l_star L*, m_tilde M~, outputs T~ and T*.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments.attn_error_fused import check_fused, measure_fused
from plsh_cli.experiments.attn_error_inputs import DOUBLE, Inputs, check_inputs, chosen_layers, prepare
from plsh_cli.experiments.attn_error_kernels import head_kernels, takes_slopes
from plsh_cli.experiments.attn_error_plan import (
    as_time,
    draw_bytes,
    estimated_bytes,
    estimated_seconds,
    method_of,
    weight_bytes,
)
from plsh_cli.experiments.attn_error_rows import rows
from plsh_cli.experiments.attn_error_subjects import seeds, subjects
from plsh_cli.experiments.attn_error_summary import summary
from plsh_cli.experiments.attn_error_values import FIELDS, Values, empty, measure_dense
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.result import Result
from plsh_cli.models.shape import Shape
from plsh_cli.positional.kernels import Kernel


def plan(cfg: AttnErrorCommand) -> dict[str, object]:
    """What a run would do, without fetching or loading anything. Raises UserError for what cannot run."""
    shape, missing = check_inputs(cfg)
    # What auto means is only known to torch, whose import a plan does without.
    device = "auto" if cfg.device == "auto" else chosen_device(cfg.device, DOUBLE)
    layers = chosen_layers(cfg, shape.layers) if shape.layers else cfg.attn_error.layers
    n = cfg.attn_error.tokens
    kernels = head_kernels(cfg, shape.heads, n) if shape.heads else []
    method = method_of(cfg, n)
    if method == "fused":
        check_fused(cfg)
    needed = _checked_memory(cfg, shape, len(layers or [0]), kernels, weights=False)
    planned = {
        "model": cfg.model.path or cfg.model.name,
        "texts": _texts(cfg),
        "protocol": cfg.protocol,
        "layers": layers or "all, known after loading",
        "kernels": [kernel.label for kernel in kernels] or "one per query head, known after loading",
        "slopes": "Press et al.'s, or the model's own where it has ALiBi" if takes_slopes(cfg) else "as given",
        "biases": cfg.attn_error.biases,
        "sampler": cfg.bias.sampler,
        "num_samples": sorted(cfg.attn_error.num_samples),
        "seeds": seeds(cfg),
        "method": method,
        "device": device,
        "to_fetch": missing,
        "estimated_peak_memory": gibibytes(needed),
    }
    seconds = estimated_seconds(cfg, shape, len(layers or []), kernels) if layers else None
    if seconds is not None:
        planned["estimated_time"] = f"{as_time(seconds)} on two CPU cores, after loading"
    return planned


def run(cfg: AttnErrorCommand, run: Any) -> Result:
    """Load, capture, measure. `run` gives progress, metrics and plain lines (see `experiments.harness.Run`)."""
    started = time.perf_counter()
    shape, _ = check_inputs(cfg)
    if shape.layers and chosen_device(cfg.device, DOUBLE) == "cpu":
        _checked_memory(cfg, shape, len(chosen_layers(cfg, shape.layers)), [], weights=True)
    inputs = prepare(cfg, run.say)
    method = method_of(cfg, inputs.longest)
    if method == "fused":
        check_fused(cfg)
    # The plan may not have known the number of heads.
    _check_draws(cfg, head_kernels(cfg, inputs.num_heads, inputs.longest))
    values = empty(cfg, inputs, method)
    values.perplexities = [inputs.perplexity(index) for index in range(len(inputs.ids))]
    run.say(f"{inputs.opened.label} on {inputs.text}: perplexity {np.mean(values.perplexities):.2f}")
    prepared = time.perf_counter()
    with run.progress(_cells(cfg, inputs), "plsh attn-error") as bar:
        (measure_fused if method == "fused" else measure_dense)(cfg, inputs, values, bar.advance)
    measured = time.perf_counter()
    table = rows(cfg, values)
    for row in table:
        if row["head"] is None:
            run.log({key: value for key, value in row.items() if value is not None})
    run.save_arrays("values", **_arrays(values))
    details = {
        "model": inputs.opened.label,
        "text": inputs.text,
        "model_details": inputs.opened.details,
        "text_details": inputs.text_details,
        "device": inputs.device,
        "own_slopes": values.own_slopes,
    }
    timing = {
        "load_seconds": prepared - started,
        "measure_seconds": measured - prepared,
        "seconds": time.perf_counter() - started,
    }
    return Result(table, details | summary(values, cfg.protocol), timing)


def _checked_memory(
    cfg: AttnErrorCommand, shape: Shape, layers: int, kernels: Sequence[Kernel], *, weights: bool
) -> float:
    """The bytes that a run needs; UserError where there are fewer.

    weights: whether the model's own weights count. A plan leaves them out, so that it can be had on any machine.
    """
    needed, available = estimated_bytes(cfg, shape, layers, kernels), available_bytes()
    counted = needed if weights else needed - weight_bytes(cfg, shape)
    if available is not None and counted > available:
        _check_draws(cfg, kernels, counted)
        what = "needs" if weights else "needs, beside the model's weights,"
        allowed = f"{what} about {gibibytes(counted)}, {gibibytes(available)} are available; use fewer tokens"
        raise UserError("attn_error.tokens", cfg.attn_error.tokens, allowed, "--tokens")
    return needed


def _check_draws(cfg: AttnErrorCommand, kernels: Sequence[Kernel], counted: float = 0.0) -> None:
    """UserError where draws alone take more memory than there is, or most of the `counted` bytes that are too many."""
    draws, available = draw_bytes(cfg, kernels), available_bytes()
    if available is not None and draws > min(available, counted / 2.0 or math.inf):
        sizes = sorted(cfg.attn_error.num_samples)
        # Half of what would fit leaves the rest of the run its part.
        fewer = max(1.0, 0.5 * sizes[-1] * available / draws)
        allowed = f"the draws need about {gibibytes(draws)}, {gibibytes(available)} are available"
        allowed += f"; use fewer, at most about {fewer:,.0f}, or fewer seeds"
        raise UserError("attn_error.num_samples", sizes, allowed, "--s")


def _texts(cfg: AttnErrorCommand) -> str:
    asked, where = cfg.attn_error, cfg.data.name
    if asked.texts == "windows":
        return f"{where}, {asked.inputs} windows of about {asked.tokens} tokens"
    which = f"document {cfg.data.document}"
    if asked.inputs > 1:
        which = f"{asked.inputs} documents {'after' if cfg.data.document >= 0 else 'back'} from {cfg.data.document}"
    return f"{where}, {which}, first {asked.tokens} tokens"


def _cells(cfg: AttnErrorCommand, inputs: Inputs) -> int:
    """Heads to measure under one bias matrix, of all texts, layers, seeds and subjects."""
    drawn = sum(subject.bias == "plsh" for subject in subjects(cfg))
    every = drawn * len(seeds(cfg)) + len(subjects(cfg)) - drawn
    return len(inputs.ids) * len(inputs.layers) * inputs.num_heads * every


def _arrays(values: Values) -> dict[str, np.ndarray]:
    """values.npz: every measure (field, input, seed, subject, layer, head), and rows for the figure of the bound."""
    return {
        "fields": np.array(FIELDS),
        "values": values.values,
        "biases": np.array([one.bias for one in values.subjects]),
        "num_samples": np.array([one.num_samples or 0 for one in values.subjects]),
        "layers": np.array(values.layers),
        "picked": values.picked,
        "picked_error": values.picked_error,
        "picked_bound": values.picked_bound,
    }
