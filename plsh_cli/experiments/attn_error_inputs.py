"""What `plsh attn-error` measures on: a model, texts, and Q, K and V of the chosen layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import MessageError, UserError
from plsh_cli.experiments import pretrained, texts
from plsh_cli.experiments.attn_error_texts import Chosen, choose, document_index
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.models.shape import Shape

if TYPE_CHECKING:
    import torch

    from plsh_cli.models.capture import Captured

#: What errors need of a device, as `chosen_device` takes it.
DOUBLE = "in which errors are measured"
_REASON = "its weights are damaged, or overflow in model.dtype"
#: Numbers of the logits that are held at a time for the perplexity.
_LOGITS = 1 << 26


@dataclass(frozen=True)
class Inputs:
    """A loaded model and the texts as token ids, each (1, n) on the model's device.

    layers: those to measure. text: all texts in one line; text_details go into result.json.
    """

    opened: pretrained.Opened
    layers: list[int]
    ids: list[torch.Tensor]
    device: str
    text: str
    text_details: dict[str, Any]

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.opened.details["query_heads"]

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(one.shape[1] for one in self.ids)

    def captured(self, index: int, rotary: str) -> list[Captured]:
        """Q, K and V of every layer in `layers` for one text, by one forward pass. rotary: after or before RoPE.

        Raises MessageError for NaN or infinity in any of them.
        """
        from plsh_cli.models.capture import capture_qkv

        found = capture_qkv(self.opened.model, self.ids[index], self.layers, rotary=rotary)
        for layer in self.layers:
            _check_finite(found[layer], layer, self.opened.details["name"])
        return [found[layer] for layer in self.layers]

    def perplexity(self, index: int) -> float:
        """exp of the mean loss in nats over the tokens 2 .. n of one text; MessageError where it is not finite."""
        import torch

        from plsh_cli.evaluation.logits import logits_in_pieces

        ids, total = self.ids[index], 0.0
        with torch.inference_mode():
            for places, logits in logits_in_pieces(self.opened.model, ids[:, :-1], ids.shape[1] - 1, _LOGITS):
                wanted = ids[0, 1:][places].to(logits.device)
                total += float(torch.nn.functional.cross_entropy(logits[0].float(), wanted, reduction="sum").double())
        found = float(torch.tensor(total / (ids.shape[1] - 1)).double().exp())
        if not math.isfinite(found):
            # Where a measured layer is at fault, its own message says more.
            self.captured(index, "after")
            name = self.opened.details["name"]
            raise MessageError(
                f"{name}: its logits on the text are not finite, or so large that its perplexity is {found}: {_REASON}"
            )
        return found


def check_inputs(cfg: AttnErrorCommand) -> tuple[Shape, list[str]]:
    """What is known of the model before it is loaded, and what is still to be fetched, in words.

    Raises UserError for unknown names, a document or layer that is not there, and more tokens than the model takes.
    """
    shape = pretrained.shape_of(cfg.model, cfg.out)
    count = texts.check_corpus(cfg.data)
    if count is not None and cfg.attn_error.texts == "documents":
        document_index(cfg, count)
    _check_positions(cfg, cfg.attn_error.tokens, shape.positions)
    if shape.layers is not None:
        chosen_layers(cfg, shape.layers)
    missing = [pretrained.to_fetch(cfg.model, cfg.out), texts.corpus_to_fetch(cfg.data)]
    return shape, [words for words in missing if words is not None]


def chosen_layers(cfg: AttnErrorCommand, count: int) -> list[int]:
    """The layers asked for, else all of `count`; UserError for one that is not there."""
    asked = cfg.attn_error.layers
    if asked is None:
        return list(range(count))
    outside = [layer for layer in asked if layer >= count]
    if outside:
        raise UserError(
            "attn_error.layers", outside[0], f"must lie in 0 .. {count - 1}: the model has {count} layers", "--layers"
        )
    return sorted(asked)


def prepare(cfg: AttnErrorCommand, say: Callable[[str], None]) -> Inputs:
    """Fetch what is missing, load the model, read the texts.

    Raises UserError for texts shorter than asked for, layers that are not there and more tokens than the model takes;
    MessageError where model or corpus cannot be had or loaded.
    """
    device = chosen_device(cfg.device, DOUBLE)
    opened = pretrained.open_model(cfg.model, device, say, cfg.out)
    layers = chosen_layers(cfg, opened.details["layers"])
    chosen = choose(cfg, opened.tokenizer, say)
    _check_positions(cfg, max(ids.shape[1] for ids in chosen.ids), opened.details["positions"])
    _check_ids(chosen, opened)
    ids = [one.to(device) for one in chosen.ids]
    return Inputs(opened, layers, ids, device, chosen.label, chosen.details)


def _check_finite(layer: Captured, index: int, name: str) -> None:
    """MessageError for NaN or infinity in a layer's Q, K or V, each (heads, n, width)."""
    for what, kind, values in (("Q", "head", layer.q), ("K", "key head", layer.k), ("V", "key head", layer.v)):
        bad = ~values.isfinite().flatten(1).all(dim=1)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise MessageError(
                f"{name}: {what} of layer {index}, {kind} {first}, holds NaN or infinity: {_REASON}, "
                f"and nothing can be measured on it"
            )


def _check_positions(cfg: AttnErrorCommand, tokens: int, positions: int | None) -> None:
    if positions is not None and tokens > positions:
        got = "" if tokens == cfg.attn_error.tokens else f"; a text has {tokens}"
        allowed = f"must be at most {positions}, the longest input of the model{got}"
        raise UserError("attn_error.tokens", cfg.attn_error.tokens, allowed, "--tokens")


def _check_ids(chosen: Chosen, opened: pretrained.Opened) -> None:
    """MessageError for a token without an embedding, which torch would only call an index out of range."""
    known = opened.model.get_input_embeddings().num_embeddings
    largest = max(int(ids.max()) for ids in chosen.ids)
    if largest >= known:
        raise MessageError(
            f"{opened.details['name']}: its tokenizer gives the id {largest}, the model has {known} embeddings; "
            f"they do not belong together"
        )
