"""`attention`: one function for every bias and backend; it checks, chooses a backend, and calls it.

Shapes: b batch, h query heads, g key/value heads (h is a multiple of g; query head i reads key head i // (h / g)), n
queries, m keys, d head dim.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import get_args

import torch

from plsh_cli.attention.augmented import augmented_attention
from plsh_cli.attention.bias import (
    Alibi,
    Bias,
    FixedBlocks,
    Mixed,
    NoBias,
    Plsh,
    head_structures,
    partitions,
    sigma_per_head,
    take_heads,
)
from plsh_cli.attention.blocks import block_attention
from plsh_cli.attention.inputs import Layout, check, check_draws, positions
from plsh_cli.attention.reference import reference_attention
from plsh_cli.positional.partitions import PartitionSet, stack

LOW_PRECISION_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_TRITON_DIM = 256


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: Bias | None = None,
    causal: bool = True,
    scale: float | None = None,
    *,
    q_offset: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return attention under a bias, (b, h, n, d) in q's dtype; with return_lse also lse (b, h, n), natural logarithm.

    q (b, h, n, d), k and v (b, g, m, d): one dtype (float64, float32, bfloat16, float16) and device. bias: one of
    `bias.Bias`; None is NoBias. scale: default d ** -0.5. Query i is at position i + q_offset (default m - n: the last
    query at the last key), key j at position j; causal: a query sees keys up to its own position. cu_seqlens: offsets
    of packed documents (int32 or int64, ascending from 0 to n = m); queries see their own document only, and documents
    cut blocks. key_padding_mask (b, m) bool: True for keys that count. lse is float32 (float64 for float64). A row that
    sees no key gives 0 and -inf, and gradient 0. A number that is not finite reaches only the rows that see it.

    backend: "auto" or one of `BACKENDS`; see `choose_backend`. Differentiable in q, k, v by every backend, once (no
    second derivatives, no functorch transforms). Types are those of the inputs under autocast too, and torch.compile
    leaves the call as it is. Raises ValueError naming the argument that does not fit.
    """
    options = {"q_offset": q_offset, "cu_seqlens": cu_seqlens, "key_padding_mask": key_padding_mask}
    # Traced by torch.compile, loops over draws and NumPy's float64 would come out otherwise.
    run = _not_compiled() if torch.compiler.is_dynamo_compiling() else _attention
    out, lse = run(q, k, v, bias, causal, scale, backend, options)
    return (out, lse) if return_lse else out


def _attention(q, k, v, bias, causal, scale, backend: str, options: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `attention`'s out and lse."""
    layout, scale = check(q, k, v, causal=causal, scale=scale, **options)
    bias = NoBias() if bias is None else bias
    _check_bias(bias, q, layout)
    name = choose_backend(q, bias, causal=causal) if backend == "auto" else backend
    if name not in BACKENDS:
        raise ValueError(f"backend = {backend!r}: must be auto or one of {', '.join(BACKENDS)}")
    if reason := why_not(name, q, bias, causal=causal):
        raise ValueError(f"backend = {name!r}: {reason}")
    run = functools.partial(BACKENDS[name], causal=bool(causal), scale=scale, **options)
    with torch.autocast(q.device.type, enabled=False) if _autocasts(q.device.type) else contextlib.nullcontext():
        return _mixed(run, q, k, v, bias) if isinstance(bias, Mixed) else run(q, k, v, bias)


@functools.cache
def _not_compiled() -> Callable:
    return torch.compiler.disable(_attention)


def _autocasts(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def choose_backend(q: torch.Tensor, bias: Bias | None = None, *, causal: bool = True) -> str:
    """Return the backend that "auto" takes for such a call: "fused" if it serves it, else "triton", else "blocks".

    All of them compute the bias that was asked for. Where only a missing compiler stands in the way of a fused kernel,
    says so, once.
    """
    bias = NoBias() if bias is None else bias
    for name in ("fused", "triton"):
        reason = why_not(name, q, bias, causal=causal)
        if not reason:
            return name
        if name == "fused" and (failed := _fused_failure()) and reason == failed:
            _say_once(f"{failed}; the slower backend blocks runs instead")
    return "blocks"


def why_not(name: str, q: torch.Tensor, bias: Bias, *, causal: bool) -> str:
    """Return why a backend does not serve such a call, "" if it does."""
    kinds = [one for _, one in bias.groups] if isinstance(bias, Mixed) else [bias]
    if name == "augmented":
        if not (causal and all(isinstance(one, Alibi) for one in kinds)):
            return "computes causal Alibi only"
        return ""
    if name not in ("fused", "triton"):
        return ""
    if any(isinstance(one, Plsh) and one.merge != "lse" for one in kinds):
        return 'computes Plsh with merge = "lse" only'
    if q.dtype not in LOW_PRECISION_AND_SINGLE:
        return f"computes in float32: {q.dtype} is for the backends blocks and reference"
    device = "cpu" if name == "fused" else "cuda"
    if q.device.type != device:
        return f"runs on {device}, q is on {q.device}"
    if name == "triton":
        return _triton_obstacle(q)
    return _fused_failure()


def _triton_obstacle(q: torch.Tensor) -> str:
    if find_spec("triton") is None:
        return "needs the package triton, install plsh-cli[triton]"
    return (
        f"takes a head dim up to {LARGEST_TRITON_DIM}, q has {q.shape[-1]}" if q.shape[-1] > LARGEST_TRITON_DIM else ""
    )


def _fused_failure() -> str:
    """Return the message of the compiler that could not build the CPU kernels, "" if they are there."""
    from plsh_cli.attention.build import KernelBuildError, library

    try:
        library()
    except KernelBuildError as error:
        return str(error)
    return ""


@functools.cache
def _say_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def _check_bias(bias: Bias, q: torch.Tensor, layout: Layout) -> None:
    """Raise ValueError unless the bias is for these heads and positions."""
    if not isinstance(bias, Bias):
        raise ValueError(f"bias = {bias!r}: must be None or one of {', '.join(t.__name__ for t in get_args(Bias))}")
    if isinstance(bias, Mixed) and bias.num_heads != q.shape[1]:
        raise ValueError(f"groups: for {bias.num_heads} heads, the query has {q.shape[1]}; must be the same")
    groups = bias.groups if isinstance(bias, Mixed) else [(range(q.shape[1]), bias)]
    for heads, one in groups:
        if isinstance(one, FixedBlocks | Plsh):
            check_draws(layout)
            partitions(one, len(heads), layout.positions)
        elif not isinstance(one, NoBias):
            sigma_per_head(one, len(heads))


def _fused(q, k, v, bias, *, causal, scale, q_offset, cu_seqlens, key_padding_mask):
    from plsh_cli.attention.fused import Draws, fused_attention

    structure = _structure(bias, q, k, q_offset, Draws)
    options = {"q_offset": q_offset, "cu_seqlens": cu_seqlens, "key_padding_mask": key_padding_mask}
    return fused_attention(q, k, v, structure, causal=causal, scale=scale, **options)


def _triton(q, k, v, bias, *, causal, scale, q_offset, cu_seqlens, key_padding_mask):
    from plsh_cli.attention.triton_attention import triton_attention
    from plsh_cli.attention.triton_draws import Draws

    structure = _structure(bias, q, k, q_offset, Draws)
    options = {"q_offset": q_offset, "cu_seqlens": cu_seqlens, "key_padding_mask": key_padding_mask}
    return triton_attention(q, k, v, structure, causal=causal, scale=scale, **options)


def _structure(bias: Bias, q: torch.Tensor, k: torch.Tensor, q_offset: int | None, draws: Callable):
    """Return what the fused kernels take: a band, or `draws` of the set, prepared once per bias object."""
    from plsh_cli.attention.fused import Band

    heads, n, m = q.shape[1], q.shape[2], k.shape[2]
    covered = positions(n, m, m - n if q_offset is None else int(q_offset))
    if isinstance(bias, FixedBlocks | Plsh):
        prepared = bias.prepared if isinstance(bias, Plsh) else {}
        key = (draws.__module__, heads, covered)
        if key not in prepared:
            prepared[key] = draws(_for_heads(partitions(bias, heads, covered), heads))
        return prepared[key]
    decays = head_structures(bias, heads, covered)
    return Band([one.sigma for one in decays], [one.width for one in decays])


def _for_heads(parts: PartitionSet, heads: int) -> PartitionSet:
    return parts if parts.num_heads == heads else stack([parts] * heads)


def _mixed(run: Callable, q, k, v, bias: Mixed) -> tuple[torch.Tensor, torch.Tensor]:
    """Every group of heads under its own bias; where key heads are shared, those of one key head at a time."""
    share = q.shape[1] // k.shape[1]
    order, parts = [], []
    for heads, one in bias.groups:
        for first, last in _same_key_head(heads, share):
            mine, places = list(heads[first:last]), list(range(first, last))
            kv = mine if share == 1 else [mine[0] // share]
            parts.append(run(q[:, mine], k[:, kv], v[:, kv], take_heads(one, places) if share > 1 else one))
            order += mine
    back = torch.tensor(order, device=q.device).argsort()
    out, lse = (torch.cat(pieces, dim=1)[:, back] for pieces in zip(*parts, strict=True))
    return out, lse


def _same_key_head(heads: tuple[int, ...], share: int) -> list[tuple[int, int]]:
    """Return the ranges of places in `heads` to compute together."""
    if share == 1:
        return [(0, len(heads))]
    edges = [i for i in range(1, len(heads)) if heads[i] // share != heads[i - 1] // share]
    return list(zip([0, *edges], [*edges, len(heads)], strict=True))


BACKENDS: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "fused": _fused,
    "triton": _triton,
    "blocks": block_attention,
    "augmented": augmented_attention,
    "reference": reference_attention,
}
