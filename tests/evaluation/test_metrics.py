"""The measures of one token, against plain float64 arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from plsh_cli.evaluation.metrics import MEASURES, measure


def measured(logits, targets):
    return dict(zip(MEASURES, measure(torch.tensor(logits), torch.tensor(targets)).numpy(), strict=True))


def test_against_plain_arithmetic():
    generator = np.random.default_rng(3)
    logits = generator.normal(size=(29, 211)) * 3
    targets = generator.integers(0, 211, 29)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = p[np.arange(29), targets]
    rank = 1 + (p > own[:, None]).sum(axis=1)
    found = measured(logits, targets)
    np.testing.assert_allclose(found["nats"], -np.log(own), rtol=1e-5)
    np.testing.assert_allclose(found["entropy"], -(p * np.log(p)).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(found["reciprocal_rank"], 1 / rank, rtol=1e-12)
    for top in (1, 10, 100):
        assert np.array_equal(found[f"top{top}"], rank <= top)
    assert 0 < found["top10"].sum() < 29


def test_equal_logits_gain_nothing():
    found = measured(np.zeros((1, 101)), [7])
    assert found["nats"][0] == pytest.approx(math.log(101), rel=1e-6)
    assert found["entropy"][0] == pytest.approx(math.log(101), rel=1e-6)
    assert found["reciprocal_rank"][0] == 1 / 51
    assert (found["top1"][0], found["top10"][0], found["top100"][0]) == (0, 0, 1)


def test_two_tied_for_the_first_place():
    found = measured([[5.0, 5.0, 0.0]], [1])
    assert found["reciprocal_rank"][0] == 1 / 1.5
    assert found["top1"][0] == 0


def test_excluded_tokens_have_no_part_in_the_entropy():
    found = measured([[0.0, 0.0, -math.inf]], [0])
    assert found["entropy"][0] == pytest.approx(math.log(2), rel=1e-6)
    assert measured([[0.0, -math.inf]], [1])["nats"][0] == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        measured([[0.0, bad, 1.0]], [0])


def test_the_logits_stay_as_they_were():
    logits = torch.randn(3, 5)
    before = logits.clone()
    measure(logits, torch.tensor([0, 1, 2]))
    assert torch.equal(logits, before)
