"""The bias that a model is trained under: made for its sizes, put on it, and described for its saved files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config.schema.biases import OriginalBias, PlshBias
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import biases
from plsh_cli.models.shape import shape_of_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from plsh_cli.attention.bias import Bias
    from plsh_cli.models.spec import BiasSpec
    from plsh_cli.training.draws import Draws

#: The draws of a saved model, which are made again when it is loaded.
SAVED = "saved"


@dataclass(frozen=True)
class Biased:
    """A model under its bias. handle and draws are None where there is none (original, or no draws)."""

    model: PreTrainedModel
    handle: Any = None
    draws: Draws | None = None
    replaced_heads: tuple[int, ...] = ()


def check_lengths(cfg: TrainingCommand, config: PreTrainedConfig) -> None:
    """Raise UserError where RoPE is to read more tokens than the model's configuration allows."""
    limit, context = shape_of_config(config.to_dict()).positions, cfg.train.context
    if cfg.rope == "drop" or limit is None:
        return
    if context > limit:
        raise UserError("train.context", context, f"RoPE allows {limit} tokens (max_position_embeddings)", "--context")
    if cfg.lengths[-1] > limit:
        allowed = f"RoPE allows {limit} tokens (max_position_embeddings)"
        raise UserError("final.lengths", cfg.lengths[-1], allowed, "final.lengths=[...]")


def bias_for(cfg: TrainingCommand, heads: int, positions: int, *key: str | int, drawn_for: int | None = None) -> Bias:
    """The bias over so many positions with the draws of a key, exact ALiBi in heads where that is cheaper and asked.

    drawn_for: the positions that the draws are made for before they are cut, None: no more. Only importance sampling
    and integer widths give other draws then.
    """
    from plsh_cli.attention import Plsh
    from plsh_cli.attention.cheaper import exact_when_cheaper

    made = biases.attention_bias(cfg.bias, heads, drawn_for or positions, cfg.seed, *key)
    assert made is not None
    if isinstance(made, Plsh):
        made = Plsh(made.parts.prefix(positions), made.merge)
    if isinstance(cfg.bias, PlshBias) and cfg.bias.exact_when_cheaper:
        made, _ = exact_when_cheaper(made, biases.head_sigmas(cfg.bias, heads), positions, True)
    return made


def under_bias(model: PreTrainedModel, cfg: TrainingCommand) -> Biased:
    """The model under the configured bias, in place; `original` leaves it as transformers made it."""
    from plsh_cli.models import use_bias
    from plsh_cli.training.draws import ONCE, Draws

    if isinstance(cfg.bias, OriginalBias):
        return Biased(model)
    sizes, spec, context = model.config.get_text_config(), description(cfg, model.config), cfg.train.context
    heads = sizes.num_attention_heads
    once = getattr(cfg.bias, "resample", None) == ONCE
    # Those of a whole run are saved, for as many positions as the model may read.
    drawn_for = spec.capacity if once and spec is not None else None

    def make(*key: str | int) -> Bias:
        return bias_for(cfg, heads, context, *key, drawn_for=drawn_for)

    first = make(ONCE) if once else make("step", 0)
    handle = use_bias(model, first, rope=cfg.rope, spec=spec)
    if not isinstance(cfg.bias, PlshBias):
        return Biased(model, handle)
    draws = Draws(
        handle,
        make,
        layers=sizes.num_hidden_layers,
        share_layers=cfg.bias.share_layers,
        once=once,
        spec=spec,
    )
    draws.held_out()
    return Biased(model, handle, draws, _replaced(first))


def description(cfg: TrainingCommand, config: PreTrainedConfig) -> BiasSpec | None:
    """How a saved model's bias is made again; None for `original`.

    Draws are those of the stream (seed, "draws", "saved"), where training draws once those that it has:
    (seed, "draws", "once"). Over as many positions as the model may read.
    """
    from plsh_cli.training.draws import ONCE

    key = ONCE if getattr(cfg.bias, "resample", None) == ONCE else SAVED
    sizes = shape_of_config(config.to_dict())
    assert sizes.heads is not None
    return biases.bias_spec(cfg.bias, sizes.heads, max(sizes.positions or 0, cfg.lengths[-1]), cfg.seed, key)


def _replaced(bias: Bias) -> tuple[int, ...]:
    """The heads that run under exact ALiBi in place of their draws."""
    from plsh_cli.attention.bias import Alibi, Mixed

    if isinstance(bias, Mixed):
        return tuple(sorted(head for heads, one in bias.groups if isinstance(one, Alibi) for head in heads))
    return ()
