"""`attention`: what it refuses, which backend it takes, biases that differ by head."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from attention_oracle import assert_close, inputs, oracle, partition, run

from plsh_cli.attention import api, build
from plsh_cli.attention.api import attention, choose_backend
from plsh_cli.attention.bias import Alibi, FixedBlocks, Mixed, NoBias, Plsh, Window
from plsh_cli.attention.cheaper import dense_pairs, exact_when_cheaper, pairs
from plsh_cli.positional.matrices import m_tilde


def single(*shape) -> list[torch.Tensor]:
    return [x.float() for x in inputs(*shape)]


@pytest.mark.parametrize("backend", ["blocks", "reference", "auto"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q": torch.zeros(4, 9, 5)}, "q: must have shape"),
        ({"q": torch.zeros(1, 3, 9, 5)}, "q: has 3 heads"),
        ({"k": torch.zeros(1, 2, 8, 5)}, "v: has shape"),
        ({"k": torch.zeros(1, 2, 9, 6), "v": torch.zeros(1, 2, 9, 6)}, "k: has shape"),
        ({"k": torch.zeros(1, 2, 9, 5, dtype=torch.float16)}, "k: is torch.float16"),
        ({"v": torch.zeros(1, 2, 9, 5, device="meta")}, "v: is torch.float32 on meta"),
        ({"q": torch.zeros(1, 4, 9, 5, dtype=torch.int64)}, "q: is torch.int64"),
        ({"scale": math.nan}, "scale"),
        ({"bias": "alibi"}, "bias"),
        ({"bias": Alibi([1.0, 2.0])}, "sigma: for 2 heads"),
        ({"bias": Plsh(partition([2.0, 3.0], 9, 2))}, "parts: for 2 heads"),
        ({"bias": Plsh(partition([2.0], 10, 2))}, r"parts.prefix\(9\)"),
        ({"bias": Plsh(partition([2.0], 8, 2))}, r"parts: drawn for 8 positions"),
        ({"bias": Mixed((((0, 1), NoBias()),))}, "groups: for 2 heads"),
        ({"cu_seqlens": torch.tensor([0, 5, 3, 9])}, "cu_seqlens"),
        ({"cu_seqlens": torch.tensor([0, 8])}, "cu_seqlens"),
        ({"cu_seqlens": torch.tensor([0.0, 9.0])}, "cu_seqlens"),
        ({"cu_seqlens": torch.tensor([0, 9]), "q_offset": 1}, "cu_seqlens"),
        ({"key_padding_mask": torch.ones(1, 9)}, "key_padding_mask"),
        ({"key_padding_mask": torch.ones(1, 8, dtype=torch.bool)}, "key_padding_mask"),
        ({"bias": FixedBlocks(2.0), "q_offset": -3, "causal": False}, "q_offset"),
        ({"q_offset": 0.5}, "q_offset = 0.5: must be a whole number"),
        ({"q_offset": math.inf}, "q_offset = inf"),
        ({"q_offset": 1 << 29}, "q_offset = 536870912"),
        ({"q_offset": -(1 << 40)}, "q_offset = -1099511627776"),
    ],
)
def test_what_does_not_fit_is_refused(change, text, backend):
    q, k, v = single(1, 4, 2, 9, 9, 5)
    arguments = {"q": q, "k": k, "v": v, "bias": NoBias()} | change
    with pytest.raises(ValueError, match=text):
        attention(**arguments, backend=backend)


@pytest.mark.parametrize(
    "sigma", [0.0, -1.0, math.nan, math.inf, [], [1.0, 0.0], "2", None, np.ones((2, 2)), torch.ones(2)]
)
def test_sigma_must_be_positive(sigma):
    for bias in (Alibi, FixedBlocks, lambda x: Window(x, 0.1)):
        with pytest.raises(ValueError, match="sigma"):
            bias(sigma)


def test_other_bad_biases():
    for eps in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="eps"):
            Window(1.0, eps)
    with pytest.raises(ValueError, match="merge"):
        Plsh(partition([1.0], 5, 2), "median")
    with pytest.raises(ValueError, match="groups"):
        Mixed((((0, 2), NoBias()),))


def test_backends_say_what_they_do_not_compute():
    x = single(1, 2, 1, 9, 9, 5)
    mean = Plsh(partition([2.0], 9, 2), "mean")
    for backend, bias, text in (
        ("fast", NoBias(), "auto or one of"),
        ("augmented", NoBias(), "Alibi"),
        ("fused", mean, "merge"),
        ("triton", NoBias(), "cuda"),
    ):
        with pytest.raises(ValueError, match=text):
            attention(*x, bias, backend=backend)
    with pytest.raises(ValueError, match="float64"):
        attention(*(y.double() for y in x), backend="fused")


def test_auto_takes_the_fastest_that_computes_the_bias(monkeypatch):
    monkeypatch.setattr(api, "_fused_failure", lambda: "")
    q = torch.zeros(1, 2, 9, 5)
    mean = Plsh(partition([2.0], 9, 2), "mean")
    assert choose_backend(q) == "fused"
    assert choose_backend(q.bfloat16(), Alibi(2.0)) == "fused"
    assert choose_backend(q.double()) == "blocks"
    assert choose_backend(q, mean) == "blocks"
    assert choose_backend(q.to("meta")) == "blocks"


def test_a_missing_compiler_is_said_once(monkeypatch):
    monkeypatch.setattr(api, "_fused_failure", lambda: "no C++ compiler found (this is a test)")
    x, bias = single(1, 2, 1, 9, 9, 5), Alibi(2.0)
    with pytest.warns(RuntimeWarning, match=r"no C\+\+ compiler found .*blocks"):
        first = attention(*x, bias)
    # Warnings are errors from here on: a second one would fail.
    with monkeypatch.context() as patch:
        patch.setattr(api.warnings, "warn", lambda *_, **__: pytest.fail("said twice"))
        second = attention(*x, bias)
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match=r"no C\+\+ compiler found"):
        attention(*x, bias, backend="fused")


def test_the_compilers_message_is_passed_on(monkeypatch):
    def fails():
        raise build.KernelBuildError("its messages are in somewhere.log")

    monkeypatch.setattr(build, "library", fails)
    assert "somewhere.log" in api._fused_failure()


def test_defaults_are_causal_attention_with_the_usual_scale():
    x = inputs(2, 4, 2, 31, 31, 5)
    wanted = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attention(*x), wanted, rtol=1e-12, atol=1e-12)
    assert isinstance(attention(*x, return_lse=True), tuple)


@pytest.mark.parametrize("share", [1, 2])
def test_heads_may_differ_in_bias(share):
    x = inputs(2, 4, 4 // share, 61, 61, 5)
    parts = partition([2.0, 5.0], 61, 3)
    bias = Mixed((((2, 1), Plsh(parts)), ((0, 3), Alibi([4.0, 90.0]))))

    def mixed(q, k, v, bias, **options):
        return attention(q, k, v, bias, return_lse=True, **options)

    found = run(mixed, x, bias)
    plsh = oracle([x[0][:, [2, 1]], *(y[:, [2 // share, 1 // share]] for y in x[1:])], Plsh(parts))
    exact = oracle([x[0][:, [0, 3]], *(y[:, [0, 3 // share]] for y in x[1:])], Alibi([4.0, 90.0]))
    for i in range(2):
        wanted = torch.stack([exact[i][:, 0], plsh[i][:, 1], plsh[i][:, 0], exact[i][:, 1]], dim=1)
        torch.testing.assert_close(found[i], wanted, rtol=1e-12, atol=1e-12)
    assert_close(run(mixed, x, bias, torch.float32), found, 1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_exact_alibi_where_draws_score_no_fewer_pairs(causal):
    n, sigma = 97, [0.05, 3.0, 500.0]
    parts = partition(sigma, n, 6)
    for head in range(3):
        union = m_tilde(parts, head) > 0
        assert pairs(parts, head, False, "fused") == union.sum()
        assert pairs(parts, head, True, "fused") == np.tril(union).sum()
        # Draws that part the positions alike are computed once.
        starts = np.unique(parts.block_starts_per_token(head), axis=0)
        together = (starts[:, :, None] == starts[:, None, :]).sum()
        assert pairs(parts, head, False, "blocks") == together
        assert pairs(parts, head, True, "blocks") == (together + len(starts) * n) // 2
    bias, replaced = exact_when_cheaper(Plsh(parts), sigma, n, causal)
    assert replaced == [2]
    assert isinstance(bias, Mixed)
    assert bias.groups[1][1] == Alibi([500.0])
    assert exact_when_cheaper(NoBias(), sigma, n, causal) == (NoBias(), [])
    few = Plsh(partition([1.0, 1.0], n, 2))
    assert exact_when_cheaper(few, [1.0, 1.0], n, causal) == (few, [])
    everything, replaced = exact_when_cheaper(Plsh(partition([1e6], n, 2)), [1e6], n, causal)
    assert (everything, replaced) == (Alibi([1e6]), [0])
    assert dense_pairs(n, causal) == (n * (n + 1) // 2 if causal else n * n)
