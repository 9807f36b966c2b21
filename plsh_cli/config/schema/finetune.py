"""The schema of `plsh finetune`: a pretrained model, an adapter or all weights, and what it is compared with."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from plsh_cli.config.schema.fields import Number, Positive, Section, Seeds, as_list, no_duplicates
from plsh_cli.config.schema.models import Names
from plsh_cli.config.schema.train import FinalSettings, Share, TrainingCommand, TrainSettings

#: Biases that weights can be scored under in place of their own, and fine-tuned under beside it.
Other = Literal["alibi", "plsh", "window", "fixed_blocks", "none"]
Others = Annotated[list[Other], BeforeValidator(as_list), AfterValidator(no_duplicates)]
Baseline = Literal["original", "alibi", "plsh", "window", "fixed_blocks", "none"]
Baselines = Annotated[list[Baseline], BeforeValidator(as_list), Field(min_length=1), AfterValidator(no_duplicates)]
SweepBaseline = Literal["alibi", "window", "fixed_blocks", "none"]


class Lora(Section):
    """A low-rank adapter beside frozen weights (Hu et al. 2021), as peft makes it; conf/lora/default.yaml explains."""

    r: Annotated[int, Number, Field(ge=1, le=4096)]
    alpha: Positive
    dropout: Share
    targets: Names
    use_rslora: bool


class FinetuneSettings(TrainSettings):
    """How a model is fine-tuned; conf/finetune.yaml has a comment with the unit on every key."""

    drop_empty: bool

    @model_validator(mode="after")
    def _rows(self) -> FinetuneSettings:
        if self.drop_empty and self.join_rows is None:
            raise ValueError("train.drop_empty is about rows that train.join_rows joins: give that too, or leave it")
        return self


class FinetuneFinal(FinalSettings):
    """The table of a fine-tuning run."""

    before: bool
    biases: Others


class Sweep(Section):
    """What a sweep over bias.num_samples has beside the values given."""

    seeds: Seeds
    baselines: Annotated[list[SweepBaseline], BeforeValidator(as_list), AfterValidator(no_duplicates)]


class FinetuneCommand(TrainingCommand):
    flags: ClassVar[dict[str, str]] = {
        "--s": "bias.num_samples",
        "--sigma": "bias.sigma",
        "--steps": "train.steps",
        "--context": "train.context",
        "--resume": "resume",
        "--baselines": "baselines",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {
        "bias": ["plsh", "alibi", "window", "fixed_blocks", "none", "original"],
        "model": ["smollm2_135m", "mistral_7b", "qwen3_0.6b"],
        "data": ["sotu", "wikitext103", "fineweb_edu", "text"],
        "recipe": ["mistral_7b", "qwen3_0.6b"],
    }
    implied: ClassVar[dict[str, list[str]]] = {
        "model=mistral_7b": ["data=wikitext103", "lora=none"],
        "model=qwen3_0.6b": ["data=wikitext103", "lora=none"],
    }
    multiples: ClassVar[tuple[int, ...]] = (1, 2)
    usual_rope: ClassVar[Literal["keep", "drop"]] = "keep"
    fixed: ClassVar[tuple[str, ...]] = ("lora", "model")

    command: Literal["finetune"]
    train: FinetuneSettings
    final: FinetuneFinal
    lora: Lora | None
    baselines: Baselines | None
    sweep: Sweep | None

    @property
    def drop_empty(self) -> bool:
        return self.train.drop_empty

    @model_validator(mode="after")
    def _consistent(self) -> FinetuneCommand:
        if self.bias.name in (self.baselines or []):
            raise ValueError(
                f"baselines: {self.bias.name} is the bias that the run itself is fine-tuned under; leave it out"
            )
        return self
