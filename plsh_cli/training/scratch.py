"""Decoders built from a configuration's values, with initial weights from a stream of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from plsh_cli.positional.streams import generator

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def configuration(values: Mapping[str, object], vocab_size: int, tokenizer: PreTrainedTokenizerBase | None = None):
    """The transformers configuration of an architecture, its vocabulary size and its tokenizer's special ids.

    `values` holds transformers' own names with `rope_theta` beside them, and `model_type`. Raises ValueError where
    transformers refuses them.
    """
    from transformers import AutoConfig

    plain = {key: value for key, value in values.items() if key not in ("model_type", "rope_theta", "vocab_size")}
    special = (
        {} if tokenizer is None else {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    )
    return AutoConfig.for_model(
        str(values["model_type"]),
        **plain,
        vocab_size=vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": values["rope_theta"]},
        attention_dropout=0.0,
        use_cache=False,
        bos_token_id=None,
        **special,
    )


def build(config: PreTrainedConfig, dtype: str, seed: int) -> PreTrainedModel:
    """A model with fresh weights on the CPU, in the named torch type.

    The weights depend on the configuration and `seed` alone: the program's other random numbers are neither used nor
    moved.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "init").integers(2**31)))
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))


def parameters(config: PreTrainedConfig) -> tuple[int, int]:
    """How many parameters a model of this configuration has, and how many of them multiply every token.

    The second count leaves out an embedding that is only looked up, and counts one that is the output layer too. No
    memory is taken.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    total = sum(weight.numel() for weight in model.parameters())
    looked_up = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    return total, total - looked_up
