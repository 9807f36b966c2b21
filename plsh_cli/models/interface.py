"""transformers' attention interface: the attention and the mask that stand behind attn_implementation="plsh".

The mask function says what a forward pass lets tokens see and hands it on to the attention calls, as an attribute of
the mask tensor: a mask that comes without it is not ours and is refused, so that padding and causality are never lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plsh_cli.errors import MessageError
from plsh_cli.models.saved import NAME

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from plsh_cli.models.running import Place

_PLACE = "plsh_place"

#: What transformers passes to attention functions and what does not change their result.
_HARMLESS = {
    *("cache", "past_key_values", "past_key_value", "use_cache", "cache_position", "position_ids"),
    *("position_embeddings", "num_items_in_batch", "output_hidden_states", "output_router_logits", "return_dict"),
    *("max_length_q", "max_length_k", "seq_idx", "logits_to_keep", "shift_labels"),
}


def register() -> None:
    """Make attn_implementation="plsh" known to transformers, with its mask: without that, padding would be lost."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    # Kernels are called through ctypes and Triton: torch.compile works around both functions.
    AttentionInterface.register(NAME, torch.compiler.disable(attend))
    AttentionMaskInterface.register(NAME, torch.compiler.disable(mask))


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int | torch.Tensor = 0,
    mask_function: Callable[..., torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: PreTrainedConfig | None = None,
    **_: Any,
) -> torch.Tensor:
    """Return the keys that count, bool (b, 1, 1, m), with what else the attention must know attached.

    The arguments are those that transformers gives to every mask function. Raises MessageError for masks that let
    tokens see later ones, or hide some of the earlier ones in another way than by padding, documents and chunks.
    """
    import torch

    from plsh_cli.models.running import Place
    from plsh_cli.models.states import state_of

    if use_vmap:
        raise MessageError("this model adds a mask function of its own, which the bias cannot honour")
    state, offset, dropped = state_of(config), int(q_offset), int(kv_offset)
    used = offset + q_length
    keep = torch.ones(batch_size, max(used, dropped + kv_length), dtype=torch.bool, device=device)
    left = None
    if attention_mask is not None:
        given = attention_mask[:, : keep.shape[1]].to(device=device, dtype=torch.bool)
        keep[:, : given.shape[1]] = given
        keep[:, given.shape[1] :] = False
        left = keep.int().argmax(dim=1)
    # A cache that drops the oldest keys: they keep their positions, and nobody sees them.
    keep[:, :dropped] = False
    starts = _restrict(mask_function, keep, range(offset, used), device)
    padded = not bool(keep[:, :used].all())
    left = None if left is None or starts is not None or not bool(left.any()) else left
    shown = keep[:, None, None, dropped:]
    setattr(shown, _PLACE, Place(state, state.biases, offset, dropped, keep if padded else None, left, starts))
    return shown


def _restrict(
    sees: Callable[..., torch.Tensor] | None, keep: torch.Tensor, queries: range, device: torch.device | str
) -> torch.Tensor | None:
    """Return where documents start; keys before those of a chunk are taken out of `keep`, in place."""
    import torch
    from transformers.masking_utils import causal_mask_function

    from plsh_cli.models import masks

    batch = keep.shape[0]
    if sees is None or sees is causal_mask_function:
        return None
    if queries.start == 0:
        return masks.documents(sees, batch, queries.stop, device)
    first = masks.first_keys(sees, batch, queries, queries.stop, device)
    if first is not None:
        keep &= torch.arange(keep.shape[1], device=device) >= first[:, None]
    return None


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention under the model's bias as (b, n, h, d), and no weights.

    The arguments are those that transformers gives to every attention function. Raises MessageError for options that
    would change the result and that the bias cannot honour: none is dropped silently.
    """
    from plsh_cli.models.running import run

    place = getattr(attention_mask, _PLACE, None)
    if place is None:
        raise MessageError(
            f"{type(module).__name__} was given a mask that is not from transformers' mask functions (a 4-D mask of "
            f"the caller, an encoder, or reentrant checkpointing); with a bias, give the model 2-D attention masks"
        )
    _check_module(module, place)
    _check_options(module, place.offset + query.shape[2], dropout, options)
    cu_seqlens = options.get("cu_seq_lens_q")
    if cu_seqlens is not None:
        place = _with_documents(place, cu_seqlens, query)
    query, key, value = _one_type(query, key, value)
    out = run(query, key, value, place, getattr(module, "layer_idx", None), scaling)
    return out.transpose(1, 2).contiguous(), None


def _check_module(module: torch.nn.Module, place: Place) -> None:
    modules = place.state.modules
    if modules is not None and module not in modules:
        raise MessageError(
            f"this {type(module).__name__} belongs to another model than the one that was given a bias, but they share "
            f"one configuration object: build one of them from copy.deepcopy(config)"
        )


def _check_options(module: torch.nn.Module, used: int, dropout: float, options: dict[str, Any]) -> None:
    name = type(module).__name__
    if dropout:
        raise MessageError(
            f"{name} has an attention dropout of {dropout}: attention under a bias has none; "
            f"set attention_dropout to 0 in the configuration that the model is built from"
        )
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise MessageError(f"{name} is not causal: its attention can be replaced in causal language models only")
    window = options.get("sliding_window")
    if window is not None and used > window:
        raise MessageError(
            f"{name} has a sliding window of {window} tokens, this text has {used}: the bias cannot honour it; "
            f"use texts no longer than the window, or a configuration without it"
        )
    known = _HARMLESS | {"is_causal", "sliding_window", "cu_seq_lens_q", "cu_seq_lens_k"}
    for option, value in options.items():
        if option not in known and value is not None and value is not False:
            raise MessageError(
                f"{name} asks its attention for the option {option}, which attention under a bias does not have; "
                f"this model or call cannot run under one"
            )


def _with_documents(place: Place, cu_seqlens: torch.Tensor, query: torch.Tensor) -> Place:
    """Return the place with the documents of the call's own offsets; ValueError where the positions say otherwise."""
    import torch

    batch, n = query.shape[0], query.shape[2]
    edges = cu_seqlens.to(device=query.device, dtype=torch.int64)
    if batch != 1 or place.offset or int(edges[-1]) != n:
        raise ValueError(
            f"cu_seq_lens_q: for one row of {int(edges[-1])} tokens without a cache, got {batch} row(s) of {n}"
        )
    starts = torch.repeat_interleave(edges[:-1], edges.diff(), output_size=n)[None]
    if place.starts is not None and not torch.equal(place.starts, starts):
        raise ValueError("cu_seq_lens_q: the documents must be those that position_ids begin anew for")
    return replace(place, starts=starts, left=None, groups={})


def _one_type(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return all three in autocast's type where it is on, as torch's own attention does."""
    import torch

    device = query.device.type
    if not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
