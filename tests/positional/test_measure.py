"""Measurements: every method gives the same numbers, and the memory estimate can be believed."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest

from plsh_cli.positional import kernels
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import l_star, m_tilde
from plsh_cli.positional.measure import Measurement, estimate_bytes, measure
from plsh_cli.positional.samplers import SAMPLERS, draw
from plsh_cli.positional.streams import generator

KERNELS = [*(kernels.alibi(sigma) for sigma in (1e-6, 0.7, 5.0, 60.0, 1e9)), kernels.log(1.0, 0.1)]
HOW = ("method", "products", "spectral_error", "spectral_residual")


def same(first: Measurement, second: Measurement, n: int) -> None:
    for field in dataclasses.fields(Measurement):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name not in HOW:
            assert a == pytest.approx(b, abs=1e-12), field.name
    apart = abs(first.spectral_error - second.spectral_error)
    assert apart <= first.spectral_residual + second.spectral_residual + 1e-12 * n


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)
@pytest.mark.parametrize("n", [1, 2, 127, 307])
def test_all_methods_agree(kernel: Kernel, n: int) -> None:
    sizes = [3, 10, 41]
    parts = draw(kernel, n, 41, generator(1, kernel.label))
    dense = measure(parts, kernel, sizes, method="dense")
    for method in ("banded", "blocks", "auto"):
        found = measure(parts, kernel, sizes, method=method)
        assert [one.num_samples for one in found] == sizes
        for one, reference in zip(found, dense, strict=True):
            same(one, reference, n)
    for one, size in zip(dense, sizes, strict=True):
        difference = m_tilde(parts.take(size)) - l_star(kernel, n)
        assert one.max_error == pytest.approx(np.abs(difference).max(), abs=1e-14)
        assert one.max_width == parts.widths[0, :size].max()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_weighted_sets_are_measured_whole(sampler: str) -> None:
    kernel = kernels.alibi(5.0)
    parts = draw(kernel, 307, 23, generator(2), sampler, "integer")
    (dense,), (banded,), (blocks,) = (measure(parts, kernel, [23], method=m) for m in ("dense", "banded", "blocks"))
    same(banded, dense, 307)
    same(blocks, dense, 307)
    if sampler != "iid":
        with pytest.raises(ValueError, match=r"only i\.i\.d\. draws"):
            measure(parts, kernel, [5, 23])


def test_sizes_keep_the_order_given_and_do_not_influence_each_other() -> None:
    kernel = kernels.alibi(5.0)
    parts = draw(kernel, 307, 30, generator(3))
    both = measure(parts, kernel, [30, 7])
    assert both == [measure(parts, kernel, [30])[0], measure(parts, kernel, [7])[0]]


def test_auto_is_dense_where_small_and_says_what_it_used() -> None:
    kernel = kernels.alibi(5.0)
    methods = {
        (n, s): measure(draw(kernel, n, s, generator(4)), kernel, [s])[0].method
        for n, s in ((256, 5), (257, 5), (2048, 10), (2048, 3000))
    }
    assert methods == {(256, 5): "dense", (257, 5): "blocks", (2048, 10): "blocks", (2048, 3000): "banded"}
    on_torch = measure(draw(kernel, 307, 11, generator(5)), kernel, [11], device="cpu:0")[0]
    same(on_torch, measure(draw(kernel, 307, 11, generator(5)), kernel, [11], method="dense")[0], 307)
    assert on_torch.method == "blocks"


def test_costs_are_those_of_the_paper() -> None:
    """Causal pairs of s draws per token are near s sigma; their union near sigma times the harmonic number."""
    kernel, s = kernels.alibi(16.0), 20
    parts = draw(kernel, 20_011, s, generator(6))
    (found,) = measure(parts, kernel, [s])
    widths = parts.widths[0]
    assert found.pairs_per_token_draws_causal == pytest.approx((widths + 1).sum() / 2, rel=0.02)
    assert found.pairs_per_token_draws_bidirectional == pytest.approx(widths.sum(), rel=0.02)
    harmonic = 16.0 * (1 / np.arange(1, s + 1)).sum()
    assert found.pairs_per_token_union_causal == pytest.approx(harmonic, rel=0.3)
    assert found.pairs_per_token_union_bidirectional == pytest.approx(
        2 * found.pairs_per_token_union_causal - 1, rel=1e-9
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": [0]}, "sizes = "),
        ({"sizes": []}, "sizes = "),
        ({"sizes": [12]}, "between 1 and 11"),
        ({"method": "svd"}, "auto, dense, banded, blocks"),
        ({"head": 1}, "head = 1"),
        ({"kernel": kernels.table([1.0, 0.5])}, "has 2 values"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], message: str) -> None:
    kernel = kernels.alibi(3.0)
    chosen = {"kernel": kernel, "sizes": [11], "method": "auto", "head": 0} | change
    parts = draw(kernel, 31, 11, generator(7))
    with pytest.raises(ValueError, match=message):
        measure(parts, chosen["kernel"], chosen["sizes"], method=chosen["method"], head=chosen["head"])


@pytest.mark.parametrize(
    ("n", "sigma", "s", "method", "sampler"),
    [
        (600, 16.0, 20, "dense", "iid"),
        (20_011, 30.0, 300, "banded", "iid"),
        (1500, 300.0, 5000, "banded", "importance"),
        (60_013, 2.0, 20, "blocks", "iid"),
        (40_009, 16.0, 50, "blocks", "importance"),
        (30_011, 5.0, 200, "auto", "iid"),
    ],
)
def test_the_memory_estimate_is_realistic(n: int, sigma: float, s: int, method: str, sampler: str) -> None:
    kernel = kernels.alibi(sigma)
    parts = draw(kernel, n, s, generator(8), sampler)
    tracemalloc.start()
    measure(parts, kernel, [s], method=method)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / 1.3 <= estimate_bytes(kernel, n, s, method) <= 5 * peak


def test_the_estimate_needs_no_draw() -> None:
    assert estimate_bytes(kernels.alibi(16.0), 10**9, 20, "dense") > 10**19
    assert estimate_bytes(kernels.alibi(16.0), 2**20, 20, "blocks") < 2**30
    assert estimate_bytes(kernels.log(1 / 256, 1.0), 4096, 20) > 0
    assert estimate_bytes(kernels.table(np.exp(-np.arange(64) / 9)), 64, 20, pitch="integer") > 0
    assert estimate_bytes(kernels.alibi(16.0), 1, 1) > 0
