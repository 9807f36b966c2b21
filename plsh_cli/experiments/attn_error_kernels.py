"""The bias kernel of every query head in `plsh attn-error`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import biases
from plsh_cli.positional.kernels import Kernel

if TYPE_CHECKING:
    import torch


def head_kernels(cfg: AttnErrorCommand, num_heads: int, n: int, slopes: torch.Tensor | None = None) -> list[Kernel]:
    """One kernel per query head: those of the `bias` section, a single one standing for all heads.

    slopes (h,): of a model with ALiBi of its own, which take the place of Press et al.'s where bias.sigma is null.
    Raises UserError where their number is neither 1 nor the number of heads, and as `biases.kernels` does.
    """
    bias = cfg.bias
    if slopes is not None and takes_slopes(cfg):
        own = [float(1.0 / slope) for slope in slopes.double().cpu()]
        # Heads may share a slope, which sigma as a list of its own may not.
        found = {
            sigma: biases.kernels(bias.model_copy(update={"sigma": [sigma]}), 1, n)[0] for sigma in dict.fromkeys(own)
        }
        return [found[sigma] for sigma in own]
    kernels = biases.kernels(bias, num_heads, n)
    if len(kernels) == 1:
        return kernels * num_heads
    if len(kernels) != num_heads:
        field, value = ("bias.sigma", bias.sigma) if bias.kernel == "alibi" else ("bias.a", bias.a)
        raise UserError(
            field,
            value,
            f"must have one value for all heads or {num_heads}, one per query head; has {len(kernels)}",
            "--sigma" if field == "bias.sigma" else f"{field}=[...]",
        )
    return kernels


def takes_slopes(cfg: AttnErrorCommand) -> bool:
    """Whether a model's own ALiBi slopes would be taken."""
    return cfg.bias.kernel == "alibi" and cfg.bias.sigma is None
