"""ALiBi by extra dimensions: far positions, any scale and head count, 16-bit types, other kernels."""

from __future__ import annotations

import pytest
import torch
from attention_oracle import assert_within_budget, inputs, low_precision, oracle, run

from plsh_cli.attention.augmented import augment, augmented_attention
from plsh_cli.attention.bias import Alibi, Window
from plsh_cli.attention.pieces import decay_columns


def last_rows(q, k, v, sigma: float, reach: int) -> torch.Tensor:
    """Exact causal ALiBi of the last queries in float64, without keys whose weight is below e^-(reach / sigma)."""
    n, m = q.shape[2], k.shape[2]
    rows = []
    for first in range(0, n, 128):
        low, high = max(0, m - n + first - reach), m - n + first + 128
        distance = torch.arange(m - n + first, high, dtype=torch.float64)[:, None] - torch.arange(low, high)
        logits = q[0, 0, first : first + 128].double() @ k[0, 0, low:high].double().T * q.shape[-1] ** -0.5
        logits = (logits - distance / sigma).masked_fill(distance < 0, -torch.inf)
        rows.append(logits.softmax(-1) @ v[0, 0, low:high].double())
    return torch.cat(rows)


@pytest.mark.parametrize("sigma", [2.0, 256.0])
def test_the_last_1024_of_a_million_queries(sigma):
    n, m, d = 1024, 1_000_000, 16
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 1, size, d, generator=generator) for size in (n, m, m))
    out, _ = augmented_attention(q, k, v, Alibi(sigma), q_offset=m - n)
    # Scores stay within 40 nats: beyond 150 sigma nothing reaches 1e-12.
    wanted = last_rows(q, k, v, sigma, int(150 * sigma))
    assert float((out[0, 0].double() - wanted).abs().max()) < 1e-5


def by_sdpa(q, k, v, bias, **_):
    """Exact ALiBi through the extra columns, on attention that knows of no bias."""
    scale = q.shape[-1] ** -0.5
    wide, keys, values = (x.float() for x in augment(q, k, v, list(bias.sigma)))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    logits = (scale * wide @ keys.mT).masked_fill(~seen, -torch.inf)
    # Rows of a softmax do not change with the number that the columns leave out, the distance to the last key.
    past = (k.shape[2] - 1 - torch.arange(q.shape[2])) / torch.tensor(bias.sigma)[:, None]
    return (logits.softmax(-1) @ values)[..., : q.shape[-1]].to(q.dtype), logits.logsumexp(-1) + past


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [augmented_attention, by_sdpa])
def test_coefficients_that_16_bits_cannot_hold_are_split(function, dtype):
    # Scale 5^-1/2 and slopes of twelve heads: no power of two.
    x, bias = inputs(1, 6, 2, 257, 257, 5), Alibi([1.4142, 2.8284, 3.0, 11.3, 100.0, 7e5])
    wanted = oracle(x, bias, dtype)
    independent = run(low_precision, x, bias, dtype, causal=True)
    found = run(function, x, bias, dtype)
    assert_within_budget(found, wanted, independent, torch.finfo(dtype).eps)


def test_columns_hold_the_decay():
    below = torch.tensor([0, 1, 255, 256, 65_535, 65_536, 1_000_000])
    for dtype, accuracy in ((torch.bfloat16, 2e-5), (torch.float32, 1e-7), (torch.float64, 1e-15)):
        for sigma, scale in ((2.0, 0.125), (2.8284, 128**-0.5), (1e9, 1.0)):
            q_columns, k_columns = decay_columns(below, sigma, scale, dtype)
            found = scale * (k_columns.double() @ q_columns.double())
            torch.testing.assert_close(found, -below.double() / sigma, rtol=accuracy, atol=0.0)
    assert len(decay_columns(below[:4], 2.0, 0.125, torch.bfloat16)[0]) == 2
    assert len(decay_columns(below[:4], 3.0, 0.125, torch.bfloat16)[0]) == 4


def test_any_causal_kernel_gets_alibi_from_augmented_inputs():
    x, sigma = inputs(2, 6, 3, 127, 127, 5), [1.0, 2.0, 3.0, 40.0, 500.0, 6e3]
    leaves = [y.requires_grad_() for y in x]
    scale = 5**-0.5
    out = torch.nn.functional.scaled_dot_product_attention(*augment(*leaves, sigma), is_causal=True, scale=scale)[
        ..., :5
    ]
    wanted = oracle(x, Alibi(sigma))
    torch.testing.assert_close(out.detach(), wanted[0], rtol=1e-11, atol=1e-11)
    out.sum().backward()
    assert all(bool(y.grad.isfinite().all()) for y in leaves)


@pytest.mark.parametrize(
    ("bias", "options", "text"),
    [
        (Window(2.0, 0.1), {}, "Alibi only"),
        (Alibi(2.0), {"causal": False}, "causal"),
        (Alibi(2.0), {"scale": 0.0}, "scale"),
    ],
)
def test_what_it_does_not_compute_is_refused(bias, options, text):
    with pytest.raises(ValueError, match=text):
        augmented_attention(*inputs(1, 1, 1, 5, 5, 5), bias, **options)


def test_a_slope_that_float16_cannot_hold_is_refused():
    x = [y.half() for y in inputs(1, 1, 1, 999, 999, 5)]
    with pytest.raises(ValueError, match="float16 cannot hold"):
        augment(*x, 1e-6)
    # The backend itself computes in float32.
    torch.testing.assert_close(augmented_attention(*x, Alibi(1e-6))[0], x[2], rtol=0, atol=0)
