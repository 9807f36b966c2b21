"""The `bias` section: the draws that commands about M~ sweep over, and the one bias that a model runs under."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from plsh_cli.config.schema.fields import (
    Count,
    DistinctSigmas,
    Number,
    Positives,
    Probability,
    Sampler,
    Section,
    Sigmas,
    as_list,
)

#: The parameters of each kernel.
PARAMETERS = {"alibi": ("sigma",), "log": ("a", "b"), "power": ("a", "p"), "table": ("table",)}

#: The model's own RoPE beside the bias; null: kept in a pretrained model, dropped in one trained from scratch.
Rope = Literal["keep", "drop"] | None


class DrawsBias(Section):
    """Which random partitions stand for which bias kernel."""

    name: Literal["plsh"]
    kernel: Literal["alibi", "log", "power", "table"]
    sigma: DistinctSigmas | None
    a: Positives | None
    b: Positives | None
    p: (
        Annotated[list[Annotated[float, Number, Field(gt=0, le=1)]], BeforeValidator(as_list), Field(min_length=1)]
        | None
    )
    table: Annotated[list[Annotated[float, Number]], Field(min_length=1)] | None
    table_name: str
    pitch: Literal["real", "integer"]
    sampler: Sampler

    @model_validator(mode="after")
    def _consistent(self) -> DrawsBias:
        if self.kernel == "table" and self.table is None:
            raise ValueError(
                "kernel=table needs bias.table: a list of phi(0), phi(1), ... or the path of a .npy or text file"
            )
        if self.kernel == "table" and self.pitch == "real":
            raise ValueError("kernel=table has integer widths only: set bias.pitch=integer")
        for parameter in ("sigma", "a", "b", "p", "table"):
            if getattr(self, parameter) is not None and parameter not in PARAMETERS[self.kernel]:
                own = ", ".join(PARAMETERS[self.kernel])
                raise ValueError(f"{parameter} does not belong to kernel={self.kernel}, which takes {own}")
        return self


class PlshBias(DrawsBias):
    """Positional LSH in a model."""

    sigma: Sigmas | None
    num_samples: Count
    merge: Literal["lse", "mean"]
    resample: Literal["step", "once"]
    share_layers: bool
    exact_when_cheaper: bool
    rope: Rope

    @model_validator(mode="after")
    def _exact_is_alibi(self) -> PlshBias:
        if self.exact_when_cheaper and self.kernel != "alibi":
            raise ValueError(f"exact_when_cheaper puts exact ALiBi in, which kernel={self.kernel} does not stand for")
        return self


class AlibiBias(Section):
    """Exact ALiBi in a model."""

    name: Literal["alibi"]
    sigma: Sigmas | None
    rope: Rope


class WindowBias(Section):
    """Exact ALiBi without the keys whose weight is below eps."""

    name: Literal["window"]
    sigma: Sigmas | None
    eps: Probability
    rope: Rope


class FixedBlocksBias(Section):
    """Blocks of max(1, round(2 sigma)) tokens."""

    name: Literal["fixed_blocks"]
    sigma: Sigmas | None
    rope: Rope


class NoneBias(Section):
    """No positional bias."""

    name: Literal["none"]
    rope: Rope


class OriginalBias(Section):
    """The model's own attention, untouched."""

    name: Literal["original"]


ModelBias = PlshBias | AlibiBias | WindowBias | FixedBlocksBias | NoneBias | OriginalBias
TaggedBias = Annotated[ModelBias, Field(discriminator="name")]
