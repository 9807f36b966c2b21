"""The measures of `plsh attn-error` at long texts: outputs by the attention kernels, without anything of n x n.

Outputs are float32 (on other devices and without a compiler whatever `attention` chooses). E is scaled by the kernel's
own lse without a bias, so the masses sum_j E_ij W_ij are exp(lse_W - lse).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments.attn_error_metrics import numbers_of_rows
from plsh_cli.experiments.attn_error_subjects import Weights, all_weights
from plsh_cli.experiments.attn_error_values import Values
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.partitions import stack

if TYPE_CHECKING:
    import torch

    from plsh_cli.attention.bias import Bias
    from plsh_cli.experiments.attn_error_inputs import Inputs
    from plsh_cli.models.capture import Captured


def check_fused(cfg: AttnErrorCommand) -> None:
    """UserError where the kernels do not compute what is asked for."""
    if cfg.protocol == "paper":
        allowed = "protocol=paper puts 1e-20 where M~ is 0, which only method=dense does"
    elif cfg.bias.kernel != "alibi":
        allowed = f"exact attention under kernel={cfg.bias.kernel} is computed by method=dense only"
    else:
        return
    raise UserError("attn_error.method", "fused", f"{allowed}; use it, with fewer tokens if need be", "--tokens")


def measure_fused(cfg: AttnErrorCommand, inputs: Inputs, values: Values, advance: Callable[[int], None]) -> None:
    """Fill the array, all heads of a layer at once; advance(number of heads measured under one bias)."""
    known: dict[int, list[tuple[list[Weights], Bias]]] = {}
    for index, ids in enumerate(inputs.ids):
        n = ids.shape[1]
        captured = inputs.captured(index, "after")
        kernels = values.take_kernels(cfg, captured[0], n)
        if n not in known:
            known[n] = _biases(cfg, kernels, n)
        for place, layer in enumerate(captured):
            _measure_layer(known[n], kernels, layer, index, place, values, advance)


def _biases(cfg: AttnErrorCommand, kernels: Sequence[Kernel], n: int) -> list[tuple[list[Weights], Bias]]:
    """Every subject and seed: what each head has, and all heads together as attention's bias."""
    from plsh_cli.attention.bias import FixedBlocks, Mixed, Plsh, Window

    each = {kernel: all_weights(cfg, kernel, n, True) for kernel in dict.fromkeys(kernels)}
    found: list[tuple[list[Weights], Bias]] = []
    for column in zip(*(each[kernel] for kernel in kernels), strict=True):
        sigmas = [float(kernel.sigma or 1.0) for kernel in kernels]
        if column[0].reach is not None:
            # Half a token more than the reach survives the rounding of the logarithm.
            cuts = [math.exp(-(one.reach + 0.5) / sigma) for one, sigma in zip(column, sigmas, strict=True)]
            bias: Bias = Mixed(
                tuple(
                    ((head,), Window(sigma, max(cut, 1e-300)))
                    for head, (sigma, cut) in enumerate(zip(sigmas, cuts, strict=True))
                )
            )
        elif column[0].seed is None:
            bias = FixedBlocks([float(one.parts.widths[0, 0]) / 2.0 for one in column])
        else:
            bias = Plsh(stack([one.parts for one in column]))
        found.append((list(column), bias))
    return found


def _measure_layer(
    every: Sequence[tuple[list[Weights], Bias]],
    kernels: Sequence[Kernel],
    layer: Captured,
    index: int,
    place: int,
    values: Values,
    advance: Callable[[int], None],
) -> None:
    from plsh_cli.attention.api import choose_backend
    from plsh_cli.attention.bias import Alibi

    q, k, v = (x[None].float() for x in (layer.q, layer.k, layer.v))
    values.computed_by = f"{choose_backend(q, every[0][1])} {str(q.dtype).removeprefix('torch.')}"
    _, plain = attend(q, k, v, None, layer.scale)
    b, exact = attend(q, k, v, Alibi([kernel.sigma for kernel in kernels]), layer.scale)
    reach = layer.v.double().norm(dim=-1).cummax(dim=-1).values.repeat_interleave(q.shape[1] // k.shape[1], dim=0)
    for weights, bias in every:
        a, mass = attend(q, k, v, bias, layer.scale)
        for head, one in enumerate(weights):
            rows = numbers_of_rows(
                (a[head], (mass - plain)[head].exp()),
                (b[head], (exact - plain)[head].exp()),
                one.facts.max_error,
                reach[head],
            )
            values.put(one, index, place, head, rows.cpu().numpy(), symmetric=False)
        advance(len(weights))


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Bias | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (h, n, d) and lse (h, n, 1), as float64."""
    from plsh_cli.attention import attention

    out, lse = attention(q, k, v, bias, causal=True, scale=scale, return_lse=True)
    return out[0].double(), lse[0].double()[..., None]
