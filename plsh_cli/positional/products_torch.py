"""The products of `products` on a torch device, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.fft import next_fast_len

from plsh_cli.positional.kernels import Kernel

if TYPE_CHECKING:
    import torch

    from plsh_cli.positional.products import BlockGraph, Product


def kernel_product(kernel: Kernel, n: int, device: str) -> Product:
    """Return the function x -> L* x by a circulant of twice the size; O(n log n) for every kernel."""
    import torch

    where = _float64_device(device)
    size = next_fast_len(2 * n - 1, real=True)
    column = np.zeros(size)
    column[:n] = kernel.phi(np.arange(n))
    column[size - n + 1 :] = column[n - 1 : 0 : -1]
    spectrum = torch.fft.rfft(torch.from_numpy(column).to(where)).real

    def product(x: np.ndarray) -> np.ndarray:
        signal = torch.fft.rfft(torch.as_tensor(x, dtype=torch.float64, device=where), n=size)
        return torch.fft.irfft(spectrum * signal, n=size)[:n].cpu().numpy()

    return product


def graph_product(graph: BlockGraph, device: str) -> Product:
    """Return the function x -> M~ x for a block graph.

    Both sparse products become one gather and one prefix sum over the rows' entries, which is deterministic on every
    device (scattered atomic additions would not be).
    """
    import torch

    where = _float64_device(device)
    both = (graph.joined + graph.joined.T).tocsr()
    rows = np.repeat(np.arange(graph.n + 1), np.diff(both.indptr))
    ends, starts = (torch.from_numpy(x.astype(np.int64)).to(where) for x in (both.indices, rows))
    masses = torch.from_numpy(both.data).to(where)
    row_ends = torch.from_numpy(both.indptr[1:-1].astype(np.int64)).to(where)

    def product(x: np.ndarray) -> np.ndarray:
        vector = torch.as_tensor(x, dtype=torch.float64, device=where)
        prefix = torch.nn.functional.pad(torch.cumsum(vector, 0), (1, 0))
        steps = torch.cumsum(masses * (prefix[ends] - prefix[starts]), 0)
        out = torch.nn.functional.pad(steps, (1, 0))[row_ends] + graph.single_weight * vector
        return out.cpu().numpy()

    return product


def _float64_device(device: str) -> torch.device:
    """Return the device; ValueError where it has no float64."""
    import torch

    if torch.device(device).type == "mps":
        raise ValueError(f"device = {device!r}: norms need float64, which mps lacks; use cpu")
    return torch.device(device)
