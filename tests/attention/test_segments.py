"""Segments and stock kernels: each visible pair once, views where starts are equally spaced, products like kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_oracle import partition

from plsh_cli.attention.bias import Plsh
from plsh_cli.attention.inputs import Layout
from plsh_cli.attention.places import Places
from plsh_cli.attention.reference import dense_log_weights, visible
from plsh_cli.attention.segments import band_runs, block_runs, cut, draws, dyadic_runs, key_intervals
from plsh_cli.attention.stock import attend, attend_backward, attend_backward_by_products, attend_by_products

DOCUMENTS = np.array([0, 1, 17, 64, 65, 101])
LAYOUTS = [
    Layout(1, 1, True, 0, None, None),
    Layout(101, 101, True, 0, None, None),
    Layout(101, 101, False, 0, None, None),
    Layout(101, 101, True, 0, DOCUMENTS, None),
    Layout(101, 101, False, 0, DOCUMENTS, None),
    Layout(7, 103, True, 96, None, None),
    Layout(50, 20, True, -30, None, None),
    Layout(50, 20, True, 5, None, None),
    Layout(33, 90, False, 12, None, None),
]


def times_met(runs, layout: Layout) -> np.ndarray:
    """How often each query meets each key, (n, m)."""
    met = np.zeros((layout.n, layout.m), dtype=int)
    for run in runs:
        assert not run.causal or (run.q_len == run.k_len and run.ahead == 0)
        pairs = np.tril(np.ones((run.q_len, run.k_len), dtype=int)) if run.causal else 1
        for q0, k0 in zip(run.q_start, run.k_start, strict=True):
            assert q0 + layout.offset - k0 == run.ahead
            met[q0 : q0 + run.q_len, k0 : k0 + run.k_len] += pairs
    return met


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_blocks_meet_their_pairs_once(layout):
    for pitch in ("real", "integer"):
        parts = partition([6.0], layout.positions, 5, pitch=pitch)
        total = np.zeros((layout.n, layout.m))
        for draw in draws(parts):
            met = times_met(block_runs(*cut(draw.start, draw.end, layout.documents), layout), layout)
            assert met.max(initial=0) <= 1
            first, last = key_intervals(draw, layout)
            place = np.arange(layout.m)
            assert (met == ((place >= first[:, None]) & (place < last[:, None]))).all()
            total += draw.weight * met
        wanted = dense_log_weights(Plsh(parts), 1, layout)[0].exp() * visible(layout)
        np.testing.assert_allclose(total, wanted, atol=1e-12)


@pytest.mark.parametrize("width", [0.0, 1.0, 9.0, 40.0, np.inf])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_bands_meet_their_pairs_once(layout, width, monkeypatch):
    monkeypatch.setattr("plsh_cli.attention.segments.BAND_QUERIES", (4, 8))
    monkeypatch.setattr("plsh_cli.attention.segments.BAND_KEYS", 16)
    met = times_met(band_runs(width, layout), layout)
    distance = layout.offset + np.arange(layout.n)[:, None] - np.arange(layout.m)
    inside = visible(layout).numpy() & (np.abs(distance) <= width)
    assert met.max(initial=0) <= 1
    assert (met[inside] == 1).all()
    first, last = key_intervals(width, layout)
    assert (inside.sum(axis=1) == last - first).all()


@pytest.mark.parametrize("block", [1, 4, 256])
@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one.causal], ids=str)
def test_dyadic_runs_meet_causal_pairs_once_and_keys_end_at_the_anchor(layout, block):
    runs = dyadic_runs(block, layout)
    assert (times_met(runs, layout) == visible(layout).numpy()).all()
    for run in runs:
        assert run.anchor >= run.k_len
        # No key is much farther from the anchor than from the nearest of the queries.
        assert run.anchor - run.k_len <= max(block, run.ahead)


def test_equal_blocks_are_views():
    parts = partition([9.0], 997, 4, pitch="integer")
    layout = Layout(997, 997, True, 0, None, None)
    x = torch.randn(1, 997, 3)
    for draw in draws(parts):
        for run in block_runs(draw.start, draw.end, layout):
            piece = Places(run.q_start, run.q_len).read(x)
            assert piece.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_segments_of_one_shape_come_as_one_run():
    layout = Layout(8192, 8192, True, 0, None, None)
    assert len(band_runs(13.0, layout)) <= 4
    assert len(band_runs(np.inf, layout)) <= 8192 // 128 + 4
    assert len(dyadic_runs(64, layout)) == 8
    for draw in draws(partition([9.0], 8192, 4, pitch="integer")):
        assert len(block_runs(draw.start, draw.end, layout)) <= 3


@pytest.mark.parametrize("starts", [[3], [0, 4, 8], [1, 3, 5, 7], [0, 3, 11, 13]])
def test_places_read_write_and_add(starts):
    x = torch.randn(2, 19, 3, dtype=torch.float64)
    places = Places(np.array(starts), 5)
    pieces = places.read(x)
    assert torch.equal(pieces, torch.stack([x[:, s : s + 5] for s in starts]))
    total = torch.zeros_like(x)
    places.add(total, pieces)
    wanted = torch.zeros_like(x)
    for s in starts:
        wanted[:, s : s + 5] += x[:, s : s + 5]
    torch.testing.assert_close(total, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "causal and padding"])
def test_products_equal_the_kernels(kind, dtype, monkeypatch):
    monkeypatch.setattr("plsh_cli.attention.stock.CHUNK_SCORES", 40)
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(3, 2, 11, 5, generator=generator, dtype=dtype) for _ in range(4))
    mask = {
        "mask": torch.randn(11, 11, generator=generator, dtype=dtype),
        "causal and padding": torch.where(torch.rand(3, 2, 1, 11, generator=generator) < 0.5, 0.0, -1e30).to(dtype),
    }.get(kind)
    options = {"causal": kind.startswith("causal"), "mask": mask, "scale": 0.4}
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    out, lse = attend(q, k, v, **options)
    real = (lse > -1e29)[..., None]
    found, found_lse = attend_by_products(q, k, v, **options)
    torch.testing.assert_close(found * real, out * real, **tolerance)
    torch.testing.assert_close(found_lse, lse, **tolerance)
    # As in a merge with more keys: an lse above the kernel's own.
    lse = torch.where(real[..., 0], lse + 0.3, 0.0)
    kernels = attend_backward(grad, q, k, v, out, lse, **options)
    for one, other in zip(attend_backward_by_products(grad, q, k, v, out, lse, **options), kernels, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
