"""How far M~ is from L*, and what M~ costs: one record per number of draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsbmv

from plsh_cli.positional.bounds import max_width_quantile
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import FLUSH_ENTRIES, Band, band_width, l_star
from plsh_cli.positional.norms import (
    BASIS,
    CHUNK_ENTRIES,
    SpectralNorm,
    block_max_norm,
    dense_max_norm,
    dense_spectral_norm,
    spectral_norm,
)
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.products import Product, block_graph, graph_difference_product, kernel_product
from plsh_cli.positional.streams import generator
from plsh_cli.positional.tally import Tally, tally_blocks
from plsh_cli.positional.windows import window_limit, windowed_spectral_norm

METHODS = ("auto", "dense", "banded", "blocks")
DENSE_LIMIT = 256
# `auto` takes the band only below this many bytes.
BAND_LIMIT_BYTES = 2 << 30


@dataclass(frozen=True)
class Measurement:
    """One head's M~ against L*, for the first `num_samples` draws.

    spectral_error: ||M~ - L*||_2; some eigenvalue lies within spectral_residual of it. max_error: max |M~ - L*|, exact.
    method: "dense", "banded" or "blocks", what computed the norms; products: matrix-vector products used (0 if dense).
    num_blocks: blocks of all draws. max_width: widest drawn width in tokens, max_block: most tokens in a block.
    pairs_per_token_draws_*: pairs that s block attentions score, per token; pairs_per_token_union_*: distinct ones.
    Causal pairs are those with key <= query, including the token itself.
    """

    num_samples: int
    spectral_error: float
    spectral_residual: float
    max_error: float
    method: str
    products: int
    num_blocks: int
    max_width: float
    max_block: int
    pairs_per_token_draws_causal: float
    pairs_per_token_draws_bidirectional: float
    pairs_per_token_union_causal: float
    pairs_per_token_union_bidirectional: float


def measure(
    parts: PartitionSet,
    kernel: Kernel,
    sizes: Sequence[int],
    *,
    head: int = 0,
    method: str = "auto",
    tol: float = 1e-4,
    seed: int = 0,
    device: str = "cpu",
) -> list[Measurement]:
    """Return one Measurement per size: M~ of the first `size` draws of a head, weighted 1/size, against L*.

    Sizes below the number of draws need i.i.d. draws. method: "dense" (n x n matrices; "auto" up to n = 256), "banded"
    (the diagonals of M~ up to its longest block: many draws), "blocks" (no matrix: long sequences) or "auto", the
    cheapest by an estimate. tol: residual over value at which the iterative spectral norm stops. seed: its start
    vectors. device: where the products of "blocks" run, "cpu" or a torch device, for which "auto" never takes the band.
    ValueError for bad arguments.
    """
    if method not in METHODS:
        raise ValueError(f"method = {method!r}: must be one of {', '.join(METHODS)}")
    if not sizes or min(sizes) < 1 or max(sizes) > parts.num_draws:
        raise ValueError(f"sizes = {list(sizes)}: must be numbers of draws between 1 and {parts.num_draws}")
    kernel.check(parts.capacity)
    single = parts.head(head)
    band: Band | None = None
    found: dict[int, Measurement] = {}
    for size in sorted(set(sizes)):
        subset = single if size == parts.num_draws else single.take(size)
        chosen = _choose(subset, method, device)
        start = generator(seed, "lanczos", size)
        if chosen == "blocks":
            spectral = _blocks_spectral_norm(subset, kernel, tol, start, device)
            found[size] = _record(subset, spectral, block_max_norm(subset, kernel)[0], tally_blocks(subset), chosen)
            continue
        # Nested sizes share one band: each adds its new draws.
        band = (band or Band(single)).add(size)
        spectral, max_error = _band_norms(band, kernel, chosen, tol, start)
        found[size] = _record(subset, spectral, max_error, band.tally, chosen)
    return [found[size] for size in sizes]


def estimate_bytes(kernel: Kernel, n: int, num_samples: int, method: str = "auto", pitch: str = "real") -> int:
    """Return about how many bytes `measure` will hold at its peak, from the law of the widths (before anything is
    drawn).

    "auto" is the method that `measure` would take. The widest of the draws enters by its 99 % point.
    """
    width = min(float(n), max_width_quantile(kernel, num_samples, 0.99, pitch) + 2.0)
    blocks = num_samples * (1.0 + (n - 1.0) * float(kernel.drop(0))) if n > 1 else float(num_samples)
    if method == "auto":
        method = _cheapest(n, num_samples, blocks, width)
    return int(_bytes(method, n, num_samples, blocks, width))


def _choose(parts: PartitionSet, method: str, device: str) -> str:
    if method != "auto":
        return method
    n, widths = parts.capacity, parts.widths[0]
    if device != "cpu" and n > DENSE_LIMIT:
        return "blocks"
    blocks = float((1.0 + (n - 1.0) / widths[widths >= 1.0]).sum())
    return _cheapest(n, parts.num_draws, blocks, float(band_width(parts)))


def _cheapest(n: int, num_samples: int, blocks: float, width: float) -> str:
    """Return the method of least estimated time, in seconds of one core as measured in 2026 for about 60 products."""
    if n <= DENSE_LIMIT:
        return "dense"
    by_blocks = blocks * 1.3e-7 + 60.0 * (blocks * 4e-9 + n * 6e-8) + n * num_samples * 8e-9
    by_band = blocks * 8e-9 + n * width * 4e-8 + n * 1.5e-6 + 60.0 * n * (width * 5e-10 + 4e-8)
    fits = _bytes("banded", n, num_samples, blocks, width) <= BAND_LIMIT_BYTES
    return "banded" if by_band < by_blocks and fits else "blocks"


def _bytes(method: str, n: int, num_samples: int, blocks: float, width: float) -> float:
    """Estimated peak in bytes; the factors count what is alive together per position, block, band and matrix entry."""
    lanczos = 8.0 * (12.0 * n + (BASIS + 2.0) * min(float(n), window_limit(int(width))))
    if method == "blocks":
        return lanczos + 60.0 * blocks + 48.0 * min(n * num_samples, CHUNK_ENTRIES)
    band = lanczos + 8.0 * (3.5 * n * width + 4.0 * min(blocks, FLUSH_ENTRIES))
    return band if method == "banded" else band + 8.0 * 2.5 * float(n) ** 2


def _blocks_spectral_norm(
    parts: PartitionSet, kernel: Kernel, tol: float, start: np.random.Generator, device: str
) -> SpectralNorm:
    graph, n, max_block = block_graph(parts), parts.capacity, band_width(parts)
    if device != "cpu":
        return spectral_norm(graph_difference_product(graph, kernel, device), n, tol=tol, generator=start)

    def restricted(top: int, bottom: int) -> Product:
        return graph_difference_product(graph.clip(top, bottom, max_block), kernel)

    return windowed_spectral_norm(restricted, n, max_block, tol=tol, generator=start)


def _band_norms(
    band: Band, kernel: Kernel, method: str, tol: float, start: np.random.Generator
) -> tuple[SpectralNorm, float]:
    n = band.n
    if method == "dense":
        difference = band.dense()
        difference -= l_star(kernel, n)
        value = dense_spectral_norm(difference)
        # What a backward stable eigenvalue solver promises.
        return SpectralNorm(value, n * float(np.finfo(np.float64).eps) * value, 0), dense_max_norm(difference)
    diagonals = band.values()

    def restricted(top: int, bottom: int) -> Product:
        rows, kernel_times = diagonals[top:bottom].T, kernel_product(kernel, bottom - top)
        return lambda x: dsbmv(band.width - 1, 1.0, rows, x, lower=1) - kernel_times(x)

    spectral = windowed_spectral_norm(restricted, n, band.tally.max_block, tol=tol, generator=start)
    return spectral, band.max_error(kernel)


def _record(parts: PartitionSet, spectral: SpectralNorm, max_error: float, tally: Tally, method: str) -> Measurement:
    n = parts.capacity
    return Measurement(
        num_samples=parts.num_draws,
        spectral_error=spectral.value,
        spectral_residual=spectral.residual,
        max_error=max_error,
        method=method,
        products=spectral.products,
        num_blocks=tally.num_blocks,
        max_width=float(parts.widths.max()),
        max_block=tally.max_block,
        pairs_per_token_draws_causal=tally.pairs_causal / n,
        pairs_per_token_draws_bidirectional=tally.pairs_bidirectional / n,
        pairs_per_token_union_causal=tally.union_pairs_causal() / n,
        pairs_per_token_union_bidirectional=tally.union_pairs_bidirectional() / n,
    )
