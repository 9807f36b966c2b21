"""The schemas of the laboratory's commands: approx, attn-error and the benches."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plsh_cli.config.schema.biases import DrawsBias
from plsh_cli.config.schema.fields import Count, Counts, Layers, Number, Positive, Probability, Samplers, Section, Seeds
from plsh_cli.config.schema.sections import Command, Data, Model


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
    flags: ClassVar[dict[str, str]] = {
        "--s": "approx.num_samples",
        "--n": "approx.n",
        "--heads": "approx.heads",
        "--sigma": "bias.sigma",
        "--seeds": "approx.seeds",
        "--seed": "seed",
        "--samplers": "approx.samplers",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {"bias": ["draws"]}

    command: Literal["approx"]
    bias: DrawsBias
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
    flags: ClassVar[dict[str, str]] = {
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }

    command: Literal["bench_matrix"]
    bench: BenchMatrixSettings


class AttnErrorSettings(Section):
    num_samples: Counts
    tokens: Annotated[int, Number, Field(ge=2)]
    layers: Layers | None
    seeds: Seeds


class AttnErrorCommand(Command):
    flags: ClassVar[dict[str, str]] = {
        "--s": "attn_error.num_samples",
        "--tokens": "attn_error.tokens",
        "--layers": "attn_error.layers",
        "--sigma": "bias.sigma",
        "--seeds": "attn_error.seeds",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {"bias": ["draws"]}

    command: Literal["attn_error"]
    bias: DrawsBias
    model: Model
    data: Data
    attn_error: AttnErrorSettings
