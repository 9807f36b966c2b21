"""What a `bias` section names, as kernels or as attention's bias; refused with the config key if it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plsh_cli.config.schema.biases import (
    AlibiBias,
    DrawsBias,
    FixedBlocksBias,
    ModelBias,
    NoneBias,
    PlshBias,
    WindowBias,
)
from plsh_cli.errors import UserError
from plsh_cli.positional import kernels as families
from plsh_cli.positional.kernels import Kernel, alibi_slopes

if TYPE_CHECKING:
    from plsh_cli.attention.bias import Bias


def kernels(bias: DrawsBias, heads: int, n: int) -> list[Kernel]:
    """One kernel per sigma (alibi; null: the slopes of `heads` heads), pair of parameters (log, power), or table.

    Parameter lists of one value go with every value of the other. Each kernel is checked up to distance n - 1:
    UserError names the first distance where a kernel is not convex and decreasing, a table that is too short or
    unreadable, parameter lists that do not match, and a kernel given twice.
    """
    built = {"alibi": _alibi, "log": _log, "power": _power, "table": _table}[bias.kernel](bias, heads)
    labels = [kernel.label for kernel in built]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated and bias.sigma is not None:
        raise UserError(
            "bias.sigma", bias.sigma, f"values must differ in the first digits; repeated: {repeated}", "--sigma"
        )
    if repeated:
        raise UserError(
            "bias.a", bias.a, f"must not give one kernel twice; repeated: {', '.join(repeated)}", "bias.a=[...]"
        )
    _check(bias, built, n)
    return built


def attention_bias(bias: ModelBias, heads: int, capacity: int, seed: int, *key: str | int) -> Bias | None:
    """The bias that attention takes for a model of so many query heads; None for `original`.

    Every head has draws of its own, over `capacity` positions, in the stream (seed, "draws", *key, head): the same
    wherever and whenever they are drawn. Raises UserError for parameters that are neither one for all heads nor one per
    head, and for kernels that are none on so many positions.
    """
    from plsh_cli import attention
    from plsh_cli.positional.partitions import stack
    from plsh_cli.positional.samplers import draw
    from plsh_cli.positional.streams import generator

    if isinstance(bias, PlshBias):
        drawn = [
            draw(kernel, capacity, bias.num_samples, generator(seed, "draws", *key, head), bias.sampler, bias.pitch)
            for head, kernel in enumerate(head_kernels(bias, heads, capacity))
        ]
        return attention.Plsh(stack(drawn), bias.merge)
    if isinstance(bias, NoneBias):
        return attention.NoBias()
    if isinstance(bias, AlibiBias):
        return attention.Alibi(head_sigmas(bias, heads))
    if isinstance(bias, WindowBias):
        return attention.Window(head_sigmas(bias, heads), bias.eps)
    return attention.FixedBlocks(head_sigmas(bias, heads)) if isinstance(bias, FixedBlocksBias) else None


def head_sigmas(bias: PlshBias | AlibiBias | WindowBias | FixedBlocksBias, heads: int) -> list[float]:
    """One sigma per query head, in tokens; UserError unless the section has none, one, or one per head."""
    sigmas = (1.0 / alibi_slopes(heads)).tolist() if bias.sigma is None else list(bias.sigma)
    if len(sigmas) not in (1, heads):
        allowed = f"must have one value for all heads or {heads}, one per query head; has {len(sigmas)}"
        raise UserError("bias.sigma", bias.sigma, allowed, "bias.sigma=[...]")
    return sigmas * heads if len(sigmas) == 1 else sigmas


def head_kernels(bias: PlshBias, heads: int, n: int) -> list[Kernel]:
    """One kernel per query head, equal ones allowed, checked up to distance n - 1. Raises as `kernels` does."""
    if bias.kernel == "alibi":
        built = [families.alibi(sigma) for sigma in head_sigmas(bias, heads)]
    else:
        built = {"log": _log, "power": _power, "table": _table}[bias.kernel](bias, heads)
        if len(built) not in (1, heads):
            allowed = f"must have one value for all heads or {heads}, one per query head; has {len(built)}"
            raise UserError("bias.a", bias.a, allowed, "bias.a=[...]")
    _check(bias, built, n)
    return built * heads if len(built) == 1 else built


def _check(bias: DrawsBias, built: list[Kernel], n: int) -> None:
    field = {"alibi": "bias.sigma", "table": "bias.table"}.get(bias.kernel, "bias.a")
    for kernel in dict.fromkeys(built):
        try:
            kernel.check(n)
        except ValueError as error:
            raise UserError(
                field, getattr(bias, field.removeprefix("bias.")), f"not usable at n={n}: {error}"
            ) from None


def _alibi(bias: DrawsBias, heads: int) -> list[Kernel]:
    sigmas = bias.sigma if bias.sigma is not None else (1.0 / alibi_slopes(heads)).tolist()
    return [families.alibi(sigma) for sigma in sigmas]


def _log(bias: DrawsBias, heads: int) -> list[Kernel]:
    return [families.log(a, b) for a, b in _pairs("a", bias.a or [1.0], "b", bias.b or [1.0])]


def _power(bias: DrawsBias, heads: int) -> list[Kernel]:
    return [families.power(a, p) for a, p in _pairs("a", bias.a or [1.0], "p", bias.p or [0.5])]


def _table(bias: DrawsBias, heads: int) -> list[Kernel]:
    try:
        return [families.table(bias.table or [], bias.table_name)]
    except ValueError as error:
        raise UserError("bias.table", bias.table, str(error), "bias.table=...") from None


def _pairs(first_name: str, first: list[float], second_name: str, second: list[float]) -> list[tuple[float, float]]:
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        allowed = f"must have one value or as many as bias.{second_name} ({len(second)}), has {len(first)}"
        raise UserError(f"bias.{first_name}", first, allowed, f"bias.{first_name}=[...]")
    count = max(len(first), len(second))
    return list(
        zip(first * count if len(first) == 1 else first, second * count if len(second) == 1 else second, strict=True)
    )
