"""The held-out loss: the mean over all labels, however they are spread over windows, batches and processes."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

#: As in transformers: positions without a label.
_NO_LABEL = -100


class HeldOut:
    """Adds up the windows of an evaluation; `add` takes what all processes gathered, every window once."""

    def __init__(self) -> None:
        self._nats, self._labels = 0.0, 0

    def add(self, nats: torch.Tensor, labels: torch.Tensor) -> None:
        """Add windows `(b,)`, each with the sum of its losses in nats and the number of its labels."""
        self._nats += float(nats.double().cpu().sum())
        self._labels += int(labels.sum())

    @property
    def loss(self) -> float:
        """Nats per label; NaN without any."""
        return self._nats / self._labels if self._labels else float("nan")


def window_losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the losses of every window in nats `(b,)` and how many labels it has `(b,)`, int64.

    logits: (b, n, vocabulary). labels: (b, n), those of the same position (already shifted), -100 for none.
    """
    each = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none", ignore_index=_NO_LABEL)
    return each.view_as(labels).sum(dim=1), (labels != _NO_LABEL).sum(dim=1)
