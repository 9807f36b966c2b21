"""How far a method's output is from exact ALiBi in float64: ||a - b|| / ||b||, Frobenius, over all heads.

Up to 4,096 queries, all of them where there are no more, else 32 runs of 128 evenly spaced. Keys whose weight is below
exp(-100) beside the nearest one are left out of the exact output: with scores of standard deviation 1 that is far below
the last bit of float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from plsh_cli.experiments.bench_attention_calls import Inputs
from plsh_cli.experiments.bench_attention_plan import Method

RUN, RUNS, NEGLIGIBLE_NATS = 128, 32, 100.0
#: Beyond this an output that should be exact ALiBi is wrong, not imprecise.
WRONG = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Exact:
    """Exact outputs (b, h, len(rows), d) float64 of these queries."""

    rows: torch.Tensor
    out: torch.Tensor


def exact_alibi(inputs: Inputs, sigma: Sequence[float], causal: bool) -> Exact:
    """The exact output of the sampled queries, from the inputs as they are (rounded to their type)."""
    n = inputs.q.shape[2]
    starts = _run_starts(n)
    out = [
        torch.stack([_of_run(inputs, head, scale, start, causal) for head, scale in enumerate(sigma)], dim=1)
        for start in starts
    ]
    rows = torch.cat([torch.arange(start, min(start + RUN, n)) for start in starts])
    return Exact(rows.to(inputs.q.device), torch.cat(out, dim=2))


def relative_error(out: torch.Tensor, exact: Exact) -> float:
    """||a - b|| / ||b|| over the sampled queries; infinite for an output that is not finite."""
    found = float((out[:, :, exact.rows].double() - exact.out).norm() / exact.out.norm())
    return found if math.isfinite(found) else math.inf


def fault(method: Method, out: torch.Tensor, error: float) -> str:
    """What is wrong with an output, "" where nothing is: not finite, or far from the exact ALiBi that it should be."""
    if not math.isfinite(error):
        return "its output is not finite"
    if method.exact and error > WRONG[out.dtype]:
        return f"its output is off by {error:.2g} from the exact ALiBi that it should be"
    return ""


def _run_starts(n: int) -> list[int]:
    if n <= RUN * RUNS:
        return list(range(0, n, RUN))
    return np.linspace(0, n - RUN, RUNS).round().astype(int).tolist()


def _of_run(inputs: Inputs, head: int, sigma: float, start: int, causal: bool) -> torch.Tensor:
    """The queries start..start+127 of one head, (b, rows, d)."""
    n, dim = inputs.q.shape[2:]
    stop, reach = min(start + RUN, n), math.ceil(NEGLIGIBLE_NATS * sigma)
    first, last = max(0, start - reach), stop if causal else min(n, stop + reach)
    q, k, v = (
        x[:, head, a:b].double()
        for x, (a, b) in ((inputs.q, (start, stop)), (inputs.k, (first, last)), (inputs.v, (first, last)))
    )
    device = q.device
    apart = torch.arange(start, stop, device=device)[:, None] - torch.arange(first, last, device=device)
    logits = q @ k.mT * dim**-0.5 - apart.abs().double() / sigma
    if causal:
        logits.masked_fill_(apart < 0, -torch.inf)
    return logits.softmax(dim=-1) @ v
