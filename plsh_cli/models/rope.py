"""Dropping a model's RoPE: queries and keys turned by an angle of 0, in the model and in its saved configuration.

The configuration then names a rope type that only plsh registers, so a saved model keeps it, and transformers without
plsh refuses to load such a model instead of turning its RoPE on again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plsh_cli.errors import MessageError
from plsh_cli.models.saved import warn_if_left_out

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

ROPE_TYPE = "plsh_none"
_KEPT = ("rope_theta", "partial_rotary_factor")


def register() -> None:
    """Make the rope type known to transformers."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RotaryEmbeddingConfigMixin

    ROPE_INIT_FUNCTIONS[ROPE_TYPE] = _no_frequencies
    # Without it, every configuration of this type is loaded with a warning.
    setattr(RotaryEmbeddingConfigMixin, f"_validate_{ROPE_TYPE}_rope_parameters", _accept)


def drop_rope(model: PreTrainedModel) -> Callable[[], None]:
    """Drop the model's RoPE, and return the function that brings it back.

    Raises MessageError for a model without RoPE modules that transformers' rope types govern, such as one with learned
    positions.
    """
    register()
    config = model.config.get_text_config()
    rotary = [module for module in model.modules() if _is_rotary(module, config)]
    if not rotary or not getattr(config, "rope_parameters", None):
        raise MessageError(
            f"{type(model).__name__} has no RoPE that could be dropped: its positions enter in another way; "
            f'use rope="keep"'
        )
    undo = [_silence(module) for module in rotary]
    before = config.rope_parameters
    config.rope_parameters = _without(before)

    def restore() -> None:
        config.rope_parameters = before
        for one in undo:
            one()

    return restore


def _is_rotary(module: torch.nn.Module, config: PreTrainedConfig) -> bool:
    """Whether it is a rotary embedding of the language model; vision towers have their own configuration."""
    return getattr(module, "config", None) is config and hasattr(module, "rope_type") and bool(_frequencies(module))


def _frequencies(module: torch.nn.Module) -> list[str]:
    return [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]


def _silence(module: torch.nn.Module) -> Callable[[], None]:
    """Set frequencies to 0 and the factor on cos and sin to 1; return what undoes it."""
    import torch

    buffers = {name: getattr(module, name) for name in _frequencies(module)}
    scalings = {name: value for name, value in vars(module).items() if name.endswith("attention_scaling")}
    rope_type = module.rope_type
    for name, value in buffers.items():
        module.register_buffer(name, torch.zeros_like(value), persistent=False)
    for name in scalings:
        setattr(module, name, 1.0)
    module.rope_type = dict.fromkeys(rope_type, ROPE_TYPE) if isinstance(rope_type, dict) else ROPE_TYPE

    def undo() -> None:
        for name, value in buffers.items():
            # The model may have moved in the meantime.
            module.register_buffer(name, value.to(getattr(module, name).device), persistent=False)
        for name, value in scalings.items():
            setattr(module, name, value)
        module.rope_type = rope_type

    return undo


def _without(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return rope parameters of our type; nested ones, one set per type of layer, stay nested."""
    nested = [one for one in parameters.values() if isinstance(one, dict)]
    if nested:
        return {name: _without(one) if isinstance(one, dict) else copy.copy(one) for name, one in parameters.items()}
    return {"rope_type": ROPE_TYPE} | {name: parameters[name] for name in _KEPT if name in parameters}


def _no_frequencies(
    config: PreTrainedConfig,
    device: torch.device | None = None,
    seq_len: int | None = None,
    layer_type: str | None = None,
) -> tuple[torch.Tensor, float]:
    """Return as many zeros as the model has frequencies, and the factor 1 on cos and sin."""
    import torch

    # Only a model that is being built or loaded asks, and by then its attention is known.
    warn_if_left_out(config)
    parameters = config.rope_parameters[layer_type] if layer_type is not None else config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    return torch.zeros((turned + 1) // 2, dtype=torch.float32, device=device), 1.0


def _accept(self: Any, rope_parameters: dict[str, Any], ignore_keys: set[str] | None = None) -> None:
    self._check_received_keys(
        ROPE_TYPE, set(rope_parameters), {"rope_type"}, optional_keys=set(_KEPT), ignore_keys=ignore_keys
    )
