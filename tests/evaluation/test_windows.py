"""Which tokens are scored: the same at every length, each once, with the left text that is promised."""

from __future__ import annotations

import numpy as np
import pytest

from plsh_cli.evaluation.windows import matched, paper


def places(windows):
    """(text, place) of every scored token, in order."""
    return [
        (int(text), int(place))
        for text, start, scored in zip(windows.text, windows.start, windows.scored, strict=True)
        for place in range(start + windows.length - scored + 1, start + windows.length + 1)
    ]


@pytest.mark.parametrize("stride", [None, 1, 7, 13])
@pytest.mark.parametrize("sizes", [[211, 5, 83, 131], [54], [53 + 1 + 13], [0, 1000]])
def test_every_length_scores_the_same_tokens_once_those_with_enough_before_them(sizes, stride):
    found = matched(sizes, [13, 53, 31], stride)
    wanted = sorted((text, place) for text, size in enumerate(sizes) for place in range(53, size))
    for length, windows in found.items():
        assert windows.length == length
        assert sorted(places(windows)) == wanted
        assert places(windows) == places(found[53])
        assert windows.tokens == len(wanted)
        assert (windows.start >= 0).all()
        assert all(start + length < sizes[text] for text, start in zip(windows.text, windows.start, strict=True))


def test_a_text_of_3000_tokens_at_three_windows():
    # lm-evaluation-harness#2467: there the perplexity changes with the window because the tokens do.
    found = matched([3000], [512, 1024, 2048])
    assert list(found) == [512, 1024, 2048]
    for windows in found.values():
        assert places(windows) == [(0, place) for place in range(2048, 3000)]


def test_left_text_lies_within_the_stride_of_the_length():
    for length, windows in matched([211], [13, 53], 11).items():
        assert windows.scored.max() == 11
        assert windows.scored.min() == (211 - 53) % 11
        assert length - windows.scored.max() + 1 >= 1


def test_a_cap_takes_whole_blocks_from_the_texts_in_turn():
    windows = matched([211, 5, 83, 131], [31], 10, max_tokens=45)[31]
    assert windows.text.tolist() == [0, 2, 3, 0]
    assert windows.tokens == 40
    assert set(places(windows)) < set(places(matched([211, 5, 83, 131], [31], 10)[31]))


def test_the_papers_windows_step_by_the_training_length():
    found = paper([100], [20, 32], 20)
    assert places(found[20]) == [(0, place) for place in range(1, 81)]
    # Windows at 0, 20, 40, 60: the last 20 of 32 positions each.
    assert places(found[32]) == [(0, place) for place in range(13, 93)]
    assert found[20].scored.tolist() == [20] * 4


def test_at_the_training_length_the_papers_windows_do_not_overlap():
    windows = paper([1001], [50], 50)[50]
    assert np.array_equal(np.diff(windows.start), np.full(19, 50))
    assert windows.tokens == 1000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: matched([53], [13, 53]), "lengths = 53: .* 54 tokens.* 53"),
        (lambda: matched([], [13]), "longest text has 0"),
        (lambda: matched([100], [13, 53], 14), r"stride = 14: .* 1 \.\. 13"),
        (lambda: matched([100], [13], 0), "stride = 0"),
        (lambda: matched([100], [13], 13, max_tokens=12), "max_tokens = 12: must be at least 13"),
        (lambda: paper([100], [13], 14), "lengths = 13: must be at least the training length, 14"),
        (lambda: paper([100], [13, 100], 13), "lengths = 100"),
    ],
)
def test_what_cannot_be_scored_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
