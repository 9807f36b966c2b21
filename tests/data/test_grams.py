"""Sampled 64-byte pieces: which are kept, and what documents have in common."""

from __future__ import annotations

import numpy as np
import pytest
from data.text_cases import random_text

from plsh_cli.data.grams import KEEP_ONE_IN, Folding, distinct, found_share, sampled_grams, shared_shares


def test_a_piece_is_kept_or_not_wherever_it_occurs():
    passage, left, right = random_text(1, 5003).encode(), random_text(2, 307).encode(), random_text(3, 311).encode()
    kept = sampled_grams(passage)
    assert len(kept) > 20
    assert np.isin(kept, sampled_grams(left + passage + right)).all()


def test_about_one_piece_in_64_is_kept():
    """Pieces that overlap are kept independently; 6 standard deviations of a binomial, false alarm below 1e-8."""
    count = 200_003 - 63
    expected, deviation = count / KEEP_ONE_IN, np.sqrt(count / KEEP_ONE_IN)
    assert abs(len(sampled_grams(random_text(4, 200_003).encode())) - expected) < 6 * deviation


def test_one_changed_byte_changes_the_pieces_that_hold_it_and_no_other():
    text = bytearray(random_text(5, 20_011).encode())
    before = sampled_grams(bytes(text))
    text[9_973] ^= 1
    changed = np.setxor1d(before, sampled_grams(bytes(text)))
    assert 0 < len(changed) <= 2 * 64
    assert np.isin(before, sampled_grams(bytes(text))).mean() > 0.95


@pytest.mark.parametrize(("size", "most"), [(0, 0), (1, 0), (63, 0), (64, 1), (65, 2)])
def test_texts_about_as_long_as_a_piece(size, most):
    assert all(len(sampled_grams(random_text(seed, size).encode())) <= most for seed in range(50))


@pytest.mark.parametrize("text", ["", " \n", "a", " a\r\n b\u00a0\u2003c \t", "no white space", "\n\n  x  y\n"])
def test_white_space_folds_the_same_however_a_text_is_cut(text):
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            folding = Folding()
            parts = [text[:first], text[first:second], text[second:]]
            assert "".join(folding.fold(part) for part in parts) == " ".join(text.split())


def columns(*documents):
    starts = np.concatenate([[0], np.cumsum([len(grams) for grams in documents])])
    return np.concatenate(documents).astype(np.uint64), starts


def test_the_share_that_another_text_has_too():
    grams, starts = columns([1, 2, 3, 4], [4, 5], [], [9])
    assert shared_shares(grams, starts, np.arange(4)).tolist() == [0.25, 0.5, 0, 0]


def test_a_copy_of_the_same_text_is_no_other_text():
    grams, starts = columns([1, 2], [1, 2], [2, 3])
    assert shared_shares(grams, starts, np.array([7, 7, 8])).tolist() == [0.5, 0.5, 0.5]
    assert shared_shares(grams[:4], starts[:3], np.array([7, 7])).tolist() == [0, 0]


def test_the_share_found():
    assert found_share(np.array([1, 2, 3, 4]), np.array([1, 4, 5])) == 0.5
    assert found_share(np.array([9, 0]), np.array([1, 4, 5])) == 0
    assert found_share(np.array([]), np.array([1])) == found_share(np.array([1]), np.array([])) == 0


def test_distinct_values():
    values = np.random.default_rng(0).integers(0, 50, 97)
    assert np.array_equal(distinct(values), np.unique(values))
    assert len(distinct(values[:0])) == 0
