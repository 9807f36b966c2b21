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
    from plsh_cli.models.spec import BiasSpec


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
    spec = bias_spec(bias, heads, capacity, seed, *key)
    return None if spec is None else spec.build(heads, capacity)


def bias_spec(bias: ModelBias, heads: int, capacity: int, seed: int, *key: str | int) -> BiasSpec | None:
    """The plain description of the bias that `attention_bias` makes, for a saved model; None for `original`.

    Raises as `attention_bias` does.
    """
    from plsh_cli.models.spec import BiasSpec

    if isinstance(bias, NoneBias):
        return BiasSpec("none")
    if isinstance(bias, PlshBias):
        built = head_kernels(bias, heads, capacity)
        return BiasSpec(
            "plsh",
            kernel=bias.kernel,
            parameters=() if bias.kernel == "table" else tuple(kernel.parameters for kernel in built),
            table=built[0].values,
            table_name=bias.table_name,
            num_samples=bias.num_samples,
            sampler=bias.sampler,
            pitch=bias.pitch,
            merge=bias.merge,
            seed=seed,
            key=key,
            share_layers=bias.share_layers,
            capacity=capacity,
        )
    if not isinstance(bias, AlibiBias | WindowBias | FixedBlocksBias):
        return None
    parameters = tuple((sigma,) for sigma in head_sigmas(bias, heads))
    if isinstance(bias, WindowBias):
        return BiasSpec("window", parameters=parameters, eps=bias.eps)
    return BiasSpec("alibi" if isinstance(bias, AlibiBias) else "fixed_blocks", parameters=parameters)


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
