"""The schema of `plsh compare`: biases beside a baseline, on the same inputs and seeds and at equal cost."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from plsh_cli.config.schema.biases import DrawsBias
from plsh_cli.config.schema.fields import (
    Count,
    Counts,
    Layers,
    Number,
    Probability,
    Section,
    Seeds,
    as_list,
    no_duplicates,
)
from plsh_cli.config.schema.sections import Command, Data, Model

BiasName = Literal["plsh", "window", "fixed_blocks", "alibi", "none", "original"]
BiasNames = Annotated[list[BiasName], BeforeValidator(as_list), Field(min_length=1), AfterValidator(no_duplicates)]


class CompareSettings(Section):
    """What is compared with what; conf/compare.yaml has a comment with the unit on every key."""

    baseline: BiasName
    methods: BiasNames
    num_samples: Counts
    level: Literal["matrix", "attention", "training"]
    cost: Literal["union", "draws", "time", "s"]
    inputs: Literal["captured", "random"]
    n: Annotated[int, Number, Field(ge=2)]
    texts: Annotated[Count, Field(le=100_000)]
    layers: Layers | None
    heads: Annotated[Count, Field(le=4096)]
    head_dim: Annotated[Count, Field(le=4096)]
    seeds: Seeds
    eps: Probability
    train: list[str]
    processes: Annotated[Count, Field(le=256)]


class CompareCommand(Command):
    flags: ClassVar[dict[str, str]] = {
        "--baseline": "compare.baseline",
        "--methods": "compare.methods",
        "--s": "compare.num_samples",
        "--level": "compare.level",
        "--cost": "compare.cost",
        "--n": "compare.n",
        "--texts": "compare.texts",
        "--layers": "compare.layers",
        "--sigma": "bias.sigma",
        "--seeds": "compare.seeds",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {
        "bias": ["draws"],
        "model": [
            "smollm2_135m",
            "mistral_7b",
            "llama4_scout",
            "qwen3_0.6b",
            "bloom_560m",
            "mpt_7b",
            "falcon_rw_1b",
            "tiny",
            "small",
            "gpt_148m",
        ],
        "data": ["sotu", "text", "wikitext103"],
    }
    implied: ClassVar[dict[str, list[str]]] = {"compare.level=training": ["model=tiny"]}

    command: Literal["compare"]
    bias: DrawsBias
    model: Model
    data: Data
    compare: CompareSettings
