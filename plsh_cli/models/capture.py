"""The queries, keys and values that a model's attention works on, taken out of one forward pass.

Shapes: h query heads, g key/value heads (h is a multiple of g; query head i belongs to key head i // (h / g)),
n tokens, d head dim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from plsh_cli.errors import MessageError
from plsh_cli.models.capture_rotary import Turned, watch_rotary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_NAME = "plsh_capture"


class Captured(NamedTuple):
    """What one layer's attention works on: q (h, n, d), k and v (g, n, d), and the factor on q k^T.

    slopes: (h,) float64, where the model has ALiBi of its own: it adds -slopes * distance to scale * q k^T. Else None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    slopes: torch.Tensor | None = None


def capture_qkv(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    layers: Sequence[int],
    rotary: Literal["after", "before"] = "after",
) -> dict[int, Captured]:
    """Q, K and V of the given layers (counted from 0) for one text, from one forward pass.

    `input_ids` has shape (1, n), on the model's device. rotary: queries and keys after RoPE, as attention gets them, or
    before it (after the norms of models that have some). The tensors are copies in the model's dtype, key and value
    heads as the model has them, never repeated. The model's own attention still computes the outputs, and the model is
    left as it was. BLOOM, MPT and Falcon, which do not use transformers' attention interface, are read through their
    own modules. Raises ValueError for another shape and for layers that the model does not have, MessageError where
    its attention goes another way, or its RoPE one that is not known.
    """
    import torch

    from plsh_cli.models.capture_fused import fused_attentions, watch_fused

    if rotary not in ("after", "before"):
        raise ValueError(f'rotary = {rotary!r}: must be "after" or "before"')
    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise ValueError(f"input_ids must have shape (1, n), got {tuple(input_ids.shape)}")
    count = model.config.get_text_config().num_hidden_layers
    outside = [layer for layer in layers if not 0 <= layer < count]
    if outside:
        raise ValueError(f"layers must lie in 0 .. {count - 1}, got {outside}")
    taken: dict[int, Captured] = {}
    watch = watch_fused if fused_attentions(model) else _watch_interface
    with watch_rotary(model) as turned, watch(model, set(layers), taken, turned, rotary), torch.inference_mode():
        model.base_model(input_ids=input_ids, use_cache=False)
    missing = sorted(set(layers) - set(taken))
    if missing:
        raise MessageError(
            f"Q, K and V of layers {missing} cannot be captured: the attention of {type(model).__name__} does not "
            f"go through transformers' attention interface there"
        )
    if rotary == "before":
        turned.check_called(model)
    result = {layer: taken[layer] for layer in layers}
    # The registered function outlives this call and must not keep the tensors alive.
    taken.clear()
    return result


@contextmanager
def _watch_interface(
    model: PreTrainedModel, layers: set[int], taken: dict[int, Captured], turned: Turned, rotary: str
) -> Iterator[None]:
    """Within the body, note what the attention interface gets, and let the model's own implementation compute.

    Both registries need the name: an attention without a mask function silently loses padding and causality.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    implementation = model.config._attn_implementation

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
            q, k = turned.undone(query, key) if rotary == "before" else (query, key)
            taken[layer] = Captured(q[0].clone(), k[0].clone(), value[0].clone(), factor)
        turned.forget()
        return _stock(implementation, module)(module, query, key, value, attention_mask, scaling=scaling, **options)

    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    try:
        model.set_attn_implementation(_NAME)
        yield
    finally:
        model.set_attn_implementation(implementation)


def _stock(implementation: str, module: torch.nn.Module) -> Callable[..., Any]:
    """The attention function that `module` would call itself; the eager one lives beside its class."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
