"""What a run of `plsh attn-error` would take, from configuration and the model's sizes alone."""

from __future__ import annotations

from collections.abc import Sequence

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.experiments.attn_error_subjects import subjects
from plsh_cli.experiments.attn_error_values import MATRICES_BYTES
from plsh_cli.models.shape import Shape
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.measure import estimate_bytes

#: Longer texts are measured without matrices of n x n.
DENSE_TOKENS = 8192
#: Measured: the program with its libraries, and the logits that are held at a time with their copies.
_PROGRAM_BYTES, _LOGITS_BYTES = 0.7 * 2**30, 3 * 4 * 2**26
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: A draw's width, shift and group, beside its weight of 8 bytes; measured: what more is alive while a set is drawn and
#: measured.
_DRAW_BYTES, _DRAWING_BYTES = 24.0, 64.0
#: Measured on two cores: seconds per pair of a head of 64 dims under one bias matrix (dense, float64), per block that
#: is drawn, counted and measured, and per entry of M~ that is written out.
_PAIR_SECONDS, _BLOCK_SECONDS, _ENTRY_SECONDS = 1.0e-8, 4e-8, 2e-8


def method_of(cfg: AttnErrorCommand, n: int) -> str:
    """dense or fused: what computes the outputs at n tokens."""
    if cfg.attn_error.method != "auto":
        return cfg.attn_error.method
    served = cfg.protocol == "corrected" and cfg.bias.kernel == "alibi"
    return "fused" if n > DENSE_TOKENS and served else "dense"


def weight_bytes(cfg: AttnErrorCommand, shape: Shape) -> float:
    """Bytes of the model's weights; 0 where their number is not known before loading."""
    return float(_BYTES[cfg.model.dtype] * (shape.parameters or 0))


def draw_bytes(cfg: AttnErrorCommand, kernels: Sequence[Kernel]) -> float:
    """Bytes of all draws that are held together and of what drawing and measuring one set takes; it grows as s does."""
    sizes = cfg.attn_error.num_samples
    nested = cfg.protocol == "corrected" and cfg.bias.sampler == "iid"
    # Nested draws share all but their weights.
    one = _DRAW_BYTES * max(sizes) + 8.0 * sum(sizes) if nested else (_DRAW_BYTES + 8.0) * sum(sizes)
    # The paper's protocol lets a head's draws go before the next one's; fused attention has a copy for all heads.
    sets = cfg.attn_error.seeds * (1 if cfg.protocol == "paper" else max(1, len(set(kernels))))
    copy = cfg.attn_error.seeds * len(kernels) if method_of(cfg, cfg.attn_error.tokens) == "fused" else 0
    return (sets + copy) * one + _DRAWING_BYTES * max(sizes)


def estimated_bytes(cfg: AttnErrorCommand, shape: Shape, layers: int, kernels: Sequence[Kernel]) -> float:
    """Bytes at the peak."""
    n, width = cfg.attn_error.tokens, _BYTES[cfg.model.dtype]
    heads, groups, dim = shape.heads or 1, shape.kv_heads or shape.heads or 1, shape.head_dim or 64
    captured = width * layers * (heads + 2 * groups) * dim * n
    largest = max(cfg.attn_error.num_samples)
    banded = max((estimate_bytes(one, n, largest, pitch=cfg.bias.pitch) for one in dict.fromkeys(kernels)), default=0)
    if method_of(cfg, n) == "fused":
        measuring = banded + 8.0 * 12 * heads * n * dim
    else:
        repeats = cfg.attn_error.seeds * len(subjects(cfg))
        held = min(max(MATRICES_BYTES, 8.0 * n * n), repeats * 8.0 * n * n)
        band = 3.5 * 8.0 * n * min(n, 12.0 * max((one.sigma or n for one in kernels), default=n))
        measuring = held + 8.0 * n * n + max(banded, band + 8.0 * n * n)
    return (
        _PROGRAM_BYTES + weight_bytes(cfg, shape) + captured + max(_LOGITS_BYTES, measuring + draw_bytes(cfg, kernels))
    )


def estimated_seconds(cfg: AttnErrorCommand, shape: Shape, layers: int, kernels: Sequence[Kernel]) -> float | None:
    """Seconds of the dense path on two cores, without loading; None for the other one."""
    n = cfg.attn_error.tokens
    if method_of(cfg, n) == "fused" or not kernels:
        return None
    paper, inputs, seeds = cfg.protocol == "paper", cfg.attn_error.inputs, cfg.attn_error.seeds
    repeats = seeds * len(cfg.attn_error.num_samples) + len(subjects(cfg)) - len(cfg.attn_error.num_samples)
    pairs = n * n * (1.0 if paper else 0.5) * (shape.head_dim or 64) / 64
    outputs = inputs * layers * len(kernels) * (repeats + 2) * pairs * _PAIR_SECONDS
    drawn = kernels if paper else list(dict.fromkeys(kernels))
    per_draw = sum(1.0 + (n - 1.0) * float(kernel.drop(0)) for kernel in drawn) * sum(cfg.attn_error.num_samples)
    written = len(drawn) * repeats * n * n * _ENTRY_SECONDS
    times = inputs * (layers if paper else 1)
    return outputs + times * (seeds * per_draw * _BLOCK_SECONDS + written)


def as_time(seconds: float) -> str:
    """Seconds in words."""
    for size, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"about {seconds / size:,.0f} {name}"
    return f"about {max(1, round(seconds))} s"
