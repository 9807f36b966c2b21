"""The model of a training run: its configuration, its fresh weights, and the bias that it runs under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config.schema.biases import OriginalBias, PlshBias
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import biases

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plsh_cli.attention.bias import Bias
    from plsh_cli.models.spec import BiasSpec
    from plsh_cli.training.draws import Draws

#: The draws of a saved model, which are made again when it is loaded.
SAVED = "saved"


@dataclass(frozen=True)
class Biased:
    """A model under its bias. handle and draws are None where there is none (original, or no draws)."""

    model: PreTrainedModel
    handle: Any
    draws: Draws | None
    replaced_heads: list[int]


def rope(cfg: TrainCommand) -> str:
    """Whether the model's RoPE stays: always under `original`, otherwise only if asked; from scratch it is dropped."""
    return "keep" if isinstance(cfg.bias, OriginalBias) else cfg.bias.rope or "drop"


def configuration(cfg: TrainCommand, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> PreTrainedConfig:
    """The transformers configuration of the model; UserError where transformers refuses its values."""
    from plsh_cli.training import scratch

    assert cfg.model.architecture is not None
    values = cfg.model.architecture.model_dump(exclude={"tokenizer"})
    try:
        return scratch.configuration(values, vocab_size, tokenizer)
    except (ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError("model.architecture", cfg.model.name, f"transformers refuses it: {reason}") from None


def check_lengths(cfg: TrainCommand) -> None:
    """Raise UserError where RoPE is to read more tokens than max_position_embeddings."""
    assert cfg.model.architecture is not None
    limit, context = cfg.model.architecture.max_position_embeddings, cfg.train.context
    if rope(cfg) == "drop":
        return
    if context > limit:
        raise UserError("train.context", context, f"RoPE allows {limit} tokens (max_position_embeddings)", "--context")
    if cfg.lengths[-1] > limit:
        allowed = f"RoPE allows {limit} tokens (max_position_embeddings)"
        raise UserError("final.lengths", cfg.lengths[-1], allowed, "final.lengths=[...]")


def bias_for(cfg: TrainCommand, positions: int, *key: str | int) -> Bias:
    """The bias over so many positions with the draws of a key, exact ALiBi in heads where that is cheaper and asked.

    The draws of a key on fewer positions are those on more of them, cut.
    """
    from plsh_cli.attention.cheaper import exact_when_cheaper

    assert cfg.model.architecture is not None
    heads = cfg.model.architecture.num_attention_heads
    made = biases.attention_bias(cfg.bias, heads, positions, cfg.seed, *key)
    assert made is not None
    if isinstance(cfg.bias, PlshBias) and cfg.bias.exact_when_cheaper:
        made, _ = exact_when_cheaper(made, biases.head_sigmas(cfg.bias, heads), positions, True)
    return made


def under_bias(model: PreTrainedModel, cfg: TrainCommand) -> Biased:
    """The model under the configured bias, in place; `original` leaves it as transformers made it."""
    from plsh_cli.models import use_bias
    from plsh_cli.training.draws import Draws

    if isinstance(cfg.bias, OriginalBias):
        return Biased(model, None, None, [])
    context, layers = cfg.train.context, model.config.get_text_config().num_hidden_layers
    first = bias_for(cfg, context, "step", 0)
    handle = use_bias(model, first, rope=rope(cfg), spec=description(cfg))
    if not isinstance(cfg.bias, PlshBias):
        return Biased(model, handle, None, [])
    draws = Draws(
        handle,
        lambda *key: bias_for(cfg, context, *key),
        layers=layers,
        share_layers=cfg.bias.share_layers,
        once=cfg.bias.resample == "once",
        spec=description(cfg),
    )
    draws.held_out()
    return Biased(model, handle, draws, _replaced(first))


def description(cfg: TrainCommand) -> BiasSpec | None:
    """How a saved model's bias is made again, with draws of the stream (seed, "draws", "saved"); None for `original`.

    Over as many positions as the model may read.
    """
    architecture = cfg.model.architecture
    assert architecture is not None
    capacity = max(architecture.max_position_embeddings, cfg.lengths[-1])
    return biases.bias_spec(cfg.bias, architecture.num_attention_heads, capacity, cfg.seed, SAVED)


def _replaced(bias: Bias) -> list[int]:
    """The heads that run under exact ALiBi in place of their draws."""
    from plsh_cli.attention.bias import Alibi, Mixed

    if isinstance(bias, Mixed):
        return sorted(head for heads, one in bias.groups if isinstance(one, Alibi) for head in heads)
    return []
