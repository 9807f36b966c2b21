"""The schema of a model that is built from scratch: the values of its transformers configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from plsh_cli.config.schema.fields import Count, Positive, Section


class Architecture(Section):
    """A decoder by transformers' own names; `tokenizer` is bytes, model (the one of model.name) or a hub id or folder.

    Raises ValueError where key heads do not divide query heads.
    """

    model_type: Literal["qwen3", "llama", "mistral"]
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    intermediate_size: Count
    max_position_embeddings: Count
    rope_theta: Positive
    rms_norm_eps: Positive
    initializer_range: Positive
    tie_word_embeddings: bool
    vocab_size: Count | None
    tokenizer: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _divisible(self) -> Architecture:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even: RoPE turns pairs of dimensions")
        return self
