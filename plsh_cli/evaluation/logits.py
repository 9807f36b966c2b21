"""A model's logits over its vocabulary in pieces: all of a long window at once would not fit into memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def logits_in_pieces(
    model: PreTrainedModel, input_ids: torch.Tensor, keep: int, numbers: int
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the logits of the last `keep` positions as (positions, (b, positions, vocabulary)), in order.

    input_ids is (b, n), without padding. positions counts from the first of the kept ones. A piece holds at most
    `numbers` numbers, but one position at least. The layers run once; what the model does with its last hidden states
    (output layer, scaling, capping) is its own forward pass, given those states again for each piece.
    """
    pieces = max(1, numbers // (input_ids.shape[0] * model.config.get_text_config().vocab_size))
    first = input_ids.shape[1] - keep
    whole = "logits_to_keep" not in inspect.signature(model.forward).parameters or model.base_model is model
    if whole:
        yield slice(0, keep), model(input_ids=input_ids, use_cache=False).logits[:, first:]
        return
    import torch

    states = model.base_model(input_ids=input_ids, use_cache=False)
    with _giving(model.base_model, states):
        for start in range(0, keep, pieces):
            stop = min(start + pieces, keep)
            places = torch.arange(first + start, first + stop, device=input_ids.device)
            yield slice(start, stop), model(input_ids=input_ids, use_cache=False, logits_to_keep=places).logits


@contextmanager
def _giving(module: torch.nn.Module, output: Any) -> Iterator[None]:
    """Within the body, the module returns this output whatever it is called with."""
    module.forward = lambda *arguments, **options: output
    try:
        yield
    finally:
        del module.forward
