"""The Triton operator at the edges: causality, numbers that are not finite, empty rows, odd layouts, bad arguments."""

from __future__ import annotations

import pytest
import torch
from triton_cases import (
    DEVICE,
    INF,
    MARKS,
    NAN,
    assert_close,
    draw,
    operate,
    oracle,
    structure_and_weights,
    tensors,
)

from plsh_cli.attention import triton_attention as operator
from plsh_cli.attention import triton_kernels
from plsh_cli.attention.fused import Band
from plsh_cli.attention.triton_attention import triton_attention
from plsh_cli.attention.triton_draws import Draws

pytestmark = MARKS


@pytest.mark.parametrize("kind", ["draws", "band"])
def test_future_tokens_never_change_past_outputs_and_decoding_equals_the_full_pass(kind):
    n, sigmas = 71, (2.0, 64.0)
    parts, band = draw(sigmas, n, 3), Band(sigmas, (9, INF))
    q, k, v = (x.to(DEVICE) for x in tensors(n, n, 32, 2, 1)[:3])
    out, lse = triton_attention(q, k, v, Draws(parts) if kind == "draws" else band, causal=True)
    cut = 66
    changed = [torch.cat((x[:, :, :cut], torch.full_like(x[:, :, cut:], 7.0)), dim=2) for x in (q, k, v)]
    other, other_lse = triton_attention(*changed, Draws(parts) if kind == "draws" else band, causal=True)
    assert torch.equal(out[:, :, :cut], other[:, :, :cut])
    assert torch.equal(lse[:, :, :cut], other_lse[:, :, :cut])
    for i in (0, 64, 70):
        structure = Draws(parts.prefix(i + 1)) if kind == "draws" else band
        step, step_lse = triton_attention(
            q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], structure, causal=True
        )
        torch.testing.assert_close(step[:, :, 0], out[:, :, i], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(step_lse[:, :, 0], lse[:, :, i], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("which", "number", "causal", "kind"),
    [
        (0, NAN, True, "draws"),
        (0, INF, False, "band"),
        (1, NAN, False, "draws"),
        (1, INF, True, "band"),
        (2, NAN, True, "band"),
        (2, NAN, False, "draws"),
        (2, INF, True, "draws"),
        (3, NAN, False, "band"),
        (3, NAN, True, "draws"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_not_finite_numbers_reach_only_rows_that_see_them(which, number, causal, kind, dtype):
    n, h, place = 75, 2, 40
    structure, weights = structure_and_weights(kind, (1.0, 4.0), (5, 9), n, n, 2)
    inputs = tensors(n, n, 16, h, h, dtype=dtype)
    clean = operate(structure, inputs, causal)
    dirty_inputs = [x.clone() for x in inputs]
    dirty_inputs[which][0, 0, place, 3] = number
    dirty = operate(structure, dirty_inputs, causal)
    sees = weights > 0
    if causal:
        sees = sees & torch.ones(n, n, dtype=torch.bool).tril()
    queries = torch.zeros(n, dtype=torch.bool)
    queries[place] = True
    if which in (1, 2):
        queries = sees[0, :, place]
    keys = sees[0, queries].any(dim=0)
    for name, got, wanted in zip(("out", "lse", "dq", "dk", "dv"), dirty, clean, strict=True):
        touched = torch.zeros(wanted.shape[:3], dtype=torch.bool)
        touched[0, 0] = keys if name in ("dk", "dv") else queries
        # The slower loop that keeps such numbers in place may round differently in the last place.
        tolerance = 1e-5 if dtype == torch.float32 else 0.01
        torch.testing.assert_close(got[~touched], wanted[~touched], rtol=tolerance, atol=tolerance)
    # Nothing is hidden either: who sees it shows it, but where an infinite key only takes the pair's share away.
    if which == 3:
        assert dirty[4][0, 0, keys, 3].isnan().all()
        assert dirty[2][0, 0, place].isnan().all()
    else:
        shown = queries & (inputs[0][0, 0, :, 3] > 0) if which == 1 and number == INF else queries
        assert not dirty[0][0, 0, shown, 3].isfinite().any()
        assert dirty[1].isfinite().all() == (which == 2)


def test_rows_without_keys():
    n, m, h = 75, 13, 2
    inputs = tensors(n, m, 16, h, 1)
    for kind in ("draws", "band"):
        structure, weights = structure_and_weights(kind, (4.0, 16.0), (INF, 3), m, m)
        weights = torch.cat((torch.zeros(h, n - m, m, dtype=torch.float64), weights), dim=1)
        torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
        try:
            ours = operate(structure, inputs, True)
        finally:
            torch.use_deterministic_algorithms(False)
        assert_close(ours, oracle(weights, inputs, True))
        assert (ours[0][:, :, : n - m] == 0).all()
        assert (ours[1][:, :, : n - m] == -INF).all()
        assert (ours[2][:, :, : n - m] == 0).all()


def test_any_strides_and_only_one_result_used():
    n, h, d = 19, 2, 32
    q, k, v = (x.to(DEVICE) for x in tensors(n, n, d, h, h)[:3])
    band = Band((2.0, 16.0), (INF, 9))
    wanted, lse = triton_attention(q, k, v, band, causal=True)
    by_position = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    joined = torch.stack((q, k, v), dim=-1)
    for views in (by_position, joined.unbind(-1), torch.cat((q, k, v), dim=-1).split(d, dim=-1)):
        assert torch.equal(triton_attention(*views, band, causal=True)[0], wanted)
    q.requires_grad_()
    out, lse = triton_attention(q, k, v, band, causal=True)
    (only_out,) = torch.autograd.grad(out.sum(), q, retain_graph=True)
    (only_lse,) = torch.autograd.grad(lse.sum(), q, retain_graph=True)
    (both,) = torch.autograd.grad(out.sum() + lse.sum(), q)
    torch.testing.assert_close(only_out + only_lse, both, rtol=1e-5, atol=1e-5)


def test_empty_inputs():
    band = Band((4.0,), (INF,))
    for batch, n, m in ((0, 3, 3), (2, 0, 5), (2, 3, 0)):
        q, k, v = (torch.randn(batch, 1, x, 16, device=DEVICE) for x in (n, m, m))
        q.requires_grad_()
        out, lse = triton_attention(q, k, v, band, causal=True)
        assert out.shape == q.shape
        assert (out == 0).all()
        assert (lse == -INF).all()
        out.sum().backward()
        assert (q.grad == 0).all()


def test_fresh_draws_and_lengths_change_nothing_that_is_compiled(monkeypatch):
    launches = set()
    launch = operator._launch

    def record(kernel, positions, lines, arguments, data, compiled):
        tensors = [(x.dtype, x.data_ptr() % 16) for x in arguments if isinstance(x, torch.Tensor)]
        pairs = [[x is None for x in y] for y in arguments if isinstance(y, operator.Pairs)]
        strides = [[stride % 16 for stride in y] for y in arguments if type(y) is tuple]
        assert all(name in triton_kernels.DATA for name in data if name != "scale")
        launches.add(str((kernel.__name__, tensors, pairs, strides, compiled)))
        if DEVICE == "cuda":
            launch(kernel, positions, lines, arguments, data, compiled)

    monkeypatch.setattr(operator, "_launch", record)
    counted = (triton_kernels.forward_kernel, triton_kernels.dq_kernel, triton_kernels.dkv_kernel)
    for step in range(20):
        n = 50 + step
        parts = draw((3.0 + step,), n, 1 + step, sampler="importance" if step % 2 else "iid")
        operate(Draws(parts), tensors(n, n, 48, 1, 1), True)
        if DEVICE == "cuda" and step == 1:
            before = [len(x.device_caches[torch.cuda.current_device()][0]) for x in counted]
    assert len(launches) == 4
    if DEVICE == "cuda":
        after = [len(x.device_caches[torch.cuda.current_device()][0]) for x in counted]
        assert after == before


def test_bad_arguments_are_named():
    n, h = 9, 2
    q, k, v = (x.to(DEVICE) for x in tensors(n, n, 16, h, h)[:3])
    band = Band((4.0, 4.0), (INF, INF))
    cases = [
        ("q: must have shape", (q[0], k, v, band), {}),
        ("q: has 2 heads", (q, k[:, :1].expand(1, 3, n, 16), v[:, :1].expand(1, 3, n, 16), band), {}),
        ("structure: is for 1", (q, k, v, Band((4.0,), (INF,))), {}),
        ("structure: draws for 10", (q, k, v, Draws(draw((4.0, 4.0), n + 1, 2))), {}),
        ("k: is torch.float16", (q, k.half(), v, band), {}),
        ("k: is torch.float32 on meta", (q, k.to("meta"), v, band), {}),
        ("q: is torch.float64", (q.double(), k.double(), v.double(), band), {}),
        ("v: has shape", (q, k, v[:, :, 1:], band), {}),
        ("head dim 272", (*(x.repeat(1, 1, 1, 17) for x in (q, k, v)), band), {}),
        ("q_offset = -1", (q, k, v, Draws(draw((4.0, 4.0), n, 2))), {"q_offset": -1, "causal": False}),
        (r"cu_seqlens = \[0, 5, 3, 9\]", (q, k, v, band), {"cu_seqlens": torch.tensor([0, 5, 3, 9])}),
        (r"cu_seqlens = \[0, 8\]", (q, k, v, band), {"cu_seqlens": torch.tensor([0, 8])}),
        ("cu_seqlens: is torch.float32", (q, k, v, band), {"cu_seqlens": torch.tensor([0.0, 9.0])}),
        ("key_padding_mask", (q, k, v, band), {"key_padding_mask": torch.ones(1, n)}),
        ("scale = nan", (q, k, v, band), {"scale": NAN}),
    ]
    for text, arguments, options in cases:
        with pytest.raises(ValueError, match=text):
            triton_attention(*arguments, **{"causal": True, **options})
