"""The schemas of the laboratory's commands: approx, attn-error and the benches."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from plsh_cli.config.schema.biases import DrawsBias
from plsh_cli.config.schema.fields import (
    Count,
    Counts,
    Layers,
    Number,
    Positive,
    Probability,
    Samplers,
    Section,
    Seeds,
    Sigma,
    as_list,
    no_duplicates,
)
from plsh_cli.config.schema.sections import Command, Data, OpenedModel


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
    sigma: Sigma
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


def _several(item: object) -> object:
    """The type of a list of such values, at least one and none twice; a single value stands for a list of it."""
    return Annotated[list[item], BeforeValidator(as_list), Field(min_length=1), AfterValidator(no_duplicates)]


_Bools = _several(Annotated[bool, Field(strict=True)])
_Pitches = _several(Literal["real", "integer"])
_Cuts = _several(Probability)
_Dtypes = _several(Literal["float32", "bfloat16", "float16", "float64"])
_Passes = _several(Literal["forward", "forward+backward"])
_Backends = _several(Literal["auto", "fused", "triton", "blocks", "augmented", "reference", "sdpa_mask", "flex"])
_Biases = _several(Literal["plsh", "window", "alibi", "fixed_blocks", "none"])
_Memory = Literal["largest", "all", "none"]


class BenchGrid(Section):
    """The keys of `bench` that one grid of several changes; null: as in `bench`."""

    n: Counts | None = None
    dtypes: _Dtypes | None = None
    causal: _Bools | None = None
    passes: _Passes | None = None
    backends: _Backends | None = None
    biases: _Biases | None = None
    num_samples: Counts | None = None
    samplers: Samplers | None = None
    pitches: _Pitches | None = None
    eps: _Cuts | None = None
    repeats: Count | None = None
    memory: _Memory | None = None


class BenchAttentionSettings(Section):
    n: Counts
    dtypes: _Dtypes
    causal: _Bools
    passes: _Passes
    backends: _Backends
    biases: _Biases
    num_samples: Counts
    samplers: Samplers | None
    pitches: _Pitches | None
    eps: _Cuts
    repeats: Annotated[Count, Field(le=1000)]
    memory: _Memory
    heads: Annotated[Count, Field(le=4096)]
    head_dim: Annotated[Count, Field(le=4096)]
    batch: Count
    dense_gib: Positive
    exact_when_cheaper: bool
    grids: list[BenchGrid]


class BenchAttentionCommand(Command):
    flags: ClassVar[dict[str, str]] = {
        "--s": "bench.num_samples",
        "--n": "bench.n",
        "--heads": "bench.heads",
        "--sigma": "bias.sigma",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {"bias": ["draws"]}

    command: Literal["bench_attention"]
    bias: DrawsBias
    bench: BenchAttentionSettings


_ErrorBiases = _several(Literal["plsh", "window", "fixed_blocks"])


class AttnErrorSettings(Section):
    """What is measured on a model's Q, K and V; conf/attn_error.yaml has a comment with the unit on every key."""

    num_samples: Counts
    biases: _ErrorBiases
    tokens: Annotated[int, Number, Field(ge=2)]
    inputs: Annotated[Count, Field(le=100_000)]
    texts: Literal["documents", "windows"]
    layers: Layers | None
    seeds: Seeds
    method: Literal["auto", "dense", "fused"]

    @model_validator(mode="after")
    def _consistent(self) -> AttnErrorSettings:
        if "plsh" not in self.biases:
            raise ValueError("biases must hold plsh: the others are measured at the cost of its draws")
        return self


class AttnErrorCommand(Command):
    flags: ClassVar[dict[str, str]] = {
        "--s": "attn_error.num_samples",
        "--biases": "attn_error.biases",
        "--tokens": "attn_error.tokens",
        "--inputs": "attn_error.inputs",
        "--layers": "attn_error.layers",
        "--sigma": "bias.sigma",
        "--protocol": "protocol",
        "--seeds": "attn_error.seeds",
        "--seed": "seed",
        "--device": "device",
        "--out": "out",
    }
    options: ClassVar[dict[str, list[str]]] = {
        "bias": ["draws"],
        "model": ["smollm2_135m", "mistral_7b", "llama4_scout", "qwen3_0.6b", "bloom_560m", "mpt_7b", "falcon_rw_1b"],
        "data": ["sotu", "text", "wikitext103"],
    }

    command: Literal["attn_error"]
    protocol: Literal["corrected", "paper"]
    bias: DrawsBias
    model: OpenedModel
    data: Data
    attn_error: AttnErrorSettings
