"""Putting a saved LoRA adapter on its base, through peft, from safetensors alone."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli.errors import MessageError
from plsh_cli.models.adapter import SETTINGS, WEIGHTS
from plsh_cli.models.shape import weights_fault

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig
    from transformers import PreTrainedModel

#: The base is known from plsh.json; the others name modules to import.
_UNUSED = ("base_model_name_or_path", "auto_mapping", "megatron_core")


def attach(model: PreTrainedModel, folder: Path, merge: bool = False) -> PreTrainedModel:
    """Return the model with the adapter of a folder in its layers, in evaluation mode; `merge`: added to its weights.

    In place: the base's class and configuration stay. transformers takes an unmerged model for one with an adapter of
    its own: its `save_pretrained` writes that alone, or refuses where it wants a newer peft. The adapter is in float32,
    whatever the base is in; merged weights have the base's type. Raises MessageError for a damaged adapter, one of
    another kind than LoRA, and one that does not fit the model.
    """
    from peft import get_peft_model, set_peft_model_state_dict
    from peft.utils import get_peft_model_state_dict
    from torch.random import fork_rng

    settings, weights = _settings(folder), _weights(folder)
    name = type(model).__name__
    try:
        # The weights are first drawn at random, which must not move the program's own generator. Without them, peft
        # would round the adapter to the base's type.
        with warnings.catch_warnings(), fork_rng(devices=[]):
            # peft asks for an attribute under the name that transformers is about to give up.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
            whole = get_peft_model(model, settings)
        wanted = set(get_peft_model_state_dict(whole, save_embedding_layers=False))
        lacking, unknown = sorted(wanted - set(weights)), sorted(set(weights) - wanted)
        if lacking or unknown:
            told = f"{len(lacking)} tensors are missing" if lacking else f"{len(unknown)} tensors have no place"
            raise MessageError(f"{folder}: the adapter does not fit {name}: {told}, such as {(lacking or unknown)[0]}")
        set_peft_model_state_dict(whole, weights)
    except (ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:
        raise MessageError(f"{folder}: the adapter does not fit {name}: {_first_line(error)}") from error
    if merge:
        merged = whole.merge_and_unload()
        # peft leaves its settings behind, and transformers would take the model for one with an adapter.
        vars(merged).pop("peft_config", None)
        return merged.eval()
    inner = whole.get_base_model()
    inner._hf_peft_config_loaded = True
    return inner.requires_grad_(False).eval()


def _settings(folder: Path) -> LoraConfig:
    """peft's settings. They may name modules to import (for Megatron's parallel layers), which no file here may."""
    from peft import LoraConfig

    file = folder / SETTINGS
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        kind = values.get("peft_type")
        if kind == "LORA" and not values.get("megatron_config"):
            values = {key: value for key, value in values.items() if key not in _UNUSED}
            return LoraConfig.from_peft_type(**values | {"inference_mode": True})
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise MessageError(f"{file} cannot be read as the settings of an adapter: {_first_line(error)}") from error
    also = " with Megatron's settings" if kind == "LORA" else ""
    raise MessageError(f"{file} is of peft's type {kind}{also}; plsh reads adapters of type LORA")


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / WEIGHTS
    if not file.is_file():
        raise MessageError(f"{folder} holds no weights of an adapter: there is no {WEIGHTS} in it")
    fault = weights_fault(file)
    if fault:
        raise MessageError(f"{file} is {fault}")
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise MessageError(f"{file} is damaged: {_first_line(error)}") from error
    bad = next((name for name, value in weights.items() if not bool(value.isfinite().all())), None)
    if bad is not None:
        raise MessageError(f"{file} is damaged: {bad} holds NaN or infinity")
    return weights


def _first_line(error: Exception) -> Any:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (" ".join(lines[:2]) if lines[0].endswith(":") else lines[0])[:300]
