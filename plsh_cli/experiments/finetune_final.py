"""What a fine-tuned model is scored under, before and after.

A row has the fields of train_final.py and two more: stage ("before" | "after") and adapter, the bias that the weights
were fine-tuned under (null: they are as they were).
- before: the untouched model (bias "original"), and the model under the chosen bias
- after: under its own bias, and the same weights under final.biases
- after, adapter another than the run's bias: the rows of a baseline, under its own bias (see finetune_baselines.py)
"""

from __future__ import annotations

from typing import Any

from plsh_cli.config import compose
from plsh_cli.config.schema.biases import ModelBias, NoneBias
from plsh_cli.config.schema.finetune import FinetuneCommand
from plsh_cli.experiments.eval_biases import Variant
from plsh_cli.experiments.train_final import own_variant


def before(cfg: FinetuneCommand) -> list[Variant]:
    """The model's own attention, and the bias that it will be fine-tuned under; none where final.before is false."""
    if not cfg.final.before:
        return []
    own = own_variant(cfg)
    return [own] if own.section is None else [Variant("original", None, False), own]


def after(cfg: FinetuneCommand) -> list[Variant]:
    """The run's own bias, then the others of final.biases with its sigma and RoPE.

    Biases with a sigma are left out for draws of another kernel than ALiBi's, which they do not stand for.
    """
    found = [own_variant(cfg)]
    for name in cfg.final.biases:
        section = other_bias(cfg, name)
        if name != cfg.bias.name and (isinstance(section, NoneBias) or getattr(cfg.bias, "kernel", "alibi") == "alibi"):
            found.append(Variant(name, section, False))
    return found


def other_bias(cfg: FinetuneCommand, name: str) -> ModelBias:
    """Another bias as conf/bias has it, with the sigma and the RoPE of the run's own where it has them."""
    made = compose.compose(cfg.command, [f"bias={name}"])
    assert isinstance(made, FinetuneCommand)
    fields = type(made.bias).model_fields
    changes: dict[str, Any] = {}
    if "sigma" in fields:
        sigma = [cfg.train.sigma] if cfg.train.sigma is not None else None
        changes["sigma"] = getattr(cfg.bias, "sigma", None) or sigma
    if "rope" in fields:
        changes["rope"] = getattr(cfg.bias, "rope", None)
    return made.bias.model_copy(update=changes)
