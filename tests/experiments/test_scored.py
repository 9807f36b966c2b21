"""Scored tokens as fields of a row: means, intervals over the right groups, paired differences, bins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plsh_cli.evaluation.metrics import MEASURES
from plsh_cli.evaluation.score import Scores, mean_scores
from plsh_cli.experiments import scored
from plsh_cli.stats import t_interval


def scores_of(nats, text, window=None, left=None, sizes=None):
    count = len(nats)
    measures = np.zeros((len(MEASURES), count))
    measures[MEASURES.index("nats")] = nats
    whole = np.zeros(count, dtype=np.int64)
    place = np.arange(count)
    return Scores(
        whole if window is None else np.asarray(window),
        np.asarray(text),
        place,
        place + 1 if left is None else np.asarray(left),
        whole + 2 if sizes is None else np.asarray(sizes),
        measures,
    )


def test_intervals_are_over_texts_where_there_are_enough():
    nats = np.random.default_rng(0).gamma(2.0, size=6 * 11)
    scores = scores_of(nats, np.repeat(np.arange(6), 11))
    found = scored.summary(scores)
    mean, half = t_interval(nats.reshape(6, 11).mean(axis=1))
    assert scored.clusters_of(scores)[1] == "texts"
    assert found["nats_per_token"] == pytest.approx(mean, rel=1e-12)
    assert found["nats_per_token_ci95"] == pytest.approx(half, rel=1e-12)
    assert found["perplexity_high"] == pytest.approx(math.exp(mean + half), rel=1e-12)
    assert found["bits_per_byte"] == pytest.approx(mean / math.log(2) / 2, rel=1e-12)


def test_with_few_texts_they_are_over_blocks_of_neighbouring_tokens_of_one_window():
    window = np.repeat([0, 1, 2], [130, 64, 5])
    groups, what = scored.clusters_of(scores_of(np.ones(199), np.repeat([0, 1], [130, 69]), window))
    assert what == "blocks"
    assert np.bincount(groups).tolist() == [64, 64, 2, 64, 5]
    assert (np.diff(groups) >= 0).all()


def test_bits_per_byte_are_all_bits_over_all_bytes():
    scores = scores_of([1.0, 3.0, 5.0], [0, 0, 0], sizes=[1, 4, 0])
    assert scored.summary(scores)["bits_per_byte"] == pytest.approx(9 / math.log(2) / 5, rel=1e-12)
    assert scored.summary(scores_of([1.0], [0], sizes=[0]))["bits_per_byte"] is None


def test_a_single_block_has_no_interval():
    found = scored.summary(scores_of([1.0, 3.0], [0, 0]))
    assert (found["nats_per_token"], found["nats_per_token_ci95"], found["perplexity_low"]) == (2.0, None, None)


def test_differences_are_paired():
    generator = np.random.default_rng(1)
    base = generator.gamma(2.0, size=300) * 5
    text = np.repeat(np.arange(6), 50)
    more = base + 0.25 + 1e-3 * generator.normal(size=300)
    found = scored.difference(scores_of(more, text), scores_of(base, text))
    assert found["nats_difference"] == pytest.approx(0.25, abs=1e-3)
    # Unpaired, the interval would be that of the losses themselves, hundreds of times wider.
    assert found["nats_difference_ci95"] < 1e-3 < scored.summary(scores_of(base, text))["nats_per_token_ci95"] / 100
    with pytest.raises(ValueError, match="same tokens"):
        scored.difference(scores_of(more, text), scores_of(base[:50], text[:50]))


def test_intervals_hold_the_noise_of_draws():
    generator = np.random.default_rng(2)
    base, text = generator.gamma(2.0, size=300), np.repeat(np.arange(6), 50)
    offsets = np.array([-1.0, 0.5, 0.8])
    sets = [scores_of(base + 9.0 + offset, text) for offset in offsets]
    whole = mean_scores(sets)
    draws = t_interval(offsets)[1]
    alone, found = scored.summary(whole), scored.summary(whole, sets)
    assert found["nats_per_token_ci95"] == pytest.approx(math.hypot(alone["nats_per_token_ci95"], draws), rel=1e-12)
    assert math.log(found["perplexity_high"] / found["perplexity"]) == pytest.approx(found["nats_per_token_ci95"])
    per_byte = math.hypot(alone["bits_per_byte_ci95"], draws / math.log(2) / 2)
    assert found["bits_per_byte_ci95"] == pytest.approx(per_byte, rel=1e-12)
    # Tokens agree but for the draws, so that the difference's interval is that over the draws alone.
    exact = scores_of(base, text)
    assert scored.difference(whole, exact, sets, [exact])["nats_difference_ci95"] == pytest.approx(draws, rel=1e-9)
    assert scored.difference(exact, whole, [exact], sets)["nats_difference_ci95"] == pytest.approx(draws, rel=1e-9)
    assert scored.difference(whole, whole, sets, sets)["nats_difference_ci95"] == 0.0
    assert scored.summary(sets[0], sets[:1]) == scored.summary(sets[0])


def test_bins_partition_the_left_text():
    left = np.tile(np.arange(5, 18), 3)
    scores = scores_of(left.astype(float), np.zeros(39, dtype=np.int64), left=left)
    bins = scored.by_position(scores)
    assert [one["left_from"] for one in bins[1:]] == [one["left_to"] + 1 for one in bins[:-1]]
    assert (bins[0]["left_from"], bins[-1]["left_to"]) == (5, 17)
    for one in bins:
        assert one["nats_per_token"] == pytest.approx((one["left_from"] + one["left_to"]) / 2)
    assert sum(one["tokens"] for one in bins) == 39
