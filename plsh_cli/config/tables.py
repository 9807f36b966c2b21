"""Kernel tables from files: read once, when the configuration is composed, so that the numbers are part of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from plsh_cli.errors import UserError

_ALLOWED = (
    "must hold the numbers phi(0), phi(1), ... with white space or commas between them, or be a .npy file of them"
)


def inline(plain: dict[str, Any]) -> dict[str, Any]:
    """The plain configuration with `bias.table`, where it is a path, replaced by the file's numbers.

    A run's folder, its config hash and a rerun thus depend on what the file held, not on where it lay.
    """
    bias = plain.get("bias")
    if not isinstance(bias, dict) or not isinstance(bias.get("table"), str):
        return plain
    path = bias["table"]
    return {**plain, "bias": {**bias, "table": read(path), "table_name": Path(path).stem}}


def read(path: str) -> list[float]:
    """phi(0), phi(1), ... from a .npy file or a text file; UserError where it cannot be read or holds anything else."""
    try:
        numbers = _read_npy(path) if path.endswith(".npy") else _read_text(path)
    except OSError as error:
        raise UserError("bias.table", path, f"cannot be read ({error.strerror or error})", "bias.table=...") from None
    except (ValueError, TypeError, EOFError):
        raise UserError("bias.table", path, _ALLOWED, "bias.table=...") from None
    if not numbers:
        raise UserError("bias.table", path, _ALLOWED, "bias.table=...")
    return numbers


def _read_text(path: str) -> list[float]:
    return [float(word) for word in re.split(r"[\s,]+", Path(path).read_text(encoding="utf-8").strip())]


def _read_npy(path: str) -> list[float]:
    import numpy as np

    values = np.load(path, allow_pickle=False)
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise ValueError("not one line of real numbers")
    return [float(value) for value in values]
