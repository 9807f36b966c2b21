"""Attention in one pass over the pairs that the bias lets see each other, on NVIDIA GPUs: backend `triton`.

The same algorithm and interface as `fused` on the CPU. With TRITON_INTERPRET=1 set before triton is first imported the
kernels run on the CPU, slowly, for tests; bfloat16 is widened to float32 there, because the interpreter has no products
of bfloat16.
Shapes: b batch, h query heads, g key/value heads (h is a multiple of g), n queries, m keys, d head dim, s draws.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton

from plsh_cli.attention import triton_kernels as kernels
from plsh_cli.attention.inputs import LARGEST_POSITION, check, check_structure, positions
from plsh_cli.attention.triton_draws import Draws
from plsh_cli.attention.triton_pairs import Pairs

if TYPE_CHECKING:
    from plsh_cli.attention.fused import Band

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_DIM = 256
PAD_TO = 16  # keeps every row on 16 bytes, whatever the length


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter instead of being compiled."""
    return not isinstance(kernels.forward_kernel, triton.runtime.JITFunction)


def triton_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    structure: Band | Draws,
    *,
    causal: bool,
    scale: float | None = None,
    q_offset: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (b, h, n, d) in q's dtype and lse (b, h, n), float32, natural logarithm; differentiable in q, k, v.

    q (b, h, n, d), k and v (b, g, m, d): float32, bfloat16 or float16 on one CUDA device, d <= 256. structure: a Band
    (sigma and width per head) or triton_draws.Draws (h heads, or one for all). Query i is at position i + q_offset
    (default m - n: the last query at the last key) and under `causal` sees keys up to there. scale: default d ** -0.5.
    cu_seqlens: offsets of packed documents (int32 or int64, ascending from 0 to n = m): queries see their own document
    only; reading them waits for the device unless they are on the CPU. key_padding_mask (b, m) bool: True for keys that
    count. A row without keys gives 0 and -inf, gradient 0. A number that is not finite reaches only the rows that see
    it. Raises ValueError for what does not fit.
    """
    layout, scale = check(
        q, k, v, causal=causal, scale=scale, q_offset=q_offset, cu_seqlens=cu_seqlens, key_padding_mask=key_padding_mask
    )
    _check_served(q)
    heads = q.shape[1] if structure.num_heads == 1 and isinstance(structure, Draws) else structure.num_heads
    check_structure(heads, structure.capacity, q.shape[1], layout)
    keep = None if layout.keep is None else layout.keep.contiguous().view(torch.uint8)
    pairs = _pairs(structure, _documents(layout.documents, q.device), keep, q.device)
    task = _Task(pairs, structure, layout.causal, scale, layout.offset)
    dtype, dim = q.dtype, q.shape[-1]
    if interpreted() and dtype == torch.bfloat16:
        q, k, v = q.float(), k.float(), v.float()
    if dim % PAD_TO:
        q, k, v = (torch.nn.functional.pad(x, (0, -dim % PAD_TO)) for x in (q, k, v))
    out, lse = _Triton.apply(q, k, v, task)
    return out[..., :dim].to(dtype), lse


@dataclass(frozen=True, eq=False)
class _Task:
    pairs: Pairs
    structure: Band | Draws
    causal: bool
    scale: float
    offset: int

    def data(self, q: torch.Tensor, k: torch.Tensor) -> dict[str, int | float]:
        """Return the numbers that are arguments of the kernels at run time."""
        h, n, m = q.shape[1], q.shape[2], k.shape[2]
        draws = isinstance(self.structure, Draws)
        return {
            "batch_heads": q.shape[0] * h,
            "heads": h,
            "group": h // k.shape[1],
            "n": n,
            "m": m,
            "offset": self.offset,
            "capacity": self.structure.capacity if draws else positions(n, m, self.offset),
            "num_draws": self.structure.num_draws if draws else 0,
            "words": self.pairs.blocks.shape[2] if draws else 0,
            "table_step": int(self.structure.num_heads > 1),
            "scale": self.scale,
        }

    def compiled(self, q: torch.Tensor, forward: bool) -> dict[str, int | bool]:
        """Return what a kernel is compiled for; with dtypes and which parts of Pairs there are, nothing else is."""
        d = q.shape[-1]
        # The interpreter takes its time per operation, however large.
        rows, cols, warps = (64, 64, 4) if interpreted() else _tile(d, q.element_size(), forward)
        padded = triton.next_power_of_2(d)
        return {
            "DIM": d,
            "BLOCK_D": padded,
            "ROWS": rows,
            "COLS": cols,
            "CAUSAL": self.causal,
            "num_warps": warps,
            "num_stages": 1 if padded > 64 else 2,
        }


def _tile(d: int, element_size: int, forward: bool) -> tuple[int, int, int]:
    """Return rows, columns and warps of a program such that it needs less than 99 KB of shared memory."""
    if element_size == 4:
        return (32, 32, 4 if d <= 64 else 8) if d <= 128 else (16, 16, 4)
    if d <= 64:
        return (64, 64, 4 if forward else 8)
    if d <= 128:
        return (64, 64 if forward else 32, 8)
    return (64 if forward else 32, 32, 8)


class _Triton(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, task):
        q, k, v = (_readable(x) for x in (q, k, v))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        data, compiled = task.data(q, k), task.compiled(q, forward=True)
        strides = [_strides(x) for x in (q, k, v)]
        arguments = (q, k, v, out, lse, _spoilt_before(v), task.pairs, *strides)
        _launch(kernels.forward_kernel, q.shape[2], data["batch_heads"], arguments, data, compiled)
        ctx.task = task
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, out, lse = ctx.saved_tensors
        if d_out is None:
            if d_lse is None:
                return None, None, None, None
            d_out = torch.zeros_like(out)
        d_out = _readable(d_out)
        d_lse = None if d_lse is None else d_lse.float().contiguous()
        delta = torch.empty_like(lse)
        d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        data, compiled = ctx.task.data(q, k), ctx.task.compiled(q, forward=False)
        strides = [_strides(x) for x in (q, k, v, d_out)]
        n, m, lines, key_lines = q.shape[2], k.shape[2], data["batch_heads"], k.shape[0] * k.shape[1]
        small = {name: data[name] for name in ("batch_heads", "heads", "n")}
        options = {name: x for name, x in compiled.items() if name not in ("COLS", "CAUSAL")}
        _launch(kernels.delta_kernel, n, lines, (out, d_out, d_lse, delta, strides[3]), small, options)
        read = (q, k, v, d_out, lse, delta)
        _launch(kernels.dq_kernel, n, lines, (*read, d_q, _spoilt_before(k), ctx.task.pairs, *strides), data, compiled)
        arguments = (*read, d_k, d_v, _spoilt_before(q, d_out), ctx.task.pairs, *strides)
        _launch(kernels.dkv_kernel, m, key_lines, arguments, {**data, "batch_heads": key_lines}, compiled)
        return d_q, d_k, d_v, None


def _launch(kernel, positions: int, lines: int, arguments, data: dict, compiled: dict) -> None:
    """Run a kernel over all tiles of `positions` rows in each of `lines` (batch, head) pairs."""
    programs = triton.cdiv(positions, compiled["ROWS"]) * lines
    if programs == 0:
        return
    device = arguments[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[(programs,)](*arguments, **data, **compiled)


def _readable(x: torch.Tensor) -> torch.Tensor:
    """Return x with rows on 16 bytes, which the compiler then knows for every call alike."""
    x = x.detach()
    aligned = x.data_ptr() % 16 == 0 and all(stride % PAD_TO == 0 for stride in _strides(x))
    return x if aligned and x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def _strides(x: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of batch, head and position; 0 where there is only one."""
    return tuple(0 if size <= 1 else stride for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True))


def _spoilt_before(*tensors: torch.Tensor) -> torch.Tensor:
    """Return how many rows before each row hold a number that is not finite, (b, heads, rows + 1) int32."""
    spoilt = torch.zeros(tensors[0].shape[:3], dtype=torch.bool, device=tensors[0].device)
    for x in tensors:
        # A row's extremes are finite just when all of it is: both pass NaN on.
        spoilt |= ~(x.amax(-1).isfinite() & x.amin(-1).isfinite())
    return torch.nn.functional.pad(spoilt.cumsum(-1, dtype=torch.int32), (1, 0))


def _pairs(structure: Band | Draws, documents, keep: torch.Tensor | None, device: torch.device) -> Pairs:
    if isinstance(structure, Draws):
        pairs = Pairs(*structure.on(device))
    else:
        slopes = torch.tensor([1.0 / float(x) for x in structure.sigma], dtype=torch.float32, device=device)
        widths = [int(min(float(x), LARGEST_POSITION)) for x in structure.width]
        pairs = Pairs(slopes=slopes, widths=torch.tensor(widths, dtype=torch.int32, device=device))
    return pairs._replace(document_first=documents[0], document_end=documents[1], keep=keep)


def _check_served(q: torch.Tensor) -> None:
    if q.dtype not in DTYPES:
        raise ValueError(f"q: is {q.dtype}, must be one of {', '.join(str(t) for t in DTYPES)}")
    if q.device.type != "cuda" and not (q.device.type == "cpu" and interpreted()):
        raise ValueError(
            f"q: is on {q.device}, backend triton runs on CUDA devices (on the CPU with TRITON_INTERPRET=1)"
        )
    if q.shape[3] > LARGEST_DIM:
        raise ValueError(f"q: has head dim {q.shape[3]}, backend triton takes up to {LARGEST_DIM}")


def _documents(starts: np.ndarray | None, device: torch.device):
    """Return the first position of each position's document and the first after it, (n,) int32, or two None."""
    if starts is None:
        return None, None
    ends = torch.from_numpy(starts).to(device)
    document = torch.searchsorted(ends, torch.arange(int(starts[-1]), device=device), right=True)
    return ends[document - 1].to(torch.int32), ends[document].to(torch.int32)
