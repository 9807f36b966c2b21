"""The record beside a saved adapter: the bias that it was fine-tuned under, and the model that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from plsh_cli.errors import MessageError
from plsh_cli.models.spec import BiasSpec

RECORD = "plsh.json"
#: peft's files.
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DTYPES = ("float32", "bfloat16", "float16")
_FORMAT = 1


@dataclass(frozen=True)
class Base:
    """The model that an adapter changes.

    name: of the asset manifest, None for others. path: the folder (absolute) or hub id that was given, None for a name.
    revision, commit: of the hub, None where it is not from there. fingerprint: see fingerprint.py.
    """

    name: str | None
    path: str | None
    revision: str | None
    commit: str | None
    fingerprint: str

    @property
    def label(self) -> str:
        """One clause that says what it is."""
        commit = f" at {self.commit[:12]}" if self.commit else ""
        return f"{self.path or self.name}{commit}"


@dataclass(frozen=True)
class AdapterRecord:
    """How a model is made from its base and an adapter.

    bias: None where the base keeps its own attention. rope: whether the base's RoPE stays beside the bias. dtype: what
    the base's weights are held in.
    """

    bias: BiasSpec | None
    rope: Literal["keep", "drop"]
    dtype: str
    base: Base


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter in peft's format, rather than a whole model."""
    return (folder / SETTINGS).is_file()


def write_record(folder: Path, record: AdapterRecord) -> None:
    """Write plsh.json into the folder of an adapter."""
    values = {
        "format": _FORMAT,
        "bias": None if record.bias is None else record.bias.to_dict(),
        "rope": record.rope,
        "dtype": record.dtype,
        "base": asdict(record.base),
    }
    (folder / RECORD).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def read_record(folder: Path) -> AdapterRecord:
    """Return what plsh.json in the folder of an adapter says; MessageError where it is missing, damaged or newer."""
    file = folder / RECORD
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MessageError(
            f"{folder} holds an adapter without {RECORD}, so its base and its bias are not known: plsh finetune writes "
            f"that file, copy it with the adapter"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise MessageError(f"{file} cannot be read: {error}") from error
    if isinstance(values, dict) and values.get("format") not in (None, _FORMAT):
        raise MessageError(f"{file} is of format {values['format']!r}, this version of plsh knows format {_FORMAT}")
    try:
        return _record(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(f"{file} is damaged: {type(error).__name__}: {error}") from error


def _record(values: Mapping[str, Any]) -> AdapterRecord:
    rope, dtype, base = values["rope"], values["dtype"], Base(**values["base"])
    if rope not in ("keep", "drop") or dtype not in DTYPES:
        raise ValueError(f"rope = {rope!r}, dtype = {dtype!r}")
    if not isinstance(base.fingerprint, str) or not (base.name or base.path):
        raise ValueError("base has neither name nor path, or no fingerprint")
    bias = values["bias"]
    return AdapterRecord(None if bias is None else BiasSpec.from_dict(bias), rope, dtype, base)
