"""The schemas of the commands that run whole models: eval."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from plsh_cli.config.schema.biases import TaggedBias
from plsh_cli.config.schema.fields import Count, Counts, Section, Seeds, Sigmas, as_list, no_duplicates
from plsh_cli.config.schema.sections import Command, Data, OpenedModel

BiasName = Literal["original", "alibi", "plsh", "window", "fixed_blocks", "none"]
BiasNames = Annotated[list[BiasName], BeforeValidator(as_list), Field(min_length=1), AfterValidator(no_duplicates)]
Names = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(as_list),
    Field(min_length=1),
    AfterValidator(no_duplicates),
]


class EvalSettings(Section):
    """What is scored and how; conf/eval.yaml has a comment with the unit on every key."""

    run: Annotated[str, Field(min_length=1)] | None
    lengths: Counts | None
    biases: BiasNames | None
    sigma: Sigmas | None
    num_samples: Counts | None
    draws: Seeds
    windows: Literal["matched", "paper"]
    stride: Count | None
    train_length: Count | None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    held_out: bool
    documents: Count | None
    max_tokens: Count | Literal["all"] | None
    batch: Count
    backend: Literal["auto", "fused", "triton", "blocks", "augmented", "reference"]
    tasks: Names | None
    tasks_path: Annotated[str, Field(min_length=1)] | None
    tasks_limit: Count | None
    tasks_length: Count

    @model_validator(mode="after")
    def _consistent(self) -> EvalSettings:
        if self.windows == "paper" and self.stride is not None:
            raise ValueError("stride belongs to windows=matched; windows=paper steps by train_length")
        return self


class EvalCommand(Command):
    flags: ClassVar[dict[str, str]] = {
        "RUN": "eval.run",
        "--lengths": "eval.lengths",
        "--biases": "eval.biases",
        "--s": "eval.num_samples",
        "--draws": "eval.draws",
        "--sigma": "eval.sigma",
        "--windows": "eval.windows",
        "--tasks": "eval.tasks",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {
        "bias": ["original", "alibi", "plsh", "window", "fixed_blocks", "none"],
        "model": ["smollm2_135m", "mistral_7b", "llama4_scout", "qwen3_0.6b", "bloom_560m", "mpt_7b", "falcon_rw_1b"],
        "data": ["sotu", "text", "wikitext103"],
    }

    command: Literal["eval"]
    bias: TaggedBias
    model: OpenedModel
    data: Data
    eval: EvalSettings
