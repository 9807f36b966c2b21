"""The types of configuration values, with their ranges.

Values arrive as plain Python objects from Hydra, so a whole float (1e6) is accepted where a count is expected, a bool
or text is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Item = TypeVar("Item")


def not_text_or_bool(value: object) -> object:
    if isinstance(value, (bool, str)):
        raise ValueError(f"must be a number, not {'text' if isinstance(value, str) else 'true/false'}")
    return value


def as_list(value: object) -> object:
    return value if isinstance(value, (list, tuple)) or value is None else [value]


def no_duplicates(values: list[Item]) -> list[Item]:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"must not repeat a value; repeated: {', '.join(map(str, repeated))}")
    return values


def matching(pattern: str, allowed: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(allowed)
        return text

    return check


Number = BeforeValidator(not_text_or_bool)
Count = Annotated[int, Number, Field(ge=1, le=2**62)]
Seed = Annotated[int, Number, Field(ge=0, lt=2**63)]
Seeds = Annotated[int, Number, Field(ge=1, le=100_000)]
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Number, Field(gt=0, lt=1)]
Counts = Annotated[list[Count], BeforeValidator(as_list), Field(min_length=1), AfterValidator(no_duplicates)]
Layers = Annotated[
    list[Annotated[int, Number, Field(ge=0)]],
    BeforeValidator(as_list),
    Field(min_length=1),
    AfterValidator(no_duplicates),
]
Positives = Annotated[list[Positive], BeforeValidator(as_list), Field(min_length=1)]
# Tokens. Far beyond what tells any two tokens apart, and float32 holds distance / sigma for every length.
Sigma = Annotated[float, Number, Field(ge=1e-30, le=1e30)]
Sigmas = Annotated[list[Sigma], BeforeValidator(as_list), Field(min_length=1)]
DistinctSigmas = Annotated[Sigmas, AfterValidator(no_duplicates)]
Sampler = Literal["iid", "stratified", "importance"]
Samplers = Annotated[list[Sampler], BeforeValidator(as_list), Field(min_length=1), AfterValidator(no_duplicates)]
Device = Annotated[str, AfterValidator(matching(r"auto|cpu|mps|cuda(:\d+)?", "must be auto, cpu, mps, cuda or cuda:N"))]
FolderName = Annotated[
    str,
    AfterValidator(
        matching(
            r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
            "must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit",
        )
    ),
]


class Section(BaseModel):
    """A part of a configuration: immutable, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
