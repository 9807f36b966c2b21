"""The kernels that a `bias` section names, refused with the config key when they cannot be used."""

from __future__ import annotations

from plsh_cli.config.schema.biases import DrawsBias
from plsh_cli.errors import UserError
from plsh_cli.positional import kernels as families
from plsh_cli.positional.kernels import Kernel, alibi_slopes


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
    field = {"alibi": "bias.sigma", "table": "bias.table"}.get(bias.kernel, "bias.a")
    for kernel in built:
        try:
            kernel.check(n)
        except ValueError as error:
            raise UserError(
                field, getattr(bias, field.removeprefix("bias.")), f"not usable at n={n}: {error}"
            ) from None
    return built


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
