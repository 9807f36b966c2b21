"""The typed schema of every command's configuration.

Each section validates its own ranges when it is built; `plsh_cli.config.check` turns a failure into one message. Values
arrive as plain Python objects from Hydra, so a whole float (1e6) is accepted where a count is expected, a bool or text
is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Item = TypeVar("Item")


def _not_text_or_bool(value: object) -> object:
    if isinstance(value, (bool, str)):
        raise ValueError(f"must be a number, not {'text' if isinstance(value, str) else 'true/false'}")
    return value


def _as_list(value: object) -> object:
    return value if isinstance(value, (list, tuple)) or value is None else [value]


def _no_duplicates(values: list[Item]) -> list[Item]:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"must not repeat a value; repeated: {', '.join(map(str, repeated))}")
    return values


def _matching(pattern: str, allowed: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(allowed)
        return text

    return check


Number = BeforeValidator(_not_text_or_bool)
Count = Annotated[int, Number, Field(ge=1, le=2**62)]
Seed = Annotated[int, Number, Field(ge=0, lt=2**63)]
Seeds = Annotated[int, Number, Field(ge=1, le=100_000)]
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Number, Field(gt=0, lt=1)]
Counts = Annotated[list[Count], BeforeValidator(_as_list), Field(min_length=1), AfterValidator(_no_duplicates)]
Positives = Annotated[list[Positive], BeforeValidator(_as_list), Field(min_length=1)]
DistinctPositives = Annotated[Positives, AfterValidator(_no_duplicates)]
Sampler = Literal["iid", "stratified", "importance"]
Samplers = Annotated[list[Sampler], BeforeValidator(_as_list), Field(min_length=1), AfterValidator(_no_duplicates)]
Device = Annotated[
    str, AfterValidator(_matching(r"auto|cpu|mps|cuda(:\d+)?", "must be auto, cpu, mps, cuda or cuda:N"))
]
FolderName = Annotated[
    str,
    AfterValidator(
        _matching(
            r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
            "must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit",
        )
    ),
]


class Section(BaseModel):
    """A part of a configuration: immutable, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Logger(Section):
    """Where metrics go besides metrics.jsonl."""

    mode: Literal["offline", "online", "disabled"]
    project: Annotated[str, Field(min_length=1)]
    entity: str | None
    group: str | None
    tags: list[str]


#: The parameters of each kernel.
PARAMETERS = {"alibi": ("sigma",), "log": ("a", "b"), "power": ("a", "p"), "table": ("table",)}


class PlshBias(Section):
    """Which random partitions stand for which bias kernel."""

    name: Literal["plsh"]
    kernel: Literal["alibi", "log", "power", "table"]
    sigma: DistinctPositives | None
    a: Positives | None
    b: Positives | None
    p: (
        Annotated[list[Annotated[float, Number, Field(gt=0, le=1)]], BeforeValidator(_as_list), Field(min_length=1)]
        | None
    )
    table: Annotated[list[Annotated[float, Number]], Field(min_length=1)] | None
    table_name: str
    pitch: Literal["real", "integer"]
    sampler: Sampler

    @model_validator(mode="after")
    def _consistent(self) -> PlshBias:
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


class Command(Section):
    """What every command's configuration holds."""

    command: str
    name: FolderName
    seed: Seed
    device: Device
    out: Annotated[str, Field(min_length=1)]
    logger: Logger


class ApproxSettings(Section):
    n: Counts
    heads: Annotated[Count, Field(le=4096)]
    num_samples: Counts
    seeds: Seeds
    samplers: Samplers | None
    nested: bool
    norm: Literal["auto", "dense", "banded", "blocks"]
    delta: Probability
    bootstrap: Annotated[Count, Field(le=1_000_000)]


class ApproxCommand(Command):
    command: Literal["approx"]
    bias: PlshBias
    approx: ApproxSettings


class BenchMatrixSettings(Section):
    n: Count
    sigma: Positive
    num_samples: Count
    comparison_draws: Count
    slice_draws: Count
    large_n: Count
    large_num_samples: Count
    norm_n: Count
    norm_num_samples: Count
    repeats: Count


class BenchMatrixCommand(Command):
    command: Literal["bench_matrix"]
    bench: BenchMatrixSettings


class Model(Section):
    """A pretrained model: a name from the asset manifest, or a folder."""

    name: Annotated[str, Field(min_length=1)]
    path: str | None
    dtype: Literal["float32", "bfloat16", "float16"]


class Data(Section):
    """A text corpus: a name from the asset manifest."""

    name: Annotated[str, Field(min_length=1)]
    document: Annotated[int, Number]


class AttnErrorSettings(Section):
    num_samples: Counts
    tokens: Annotated[int, Number, Field(ge=2)]
    layers: (
        Annotated[
            list[Annotated[int, Number, Field(ge=0)]],
            BeforeValidator(_as_list),
            Field(min_length=1),
            AfterValidator(_no_duplicates),
        ]
        | None
    )
    seeds: Seeds


class AttnErrorCommand(Command):
    command: Literal["attn_error"]
    bias: PlshBias
    model: Model
    data: Data
    attn_error: AttnErrorSettings


SCHEMAS: dict[str, type[Command]] = {
    "approx": ApproxCommand,
    "attn_error": AttnErrorCommand,
    "bench_matrix": BenchMatrixCommand,
}

FLAGS: dict[str, dict[str, str]] = {
    "approx": {
        "--s": "approx.num_samples",
        "--n": "approx.n",
        "--heads": "approx.heads",
        "--sigma": "bias.sigma",
        "--seeds": "approx.seeds",
        "--seed": "seed",
        "--samplers": "approx.samplers",
        "--device": "device",
        "--out": "out",
    },
    "attn_error": {
        "--s": "attn_error.num_samples",
        "--tokens": "attn_error.tokens",
        "--layers": "attn_error.layers",
        "--sigma": "bias.sigma",
        "--seeds": "attn_error.seeds",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    },
    "bench_matrix": {"--seed": "seed", "--device": "device", "--out": "out"},
}
