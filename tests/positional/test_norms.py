"""Norms: dense, matrix-free with a certificate, and exact from block boundaries."""

from __future__ import annotations

import numpy as np
import pytest

from plsh_cli.positional import kernels, norms
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import Band, l_star, m_tilde
from plsh_cli.positional.products import block_graph, difference_product, graph_difference_product
from plsh_cli.positional.samplers import SAMPLERS, draw
from plsh_cli.positional.streams import generator
from plsh_cli.positional.windows import window_limit, windowed_spectral_norm

SIGMAS = (1e-6, 0.05, 0.7, 2.0, 16.0, 256.0, 1e9)
OTHERS = [kernels.log(1.0, 0.1), kernels.log(3.0, 1.0), kernels.log(1 / 256, 1.0), kernels.power(0.3, 0.5)]


@pytest.mark.parametrize(
    ("matrix", "spectral", "largest"),
    [
        (np.zeros((5, 5)), 0.0, 0.0),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), 1.0, 1.0),
        (np.array([[0.0, -3.0], [0.0, 0.0]]), 3.0, 3.0),
        (np.outer([1.0, -2.0, 2.0], [1.0, -2.0, 2.0]), 9.0, 4.0),
        (-np.eye(3), 1.0, 1.0),
        (np.array([[-7.0]]), 7.0, 7.0),
    ],
)
def test_norms_of_known_matrices(matrix: np.ndarray, spectral: float, largest: float) -> None:
    assert norms.dense_spectral_norm(matrix) == pytest.approx(spectral, abs=1e-14)
    assert norms.dense_max_norm(matrix) == largest
    if (matrix == matrix.T).all():
        found = norms.spectral_norm(lambda x: matrix @ x, len(matrix), generator=generator(0))
        assert found.value == pytest.approx(spectral, abs=1e-12)
        assert found.residual <= 1e-12


def test_a_rank_one_matrix_of_2048() -> None:
    u = generator(1).standard_normal(2048)
    matrix = np.outer(u, u)
    assert norms.dense_spectral_norm(matrix) == pytest.approx(u @ u, rel=1e-12)
    found = norms.spectral_norm(lambda x: u * (u @ x), 2048, generator=generator(2))
    assert found.value == pytest.approx(u @ u, rel=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_entry_that_is_not_finite_is_named(bad: float) -> None:
    matrix = np.zeros((7, 7))
    matrix[3, 5] = matrix[5, 1] = bad
    for norm in (norms.dense_spectral_norm, norms.dense_max_norm):
        with pytest.raises(ValueError, match=r"matrix\[3, 5\] = .*finite"):
            norm(matrix)
    with pytest.raises(ValueError, match="not finite"):
        norms.spectral_norm(lambda x: matrix @ np.ones(7), 7, generator=generator(0))


@pytest.mark.parametrize("matrix", [np.zeros((2, 3)), np.zeros((0, 0)), np.zeros(4), np.zeros((2, 2), complex)])
def test_what_is_no_real_square_matrix_is_refused(matrix: np.ndarray) -> None:
    with pytest.raises(ValueError, match="real, square"):
        norms.dense_spectral_norm(matrix)


@pytest.mark.parametrize("n", [1, 2, 3, 127, 512])
def test_the_norm_of_alibi_is_exact(n: int) -> None:
    for sigma in SIGMAS:
        kernel = kernels.alibi(sigma)
        exact = np.linalg.eigvalsh(l_star(kernel, n))[-1]
        assert norms.kernel_norm(kernel, n) == pytest.approx(exact, rel=1e-10), sigma


@pytest.mark.parametrize("n", [1, 2, 31])
@pytest.mark.parametrize("sigma", [1e13, 1e15, 1e17, 1e18, 1e52, 1e60, 1e300, 1.7e308, 1e-300])
def test_the_norm_of_alibi_of_any_finite_sigma(sigma: float, n: int) -> None:
    kernel = kernels.alibi(sigma)
    assert norms.kernel_norm(kernel, n) == pytest.approx(norms.dense_spectral_norm(l_star(kernel, n)), rel=1e-12)


def test_the_norm_of_alibi_tends_to_its_symbol_from_below() -> None:
    limit = 1 / np.tanh(1 / 32)
    values = [norms.kernel_norm(kernels.alibi(16.0), n) for n in (2**8, 2**12, 2**20, 2**30)]
    assert (np.diff(values) > 0).all()
    assert values[-1] < limit * (1 + 1e-15)
    assert values[-1] == pytest.approx(limit, rel=1e-12)


@pytest.mark.parametrize("kernel", OTHERS, ids=lambda kernel: kernel.label)
def test_the_norm_of_other_kernels(kernel: Kernel) -> None:
    for n in (1, 2, 127, 512):
        exact = norms.dense_spectral_norm(l_star(kernel, n))
        assert norms.kernel_norm(kernel, n) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_iterative_and_dense_norms_agree_to_the_certificate(sampler: str) -> None:
    for kernel in [*(kernels.alibi(sigma) for sigma in SIGMAS), *OTHERS]:
        for n in (1, 2, 3, 127, 257):
            parts = draw(kernel, n, 19, generator(3, kernel.label, n), sampler)
            exact = norms.dense_spectral_norm(m_tilde(parts) - l_star(kernel, n))
            product = difference_product(parts, kernel)
            found = norms.spectral_norm(product, n, generator=generator(4))
            assert abs(found.value - exact) <= found.residual + 1e-12 * n, (kernel.label, n)
            assert found.residual <= 1e-4 * exact + 1e-12 * n, (kernel.label, n)


def test_an_indefinite_difference_with_close_extremes_of_both_signs() -> None:
    """Plain power iteration is far too small here."""
    kernel, n = kernels.alibi(16.0), 512
    both_signs = 0
    for seed in range(6):
        parts = draw(kernel, n, 20, generator(seed))
        values = np.linalg.eigvalsh(m_tilde(parts) - l_star(kernel, n))
        found = norms.spectral_norm(difference_product(parts, kernel), n, generator=generator(seed, "start"))
        assert found.value == pytest.approx(max(-values[0], values[-1]), rel=1e-6)
        both_signs += min(-values[0], values[-1]) > 0.3 * found.value
    assert both_signs >= 3


@pytest.mark.parametrize(("sigma", "seed"), [(4.0, 160), (16.0, 94)])
def test_a_start_that_hides_the_extreme_eigenvector_is_caught(sigma: float, seed: int) -> None:
    """The streams of `plsh approx --n 300`: one start alone converged to an eigenvalue up to 0.9 % too small."""
    kernel, n = kernels.alibi(sigma), 300
    drawn = draw(kernel, n, 20, generator(seed, "partitions", kernel.label, "real"))
    for s in (7, 20):
        parts = drawn.take(s) if s < 20 else drawn
        exact = norms.dense_spectral_norm(m_tilde(parts) - l_star(kernel, n))
        found = norms.spectral_norm(difference_product(parts, kernel), n, generator=generator(seed, "lanczos", s))
        assert found.value == pytest.approx(exact, rel=1e-4)


def test_a_second_start_finds_what_the_first_cannot_see() -> None:
    """The first start is an eigenvector of a small eigenvalue; the second is random."""

    class Blind:
        calls = 0

        def standard_normal(self, n: int) -> np.ndarray:
            self.calls += 1
            return np.eye(n)[7] if self.calls == 1 else generator(10).standard_normal(n)

    spectrum = np.linspace(-1.0, 1.0, 50)
    spectrum[0] = -3.0
    found = norms.spectral_norm(lambda x: spectrum * x, 50, generator=Blind())
    assert found.value == pytest.approx(3.0, rel=1e-6)
    assert found.residual <= 1e-3


def test_misses_are_rare() -> None:
    """A sample over n, sigma, s, samplers and pitches: none is off by more than 1e-4."""
    rng = generator(11, "misses")
    for i in range(200):
        n, s, sigma = int(rng.integers(260, 401)), int(rng.integers(1, 41)), float(np.exp(rng.uniform(-0.7, 3.7)))
        kernel = kernels.alibi(sigma)
        parts = draw(kernel, n, s, generator(i, "misses"), list(SAMPLERS)[i % 3], ("real", "integer")[i % 2])
        exact = norms.dense_spectral_norm(m_tilde(parts) - l_star(kernel, n))
        found = norms.spectral_norm(difference_product(parts, kernel), n, generator=generator(i, "lanczos"))
        assert found.value == pytest.approx(exact, rel=1e-4), (i, kernel.label, n, s)


def test_the_residual_is_honest_without_convergence() -> None:
    """Equally spaced eigenvalues, too few products: some eigenvalue still lies within the residual."""
    spectrum = np.linspace(-1.0, 1.0, 400)
    found = norms.extreme_eigenpair(lambda x: spectrum * x, generator(5).standard_normal(400), 1e-9, 30)
    assert found.products == 31
    assert found.residual > 1e-9
    assert np.abs(np.abs(spectrum) - found.value).min() <= found.residual
    quotient = found.vector @ (spectrum * found.vector)
    assert np.linalg.norm(spectrum * found.vector - quotient * found.vector) == pytest.approx(found.residual, rel=1e-6)


def test_the_same_seed_gives_the_same_norm() -> None:
    kernel = kernels.alibi(9.0)
    product = difference_product(draw(kernel, 257, 13, generator(6)), kernel)
    first, second = (norms.spectral_norm(product, 257, generator=generator(7)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("pitch", ["real", "integer"])
def test_the_max_norm_from_boundaries_is_exact(sampler: str, pitch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "CHUNK_ENTRIES", 300)
    for kernel in [*(kernels.alibi(sigma) for sigma in SIGMAS), *OTHERS]:
        for n, s in ((1, 5), (2, 1), (3, 7), (127, 1), (127, 2), (127, 31), (257, 7)):
            parts = draw(kernel, n, s, generator(8, kernel.label, n, s), sampler, pitch)
            exact = np.abs(m_tilde(parts) - l_star(kernel, n)).max()
            assert norms.block_max_norm(parts, kernel)[0] == pytest.approx(exact, abs=1e-12), (kernel.label, n, s)


def test_the_max_norm_of_nested_sizes() -> None:
    kernel, n = kernels.alibi(3.0), 131
    parts = draw(kernel, n, 40, generator(9))
    found = norms.block_max_norm(parts, kernel, 0, [1, 10, 40])
    exact = [np.abs(m_tilde(parts.take(size)) - l_star(kernel, n)).max() for size in (1, 10, 40)]
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sigma", [1.5, 6.0])
def test_windows_find_the_norm_of_a_long_sequence(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plsh_cli.positional.windows.MIN_WINDOW", 512)
    monkeypatch.setattr("plsh_cli.positional.windows.WINDOW_BLOCKS", 16)
    kernel, n = kernels.alibi(sigma), 12_007
    for seed in range(2):
        parts = draw(kernel, n, 30, generator(seed, "windows"))
        graph, max_block = block_graph(parts), Band(parts).width
        assert n > window_limit(max_block)

        def restricted(top: int, bottom: int) -> object:
            return graph_difference_product(graph.clip(top, bottom, max_block), kernel)  # noqa: B023

        found = windowed_spectral_norm(restricted, n, max_block, tol=1e-4, generator=generator(1))
        whole = norms.spectral_norm(restricted(0, n), n, generator=generator(2))
        # An eigenvalue of the whole matrix can't exceed its norm; the search may miss it by little.
        assert whole.value * (1 - 2e-3) <= found.value <= whole.value + whole.residual
        assert found.residual <= 5e-3 * found.value
