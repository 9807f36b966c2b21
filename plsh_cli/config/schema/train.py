"""The schema of `plsh train`, and what it shares with `plsh finetune`: bias, model, text, recipe and final table."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from plsh_cli.config.schema.biases import OriginalBias, TaggedBias
from plsh_cli.config.schema.fields import Count, Counts, Number, Positive, Section, Seeds, Sigma, as_list
from plsh_cli.config.schema.models import Names
from plsh_cli.config.schema.sections import Command, Data, Model

Share = Annotated[float, Number, Field(ge=0, lt=1, allow_inf_nan=False)]
NotNegative = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
#: A number of optimiser steps, or the end of every pass over the data.
Interval = Annotated[int, Number, Field(ge=1)] | Literal["epoch"]


class TrainSettings(Section):
    """How a model is trained; conf/train.yaml has a comment with the unit on every key."""

    context: Annotated[int, Number, Field(ge=2)]
    steps: Count | None
    epochs: Positive | None
    batch: Count
    accumulate: Count
    learning_rate: Positive
    schedule: Literal["linear", "cosine", "constant"]
    warmup: Share
    betas: Annotated[list[Share], BeforeValidator(as_list), Field(min_length=2, max_length=2)]
    adam_eps: Positive
    weight_decay: NotNegative
    sigma: Sigma | None
    clip: Positive | None
    bf16: bool
    gradient_checkpointing: bool
    heldout: Annotated[float, Number, Field(gt=0, lt=1)]
    document_mask: bool
    join_rows: Count | None
    eval_every: Interval | None
    eval_windows: Count | None
    save_every: Interval | None
    keep: Count
    best: bool
    fsdp: bool
    threads: Count | None

    @model_validator(mode="after")
    def _consistent(self) -> TrainSettings:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give one of train.steps and train.epochs; the other must be null")
        if self.best and (self.eval_every is None or self.save_every != self.eval_every):
            raise ValueError(
                "train.best keeps the checkpoint of the smallest held-out loss: it needs train.save_every equal to "
                "train.eval_every, or set train.best=false"
            )
        return self


class FinalSettings(Section):
    """The table at the end of a run, as far as all have one."""

    lengths: Counts | None
    windows: Literal["matched", "paper"]
    max_tokens: Count | None
    batch: Count
    draws: Seeds


class TrainFinal(FinalSettings):
    """The table at the end of `plsh train`."""

    exact: bool


class Study(Section):
    """Several variants of a run, each with several seeds, side by side."""

    variants: Annotated[dict[str, list[str]], Field(min_length=1)]
    only: Names | None
    seeds: Seeds
    processes: Annotated[Count, Field(le=256)]

    @property
    def chosen(self) -> dict[str, list[str]]:
        """The variants to run, with their overrides."""
        return {name: self.variants[name] for name in self.only or self.variants}

    @model_validator(mode="after")
    def _known(self) -> Study:
        unknown = sorted(set(self.only or []) - set(self.variants))
        if unknown:
            raise ValueError(f"only: no variant {', '.join(unknown)}; there are {', '.join(self.variants)}")
        return self


class TrainingCommand(Command):
    """What `plsh train` and `plsh finetune` share.

    multiples: the lengths of the final evaluation over train.context, where none are given. usual_rope: what
    bias.rope=null stands for. fixed: keys under which a run was begun and can only be continued, whatever is forced.
    """

    multiples: ClassVar[tuple[int, ...]]
    usual_rope: ClassVar[Literal["keep", "drop"]]
    fixed: ClassVar[tuple[str, ...]] = ()

    bias: TaggedBias
    model: Model
    data: Data
    train: TrainSettings
    final: FinalSettings
    resume: str | None
    resume_force: bool

    @model_validator(mode="before")
    @classmethod
    def _one_sigma(cls, plain: Any) -> Any:
        """A model's usual sigma, where the bias takes one and none is given."""
        try:
            sigma, bias = plain["train"]["sigma"], plain["bias"]
            wanted = sigma is not None and bias.get("kernel", "alibi") == "alibi" and bias.get("sigma", sigma) is None
        except (KeyError, TypeError, AttributeError):
            return plain  # the fields' own checks say what is wrong
        return {**plain, "bias": {**bias, "sigma": [sigma]}} if wanted else plain

    @property
    def lengths(self) -> list[int]:
        """The lengths of the final evaluation in tokens."""
        return sorted(self.final.lengths or [multiple * self.train.context for multiple in self.multiples])

    @property
    def rope(self) -> Literal["keep", "drop"]:
        """Whether the model's RoPE stays: always under `original`, otherwise as bias.rope says."""
        return "keep" if isinstance(self.bias, OriginalBias) else self.bias.rope or self.usual_rope

    @property
    def drop_empty(self) -> bool:
        """Whether empty rows are left out before rows are joined (train.join_rows)."""
        return False


class TrainCommand(TrainingCommand):
    flags: ClassVar[dict[str, str]] = {
        "--s": "bias.num_samples",
        "--sigma": "bias.sigma",
        "--steps": "train.steps",
        "--context": "train.context",
        "--resume": "resume",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {
        "bias": ["plsh", "alibi", "window", "fixed_blocks", "none", "original"],
        "model": ["tiny", "small", "gpt_148m", "qwen3_0.6b"],
        "data": ["sotu", "wikitext103", "fineweb_edu", "text"],
        "recipe": ["qwen3_0.6b"],
    }
    implied: ClassVar[dict[str, list[str]]] = {"model=qwen3_0.6b": ["data=wikitext103"]}

    multiples: ClassVar[tuple[int, ...]] = (1, 2, 4)
    usual_rope: ClassVar[Literal["keep", "drop"]] = "drop"

    command: Literal["train"]
    final: TrainFinal
    study: Study | None

    @model_validator(mode="after")
    def _from_scratch(self) -> TrainCommand:
        if self.model.architecture is None:
            raise ValueError(
                "model: plsh train builds a model from scratch and needs model.architecture; "
                f"use model={' or model='.join(self.options['model'])}"
            )
        return self
