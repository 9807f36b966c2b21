"""The queries, keys and values that a model's attention works on, taken out of one forward pass.

Shapes: h query heads, g key/value heads (h is a multiple of g; query head i belongs to key head i // (h / g)),
n tokens, d head dim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from plsh_cli.errors import MessageError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_NAME = "plsh_capture"


class Captured(NamedTuple):
    """What one layer's attention got: q (h, n, d), k and v (g, n, d) after RoPE, and the factor on q k^T."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float


def capture_qkv(model: PreTrainedModel, input_ids: torch.Tensor, layers: Sequence[int]) -> dict[int, Captured]:
    """Q, K and V of the given layers (counted from 0) for one text, from one forward pass.

    `input_ids` has shape (1, n), on the model's device. The tensors are copies in the model's dtype, key and value
    heads as the model has them, never repeated. The model's own attention still computes the outputs, and the model is
    left as it was. Raises ValueError for another shape and for layers that the model does not have, MessageError where
    its attention does not go through transformers' attention interface.
    """
    import torch

    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise ValueError(f"input_ids must have shape (1, n), got {tuple(input_ids.shape)}")
    count = model.config.get_text_config().num_hidden_layers
    outside = [layer for layer in layers if not 0 <= layer < count]
    if outside:
        raise ValueError(f"layers must lie in 0 .. {count - 1}, got {outside}")
    taken: dict[int, Captured] = {}
    before = model.config._attn_implementation
    _register(before, set(layers), taken)
    try:
        model.set_attn_implementation(_NAME)
        if model.config._attn_implementation == _NAME:
            with torch.inference_mode():
                model.base_model(input_ids=input_ids, use_cache=False)
        result = {layer: taken[layer] for layer in layers if layer in taken}
    finally:
        model.set_attn_implementation(before)
        # The registered function outlives this call and must not keep the tensors alive.
        taken.clear()
    missing = sorted(set(layers) - set(result))
    if missing:
        raise MessageError(
            f"Q, K and V of layers {missing} cannot be captured: the attention of {type(model).__name__} does not "
            f"go through transformers' attention interface there"
        )
    return result


def _register(implementation: str, layers: set[int], taken: dict[int, Captured]) -> None:
    """Register an attention that notes what it gets and calls `implementation`, with the mask of `implementation`.

    Both registries need the name: an attention without a mask function silently loses padding and causality.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> Any:
        layer = getattr(module, "layer_idx", None)
        if layer in layers:
            factor = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
            taken[layer] = Captured(query[0].clone(), key[0].clone(), value[0].clone(), factor)
        return _stock(implementation, module)(module, query, key, value, attention_mask, scaling=scaling, **options)

    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS[implementation])


def _stock(implementation: str, module: torch.nn.Module) -> Callable[..., Any]:
    """The attention function that `module` would call itself; the eager one lives beside its class."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
