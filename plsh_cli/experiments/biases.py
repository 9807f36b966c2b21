"""The kernels that a `bias` section names, refused with the config key when they cannot be used."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from plsh_cli.config.schema import PlshBias
from plsh_cli.errors import UserError
from plsh_cli.positional import kernels as families
from plsh_cli.positional.kernels import Kernel, alibi_slopes


def kernels(bias: PlshBias, heads: int, n: int) -> list[Kernel]:
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


def _alibi(bias: PlshBias, heads: int) -> list[Kernel]:
    sigmas = bias.sigma if bias.sigma is not None else (1.0 / alibi_slopes(heads)).tolist()
    return [families.alibi(sigma) for sigma in sigmas]


def _log(bias: PlshBias, heads: int) -> list[Kernel]:
    return [families.log(a, b) for a, b in _pairs("a", bias.a or [1.0], "b", bias.b or [1.0])]


def _power(bias: PlshBias, heads: int) -> list[Kernel]:
    return [families.power(a, p) for a, p in _pairs("a", bias.a or [1.0], "p", bias.p or [0.5])]


def _table(bias: PlshBias, heads: int) -> list[Kernel]:
    values = bias.table
    name = "table" if not isinstance(values, str) else Path(values).stem
    numbers = _read_table(values) if isinstance(values, str) else values
    try:
        return [families.table(numbers, name)]
    except ValueError as error:
        raise UserError("bias.table", values, str(error), "bias.table=...") from None


def _read_table(path: str) -> np.ndarray:
    """phi(0), phi(1), ... from a .npy file, or from a text file with white space or commas between the numbers."""
    try:
        if path.endswith(".npy"):
            return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        text = Path(path).read_text(encoding="utf-8")
        return np.array([float(word) for word in re.split(r"[\s,]+", text.strip())])
    except OSError as error:
        raise UserError("bias.table", path, f"cannot be read ({error.strerror or error})", "bias.table=...") from None
    except (ValueError, TypeError):
        allowed = "must hold the numbers phi(0), phi(1), ... with white space or commas between them, or be a .npy file"
        raise UserError("bias.table", path, allowed, "bias.table=...") from None


def _pairs(first_name: str, first: list[float], second_name: str, second: list[float]) -> list[tuple[float, float]]:
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        allowed = f"must have one value or as many as bias.{second_name} ({len(second)}), has {len(first)}"
        raise UserError(f"bias.{first_name}", first, allowed, f"bias.{first_name}=[...]")
    count = max(len(first), len(second))
    return list(
        zip(first * count if len(first) == 1 else first, second * count if len(second) == 1 else second, strict=True)
    )
