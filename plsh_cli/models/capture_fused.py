"""Q, K and V of models that compute them with one projection and attend in code of their own: BLOOM, MPT, Falcon.

Shapes as in `capture`. Their ALiBi is read off what each of them builds, so it is what they really use: Falcon rounds
slopes to bfloat16 and multiplies them by d ** -0.5, and before transformers 5.25 adds them twice outside of its sdpa
path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plsh_cli.models.capture import Captured

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from plsh_cli.models.capture_rotary import Turned


def fused_attentions(model: PreTrainedModel) -> dict[int, torch.nn.Module]:
    """Return the attention modules of such a model by layer; empty for any other model."""
    return {module.layer_idx: module for module in model.modules() if type(module).__name__ in _READERS}


@contextmanager
def watch_fused(
    model: PreTrainedModel, layers: set[int], taken: dict[int, Captured], turned: Turned, rotary: str
) -> Iterator[None]:
    """Within the body, note what the projections of the given layers give."""
    hooks = []
    slopes = _slopes(model)
    for layer, module in fused_attentions(model).items():
        if layer not in layers:
            continue
        projection, read = _READERS[type(module).__name__]
        fused: dict[str, torch.Tensor] = {}

        def keep(_: Any, inputs: Any, output: torch.Tensor, fused: dict[str, torch.Tensor] = fused) -> None:
            fused["qkv"] = output

        def note(
            module: torch.nn.Module, inputs: Any, output: Any, layer: int = layer, fused: Any = fused, read: Any = read
        ) -> None:
            q, k, v, scale = read(module, fused.pop("qkv")[0])
            # Falcon without ALiBi has RoPE, and turns keys that it has repeated for every query head.
            if turned.result is not None and rotary == "after":
                q, k = (x[0] for x in turned.result)
                k = k[:: k.shape[0] // v.shape[0]]
            turned.forget()
            taken[layer] = Captured(q.clone(), k.clone(), v.clone(), scale, slopes)

        hooks += [getattr(module, projection).register_forward_hook(keep), module.register_forward_hook(note)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _slopes(model: PreTrainedModel) -> torch.Tensor | None:
    """Return (h,) slopes per token of distance after the scale, from the model's own ALiBi; None if it has none."""
    import torch

    config, two = model.config, torch.ones(1, 2, dtype=torch.int64, device=model.device)
    if config.model_type == "mpt":
        base = model.base_model
        bias = base.build_mpt_alibi_tensor(base.num_heads, 2, device=model.device)
    elif config.model_type == "bloom":
        bias = model.base_model.build_alibi_tensor(two, config.num_attention_heads, torch.float32)
    elif config.alibi:
        from transformers.models.falcon.modeling_falcon import build_alibi_tensor

        bias = build_alibi_tensor(two, config.num_attention_heads, torch.float32)
        # FalconModel puts alibi / sqrt(d) into the mask; an attention of its own (before 5.25) adds it again,
        # but for scaled_dot_product.
        times = 1 if model._can_set_attn_implementation() or config._attn_implementation == "sdpa" else 2
        bias = bias * times * (config.hidden_size // config.num_attention_heads) ** -0.5
    else:
        return None
    bias = bias.double().reshape(-1, 2)
    return bias[:, 1] - bias[:, 0]


def _bloom(module: Any, fused: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    q, k, v = fused.view(len(fused), module.num_heads, 3, module.head_dim).permute(2, 1, 0, 3)
    return q, k, v, float(module.inv_norm_factor)


def _mpt(module: Any, fused: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    if module.clip_qkv:
        fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = fused.view(len(fused), 3, module.n_heads, module.head_dim).permute(1, 2, 0, 3)
    return q, k, v, float(module.softmax_scale)


def _falcon(module: Any, fused: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    h, d, n = module.num_heads, module.head_dim, len(fused)
    scale = float(module.inv_norm_factor)
    if module.multi_query and not module.new_decoder_architecture:
        heads = fused.view(n, h + 2, d).transpose(0, 1)
        return heads[:h], heads[h : h + 1], heads[h + 1 :], scale
    groups = module.num_kv_heads
    each = fused.view(n, groups, h // groups + 2, d).permute(1, 2, 0, 3)
    return each[:, :-2].flatten(0, 1), each[:, -2], each[:, -1], scale


_Reader = Callable[[Any, "torch.Tensor"], "tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]"]
_READERS: dict[str, tuple[str, _Reader]] = {
    "BloomAttention": ("query_key_value", _bloom),
    "MptAttention": ("Wqkv", _mpt),
    "FalconAttention": ("query_key_value", _falcon),
    "FalconFlashAttention2": ("query_key_value", _falcon),
}
