"""How well a model predicts a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def perplexity(model: PreTrainedModel, input_ids: torch.Tensor) -> float:
    """exp of the mean loss in nats over tokens 2 .. n of one text, each predicted from all before it.

    `input_ids` has shape (1, n) with n >= 2, on the model's device. Raises ValueError for another shape.
    """
    import torch

    if input_ids.ndim != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] < 2:
        raise ValueError(f"input_ids must have shape (1, n) with n >= 2, got {tuple(input_ids.shape)}")
    with torch.inference_mode():
        logits = model(input_ids=input_ids, use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits.float(), input_ids[0, 1:])
    return float(loss.double().exp())
