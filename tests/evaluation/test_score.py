"""Scores are those of a plain forward pass per token, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plsh_cli.evaluation.score import mean_scores, score
from plsh_cli.evaluation.windows import matched, paper


def one_by_one(model, texts, scores, length, start=None):
    """-ln p of every scored token from a pass over nothing but its left text."""
    found = []
    for text, place, left in zip(scores.text, scores.place, scores.left, strict=True):
        ids = texts[text].ids[place - left : place].tolist()
        ids = ids if start is None else [start, *ids]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        found.append(-float(torch.log_softmax(logits.double(), -1)[texts[text].ids[place]]))
    return np.array(found)


@pytest.mark.parametrize("length", [13, 31])
def test_against_a_pass_per_token(model, texts, length):
    windows = matched([len(text) for text in texts], [13, 31], 11, max_tokens=120)[length]
    scores = score(model, texts, windows, batch=3)
    assert scores.left.min() == length - 10
    assert scores.left.max() == length
    # Measures are computed in float32, and the pass over fewer tokens is the same in float64.
    np.testing.assert_allclose(scores.nats, one_by_one(model, texts, scores, length), rtol=2e-6)


def test_the_papers_windows_against_a_pass_per_token(model, texts):
    windows = paper([len(text) for text in texts], [29], 17)[29]
    scores = score(model, texts, windows, batch=2)
    np.testing.assert_allclose(scores.nats, one_by_one(model, texts, scores, 29), rtol=2e-6)


def test_a_start_token_takes_the_first_place(model, texts):
    windows = matched([len(text) for text in texts], [13], 13, max_tokens=39)[13]
    scores = score(model, texts, windows, batch=2, start=5)
    assert (scores.left.min(), scores.left.max()) == (0, 12)
    np.testing.assert_allclose(scores.nats, one_by_one(model, texts, scores, 13, start=5), rtol=2e-6)


def test_batches_and_pieces_change_nothing_but_rounding(model, texts):
    windows = matched([len(text) for text in texts], [31], 11)[31]
    first, others = score(model, texts, windows, batch=1), []
    for batch, numbers in ((2, 1 << 25), (8, 97), (1000, 500)):
        others.append(score(model, texts, windows, batch=batch, numbers=numbers))
    for other in others:
        assert windows.tokens == len(other.nats) == len(first.nats)
        assert np.array_equal(first.place, other.place)
        np.testing.assert_allclose(other.measures, first.measures, rtol=1e-6, atol=1e-6)


def test_sizes_are_those_of_the_scored_tokens(model, texts):
    scores = score(model, texts, matched([len(text) for text in texts], [31])[31], batch=4)
    assert scores.sizes.sum() == sum(int(text.sizes[31:].sum()) for text in texts)


def test_progress_counts_every_window_once(model, texts):
    windows, seen = matched([len(text) for text in texts], [31], 11)[31], []
    score(model, texts, windows, batch=4, done=seen.append)
    assert sum(seen) == len(windows)


def test_means_over_scorings_are_per_token(model, texts):
    windows = matched([len(text) for text in texts], [13])[13]
    one = score(model, texts, windows, batch=4)
    torch.nn.init.zeros_(model.lm_head.weight)
    two = score(model, texts, windows, batch=4)
    both = mean_scores([one, two])
    np.testing.assert_allclose(both.nats, (one.nats + np.log(97)) / 2, rtol=1e-6)
    other = score(model, texts, matched([len(text) for text in texts], [31])[31], batch=4)
    with pytest.raises(ValueError, match="same tokens"):
        mean_scores([one, other])


def test_a_model_that_gives_no_numbers_is_refused_with_the_place(model, texts):
    torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    with pytest.raises(ValueError, match=r"finite.*t0, from token 32"):
        score(model, texts, matched([len(text) for text in texts], [32])[32], batch=4)


def test_the_mode_of_the_model_stays(model, texts):
    model.train()
    score(model, texts, matched([len(text) for text in texts], [31], max_tokens=31)[31], batch=4)
    assert model.training
