"""L*, and M~ by difference arrays against comparison of bins."""

from __future__ import annotations

import numpy as np
import pytest

from plsh_cli.positional import kernels
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import Band, l_star, m_tilde, m_tilde_by_comparison, m_tilde_by_slices
from plsh_cli.positional.partitions import stack
from plsh_cli.positional.samplers import SAMPLERS, draw
from plsh_cli.positional.streams import generator
from plsh_cli.positional.tally import tally_blocks

KERNELS = [
    *(kernels.alibi(sigma) for sigma in (1e-6, 0.4, 3.0, 16.0, 400.0, 1e9)),
    kernels.log(1.0, 0.1),
    kernels.power(0.3, 0.5),
]


def test_l_star_is_symmetric_in_distance() -> None:
    matrix = l_star(kernels.alibi(16.0), 7)
    assert matrix[0, 5] == matrix[5, 0] == np.exp(-5 / 16)
    assert (np.diag(matrix) == 1.0).all()
    assert (np.diff(matrix[0]) < 0).all()
    with pytest.raises(ValueError, match="has 3 values"):
        l_star(kernels.table([1.0, 0.5, 0.25]), 5)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)
@pytest.mark.parametrize("n", [1, 2, 127, 257])
def test_m_tilde_equals_the_comparison_of_bins(kernel: Kernel, n: int) -> None:
    for sampler in SAMPLERS:
        for pitch in ("real", "integer"):
            parts = draw(kernel, n, 29, generator(1, kernel.label, n), sampler, pitch)
            wanted = m_tilde_by_comparison(parts)
            np.testing.assert_allclose(m_tilde(parts), wanted, rtol=0, atol=1e-13)
            np.testing.assert_allclose(m_tilde_by_slices(parts), wanted, rtol=0, atol=1e-13)


def test_counts_of_equal_weights_are_exact() -> None:
    parts = draw(kernels.alibi(5.0), 131, 64, generator(2))
    assert (m_tilde(parts) == m_tilde_by_comparison(parts)).all()  # multiples of 1/64 in both


def test_long_sequences_need_several_tiles() -> None:
    parts = draw(kernels.alibi(120.0), 1213, 7, generator(3))
    np.testing.assert_allclose(m_tilde(parts), m_tilde_by_comparison(parts), rtol=0, atol=1e-14)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_m_tilde_is_a_mean_of_block_masks(sampler: str) -> None:
    """Symmetric, ones on the diagonal, positive semidefinite."""
    for kernel in KERNELS:
        matrix = m_tilde(draw(kernel, 127, 11, generator(4, kernel.label), sampler))
        assert (matrix == matrix.T).all()
        np.testing.assert_allclose(np.diag(matrix), 1.0, rtol=0, atol=1e-14)
        assert np.linalg.eigvalsh(matrix)[0] > -1e-12
        assert matrix.min() >= 0.0


def test_limits_of_sigma() -> None:
    assert (m_tilde(draw(kernels.alibi(1e-6), 127, 5, generator(5))) == np.eye(127)).all()
    assert (m_tilde(draw(kernels.alibi(1e9), 127, 5, generator(5))) == 1.0).all()


def test_heads_are_apart() -> None:
    parts = stack([draw(kernels.alibi(sigma), 61, 9, generator(6)) for sigma in (1.0, 4.0, 90.0)])
    for head in range(3):
        assert (m_tilde(parts, head) == m_tilde(parts.head(head))).all()
        np.testing.assert_allclose(m_tilde(parts, head), m_tilde_by_comparison(parts, head), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)
@pytest.mark.parametrize("n", [1, 2, 127])
def test_a_band_grows_by_nested_draws(kernel: Kernel, n: int) -> None:
    parts = draw(kernel, n, 61, generator(7, kernel.label))
    band = Band(parts)
    for size in (1, 7, 8, 61):
        dense = m_tilde_by_comparison(parts.take(size))
        np.testing.assert_allclose(band.add(size).dense(), dense, rtol=0, atol=1e-14)
        assert band.max_error(kernel) == pytest.approx(np.abs(dense - l_star(kernel, n)).max(), abs=1e-14)
        assert not np.triu(dense, band.width).any()
    with pytest.raises(ValueError, match="between 61 and 61"):
        band.add(60)


def test_many_blocks_are_counted_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plsh_cli.positional.matrices.FLUSH_ENTRIES", 50)
    for sampler in ("iid", "importance"):
        parts = draw(kernels.alibi(0.9), 127, 400, generator(8), sampler)
        np.testing.assert_allclose(m_tilde(parts), m_tilde_by_comparison(parts), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pairs_are_those_of_the_dense_masks(kernel: Kernel, sampler: str) -> None:
    n = 127
    for pitch in ("real", "integer"):
        parts = draw(kernel, n, 13, generator(9, kernel.label), sampler, pitch)
        starts = parts.block_starts_per_token()
        same = starts[:, :, None] == starts[:, None, :]
        lower = np.tril(np.ones((n, n), bool))
        for tally in (tally_blocks(parts), Band(parts).add(13).tally):
            assert tally.num_blocks == sum(np.unique(row).size for row in starts)
            assert tally.max_block == max(np.bincount(row).max() for row in starts)
            assert tally.pairs_bidirectional == same.sum()
            assert tally.pairs_causal == (same & lower).sum()
            assert tally.union_pairs_bidirectional() == same.any(axis=0).sum()
            assert tally.union_pairs_causal() == (same.any(axis=0) & lower).sum()
