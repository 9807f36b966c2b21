"""Scoring the tokens of texts in windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plsh_cli.evaluation.logits import logits_in_pieces
from plsh_cli.evaluation.metrics import MEASURES, measure
from plsh_cli.evaluation.texts import Text
from plsh_cli.evaluation.windows import Windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Numbers of logits that are held at a time: 128 MiB in float32, of which measuring makes a few copies.
NUMBERS = 1 << 25


@dataclass(frozen=True, eq=False)
class Scores:
    """The scored tokens, window by window.

    window, text, place (in the text), left (tokens of left text) and sizes (bytes) are int64 (tokens,); measures, those
    of MEASURES, float64 (MEASURES, tokens).
    """

    window: np.ndarray
    text: np.ndarray
    place: np.ndarray
    left: np.ndarray
    sizes: np.ndarray
    measures: np.ndarray

    @property
    def nats(self) -> np.ndarray:
        """-ln p of each token."""
        return self.measures[MEASURES.index("nats")]


def score(
    model: PreTrainedModel,
    texts: Sequence[Text],
    windows: Windows,
    *,
    batch: int,
    start: int | None = None,
    done: Callable[[int], object] | None = None,
    numbers: int = NUMBERS,
) -> Scores:
    """The measures of every scored token, in evaluation mode and without gradients.

    batch: windows per forward pass; it changes results by rounding at most. start: an id that takes the place of every
    window's first token, for models that expect one there; that token is then no left text. done: called after each
    forward pass with its number of windows. numbers: logits held at a time. Raises ValueError where logits are not
    finite, which says at which token.
    """
    import torch

    training = model.training
    model.eval()
    found = np.empty((len(MEASURES), windows.tokens))
    ends = np.cumsum(windows.scored)
    try:
        with torch.inference_mode():
            for rows in _batches(windows, batch):
                begin = int(ends[rows[0]] - windows.scored[rows[0]])
                found[:, begin : int(ends[rows[-1]])] = _forward(model, texts, windows, rows, start, numbers)
                if done is not None:
                    done(len(rows))
    finally:
        model.train(training)
    return _scores(texts, windows, found, start)


def mean_scores(several: Sequence[Scores]) -> Scores:
    """The same tokens with each measure's mean over several scorings of them, such as sets of draws."""
    first = several[0]
    if any(not np.array_equal(one.place, first.place) or not np.array_equal(one.text, first.text) for one in several):
        raise ValueError("scores: must be of the same tokens in the same order")
    measures = np.mean([one.measures for one in several], axis=0)
    return Scores(first.window, first.text, first.place, first.left, first.sizes, measures)


def _batches(windows: Windows, batch: int) -> Iterator[np.ndarray]:
    """Neighbouring windows that score equally many positions, at most `batch` at a time."""
    changes = np.flatnonzero(np.diff(windows.scored)) + 1
    for alike in np.split(np.arange(len(windows)), changes):
        for begin in range(0, len(alike), batch):
            yield alike[begin : begin + batch]


def _forward(
    model: PreTrainedModel, texts: Sequence[Text], windows: Windows, rows: np.ndarray, start: int | None, numbers: int
) -> np.ndarray:
    """The measures of some windows that score equally many positions, (MEASURES, tokens), window by window."""
    import torch

    keep, length = int(windows.scored[rows[0]]), windows.length
    stretches = [texts[windows.text[row]].ids[windows.start[row] : windows.start[row] + length + 1] for row in rows]
    ids = torch.from_numpy(np.stack(stretches)).to(model.device)
    inputs, targets = ids[:, :-1].clone(), ids[:, -keep:]
    if start is not None:
        inputs[:, 0] = start
    found = np.empty((len(MEASURES), len(rows), keep))
    for places, logits in logits_in_pieces(model, inputs, keep, numbers):
        wanted = targets[:, places].to(logits.device)
        try:
            measures = measure(logits.flatten(0, 1), wanted.flatten())
        except ValueError as error:
            at = int(windows.start[rows[0]]) + length - keep + places.start + 1
            raise ValueError(f"{error} (text {texts[windows.text[rows[0]]].name}, from token {at} on)") from None
        found[:, :, places] = measures.reshape(len(MEASURES), *wanted.shape).numpy()
    return found.reshape(len(MEASURES), -1)


def _scores(texts: Sequence[Text], windows: Windows, found: np.ndarray, start: int | None) -> Scores:
    window = np.repeat(np.arange(len(windows)), windows.scored)
    behind = np.repeat(np.cumsum(windows.scored), windows.scored) - np.arange(windows.tokens)
    left = windows.length + 1 - behind
    text, place = windows.text[window], windows.start[window] + left
    sizes = np.array([texts[one].sizes[at] for one, at in zip(text, place, strict=True)], dtype=np.int64)
    return Scores(window, text, place, left - (start is not None), sizes, found)
