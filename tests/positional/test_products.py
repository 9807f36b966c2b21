"""Matrix-free products against dense ones, in NumPy and on a torch device."""

from __future__ import annotations

import numpy as np
import pytest

from plsh_cli.positional import kernels, products
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import l_star, m_tilde
from plsh_cli.positional.samplers import SAMPLERS, draw
from plsh_cli.positional.streams import generator

KERNELS = [
    *(kernels.alibi(sigma) for sigma in (1e-6, 0.4, 3.0, 16.0, 400.0, 1e9)),
    kernels.log(1.0, 0.1),
    kernels.power(0.3, 0.5),
    kernels.table(0.3 + 0.7 * np.exp(-np.arange(257) / 3)),
]
# "cpu" is NumPy; any other name goes to torch, and "cpu:0" is torch's CPU.
DEVICES = ["cpu", "cpu:0"]


def vector(n: int) -> np.ndarray:
    return generator(0, "vector", n).standard_normal(n)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 2, 127, 257])
def test_kernel_products_equal_dense_ones(device: str, n: int) -> None:
    x = vector(n)
    for kernel in KERNELS:
        product = products.kernel_product(kernel, n, device)
        np.testing.assert_allclose(product(x), l_star(kernel, n) @ x, rtol=0, atol=1e-12, err_msg=kernel.label)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("n", [1, 2, 127, 257])
def test_partition_products_equal_dense_ones(device: str, sampler: str, n: int) -> None:
    x = vector(n)
    for kernel in KERNELS:
        parts = draw(kernel, n, 17, generator(1, kernel.label), sampler, "integer")
        matrix = m_tilde(parts)
        np.testing.assert_allclose(products.partition_product(parts, 0, device)(x), matrix @ x, rtol=0, atol=1e-12)
        difference = products.difference_product(parts, kernel, 0, device)(x)
        np.testing.assert_allclose(difference, (matrix - l_star(kernel, n)) @ x, rtol=0, atol=2e-12)


def test_products_leave_their_argument_alone_and_can_be_repeated() -> None:
    kernel: Kernel = kernels.alibi(5.0)
    product = products.difference_product(draw(kernel, 61, 7, generator(2)), kernel)
    x = vector(61)
    kept = x.copy()
    first = product(x)
    again = product(x)
    assert (x == kept).all()
    assert (first == again).all()
    assert first is not again


@pytest.mark.parametrize(("top", "bottom"), [(0, 257), (0, 100), (57, 58), (93, 211), (200, 257)])
def test_a_clipped_graph_is_the_submatrix(top: int, bottom: int) -> None:
    for kernel in (kernels.alibi(0.8), kernels.alibi(9.0), kernels.alibi(300.0)):
        parts = draw(kernel, 257, 11, generator(3))
        max_block = int(min(257, parts.widths.max() + 2))
        graph = products.block_graph(parts).clip(top, bottom, max_block)
        x = vector(bottom - top)
        wanted = m_tilde(parts)[top:bottom, top:bottom] @ x
        np.testing.assert_allclose(products.graph_product(graph)(x), wanted, rtol=0, atol=1e-12)


def test_a_device_without_float64_is_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        products.kernel_product(kernels.alibi(2.0), 5, "mps")
