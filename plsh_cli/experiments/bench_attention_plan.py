"""What `plsh bench attention` is going to time: cases, and the methods compared in each of them. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from plsh_cli.config.schema.biases import (
    AlibiBias,
    DrawsBias,
    FixedBlocksBias,
    ModelBias,
    NoneBias,
    PlshBias,
    WindowBias,
)
from plsh_cli.config.schema.lab import BenchAttentionCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import biases
from plsh_cli.experiments.memory import gibibytes

#: Biases of the methods that are not plsh's own, and of the backend that computes only one; the others compute all.
SERVES = {"augmented": ("alibi",), "sdpa_mask": ("alibi",), "flex": ("alibi", "window")}
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
#: Measured at n = 1,024: bytes per (query, key) pair and head that backend reference holds at once, forward or with
#: backward; twice as many in float64.
REFERENCE_BYTES = 24


@dataclass(frozen=True)
class Case:
    """One problem that methods are compared on. passes: "forward" or "forward+backward"."""

    n: int
    dtype: str
    causal: bool
    passes: str
    heads: int
    head_dim: int
    batch: int

    @property
    def label(self) -> str:
        """As in messages and table titles."""
        return f"n={self.n:,}, {self.dtype}, {'causal' if self.causal else 'bidirectional'}, {self.passes}"

    @property
    def tensor_bytes(self) -> int:
        """The size of one of q, k, v."""
        return self.batch * self.heads * self.n * self.head_dim * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Method:
    """A backend with a bias and the bias's own settings; None where they do not belong to it."""

    backend: str
    bias: str
    num_samples: int | None = None
    sampler: str | None = None
    pitch: str | None = None
    eps: float | None = None

    @property
    def label(self) -> str:
        """The method's name, the same in rows, tables and figures."""
        own = [f"{self.eps:g}"] if self.eps is not None else []
        if self.num_samples is not None:
            kinds = (self.sampler if self.sampler != "iid" else "", self.pitch if self.pitch != "real" else "")
            own = [*filter(None, kinds), f"s={self.num_samples}"]
        return " ".join([self.backend, self.bias, *own])

    @property
    def exact(self) -> bool:
        """Whether it computes exact ALiBi."""
        return self.bias == "alibi"


@dataclass(frozen=True)
class Grid:
    """Cases in order of length, the methods timed in each, and how often."""

    cases: list[Case]
    methods: list[Method]
    repeats: int
    memory: str

    def with_memory(self, case: Case) -> bool:
        """Whether the memory of this case's methods is measured."""
        return self.memory == "all" or (self.memory == "largest" and case.n == max(one.n for one in self.cases))


def grids(cfg: BenchAttentionCommand) -> list[Grid]:
    """The grids of a configuration; UserError where a backend or bias of one is left without any method."""
    base = cfg.bench.model_dump()
    changes = [{key: value for key, value in one.model_dump().items() if value is not None} for one in cfg.bench.grids]
    return [_grid(cfg, base | change) for change in changes or [{}]]


def bias_section(method: Method, draws: DrawsBias) -> ModelBias:
    """The `bias` section, as of a model, that the method computes."""
    sigma = draws.sigma
    if method.bias == "plsh":
        own = {"sampler": method.sampler, "pitch": method.pitch, "num_samples": method.num_samples, "merge": "lse"}
        fixed = {"resample": "once", "share_layers": True, "exact_when_cheaper": False, "rope": None}
        return PlshBias(**draws.model_dump() | own | fixed)
    if method.bias == "window":
        return WindowBias(name="window", sigma=sigma, eps=method.eps, rope=None)
    if method.bias == "none":
        return NoneBias(name="none", rope=None)
    kind = {"alibi": AlibiBias, "fixed_blocks": FixedBlocksBias}[method.bias]
    return kind(name=method.bias, sigma=sigma, rope=None)


def sigmas(cfg: BenchAttentionCommand) -> list[float]:
    """Sigma per head, in tokens; UserError unless the section has none, one, or one per head."""
    return biases.head_sigmas(AlibiBias(name="alibi", sigma=cfg.bias.sigma, rope=None), cfg.bench.heads)


def too_large(method: Method, case: Case, dense_gib: float) -> str:
    """Why the method's n x n matrices are not made for this case, "" where it has none or they fit."""
    pairs = case.heads * case.n**2
    if method.backend == "sdpa_mask":
        needed = pairs * ITEM_BYTES[case.dtype]
    elif method.backend == "reference":
        needed = case.batch * pairs * REFERENCE_BYTES * (2 if case.dtype == "float64" else 1)
    else:
        return ""
    if needed <= dense_gib * 2**30:
        return ""
    return f"its n x n matrices take {gibibytes(needed)}, bench.dense_gib allows {dense_gib:g} GiB"


def _grid(cfg: BenchAttentionCommand, keys: dict[str, Any]) -> Grid:
    shape = {"heads": cfg.bench.heads, "head_dim": cfg.bench.head_dim, "batch": cfg.bench.batch}
    kinds = product(sorted(keys["n"]), keys["dtypes"], keys["causal"], keys["passes"])
    cases = [Case(n, dtype, causal, passes, **shape) for n, dtype, causal, passes in kinds]
    methods = [
        method
        for backend, bias in product(keys["backends"], keys["biases"])
        if bias in SERVES.get(backend, (bias,))
        for method in _methods(backend, bias, keys, cfg.bias)
    ]
    for what in ("backend", "bias"):
        asked = keys["backends" if what == "backend" else "biases"]
        idle = [name for name in asked if name not in {getattr(method, what) for method in methods}]
        if idle:
            _refuse(what, idle[0], keys)
    return Grid(cases, methods, keys["repeats"], keys["memory"])


def _refuse(what: str, idle: str, keys: dict[str, Any]) -> None:
    if what == "backend":
        allowed = f"computes {' and '.join(SERVES[idle])} only: add one of them to bench.biases, or leave {idle} out"
        raise UserError("bench.backends", idle, allowed, "bench.backends=[...]")
    allowed = f"none of the backends {', '.join(keys['backends'])} computes it: add another, such as fused"
    raise UserError("bench.biases", idle, allowed, "bench.biases=[...]")


def _methods(backend: str, bias: str, keys: dict[str, Any], draws: DrawsBias) -> Iterator[Method]:
    if bias == "plsh":
        samplers, pitches = keys["samplers"] or [draws.sampler], keys["pitches"] or [draws.pitch]
        for sampler, pitch, s in product(samplers, pitches, sorted(keys["num_samples"])):
            yield Method(backend, bias, s, sampler, pitch)
    elif bias == "window":
        for eps in sorted(keys["eps"], reverse=True):
            yield Method(backend, bias, eps=eps)
    else:
        yield Method(backend, bias)
