"""The C interface of the CPU kernels, as ctypes: mirrors csrc/call.h and csrc/interface.cpp."""

from __future__ import annotations

import ctypes
import functools
import weakref

import numpy as np
import torch

from plsh_cli.attention.build import library

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class Array(ctypes.Structure):
    """A (batch, heads, positions, dim) tensor with unit last stride."""

    _fields_ = [("data", _POINTER), ("batch", _INT), ("head", _INT), ("position", _INT)]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Array:
        """Return a view of the tensor's memory, which the caller keeps alive; ValueError where it has none."""
        pointer = tensor.data_ptr()
        if pointer == 0 and tensor.numel() > 0:
            raise ValueError(f"q, k, v: {type(tensor).__name__} without memory, must be tensors that hold numbers")
        return cls(pointer, *tensor.stride()[:3])


class Call(ctypes.Structure):
    """plsh::Call."""

    _fields_ = [
        *(
            (name, _INT)
            for name in ("batch", "heads", "key_heads", "queries", "keys", "dim", "query_offset", "documents")
        ),
        *((name, _POINTER) for name in ("document_starts", "keep", "partitions", "slopes", "widths")),
        *((name, Array) for name in ("q", "k", "v", "out", "d_out")),
        ("lse", _POINTER),
        ("d_lse", _POINTER),
        *((name, Array) for name in ("d_q", "d_k", "d_v")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("causal", "type", "threads")),
    ]


@functools.cache
def kernels() -> ctypes.CDLL:
    """Return the library with its functions declared."""
    lib = library()
    lib.plsh_call_bytes.restype = lib.plsh_partitions_bytes.restype = _INT
    for name in ("plsh_partitions", "plsh_forward", "plsh_backward"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.plsh_partitions.argtypes = [_POINTER] * 3 + [_INT] * 3 + [ctypes.c_int, _POINTER]
    lib.plsh_partitions_bytes.argtypes = lib.plsh_partitions_free.argtypes = [_POINTER]
    lib.plsh_partitions_free.restype = None
    lib.plsh_forward.argtypes = lib.plsh_backward.argtypes = [_POINTER]
    if lib.plsh_call_bytes() != ctypes.sizeof(Call):
        raise RuntimeError("csrc/call.h and native.py disagree about the layout of a call")
    return lib


def run(name: str, call: Call) -> None:
    """Run "forward" or "backward"; RuntimeError with the kernel's message, MemoryError where it ran out of memory."""
    _check(getattr(kernels(), f"plsh_{name}")(ctypes.byref(call)))


class BlockTable:
    """The blocks of all draws of all heads in native memory; freed with the object."""

    def __init__(self, widths: np.ndarray, shifts: np.ndarray, weights: np.ndarray, capacity: int, num_threads: int):
        arrays = [np.ascontiguousarray(x, dtype=np.float64) for x in (widths, shifts, weights)]
        self._arguments = (*arrays, capacity, num_threads)
        heads, draws = arrays[0].shape
        built = ctypes.c_void_p()
        pointers = (x.ctypes.data for x in arrays)
        _check(kernels().plsh_partitions(*pointers, heads, draws, capacity, num_threads, ctypes.byref(built)))
        self.pointer = built.value
        weakref.finalize(self, kernels().plsh_partitions_free, built.value)

    def __reduce__(self) -> tuple[type[BlockTable], tuple]:
        return BlockTable, self._arguments

    @property
    def num_bytes(self) -> int:
        """Return the size of the table."""
        return kernels().plsh_partitions_bytes(self.pointer)


def _check(message: bytes | None) -> None:
    if message is not None:
        text = message.decode()
        raise MemoryError(text) if "bad_alloc" in text else RuntimeError(f"CPU attention kernel: {text}")
