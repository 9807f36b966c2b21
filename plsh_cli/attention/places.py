"""Reading and adding to equally long pieces of a (b, positions, ..) tensor: views where starts are equally spaced."""

from __future__ import annotations

import numpy as np
import torch


class Places:
    """The pieces [start, start + length) for each start, ascending."""

    def __init__(self, starts: np.ndarray, length: int):
        self.length, self.count = length, len(starts)
        steps = np.diff(starts)
        self.step = (int(steps[0]) if len(steps) else length) if (steps == steps[:1]).all() else None
        self.first = int(starts[0])
        self._starts = starts

    def read(self, x: torch.Tensor) -> torch.Tensor:
        """Return the pieces as (count, b, length, ..): a view of x if the starts are equally spaced, else a copy."""
        if self.step is not None:
            return self._view(x, self.first, self.length)
        return x[:, self._index(x.device)].unflatten(1, (self.count, self.length)).transpose(0, 1)

    def write(self, x: torch.Tensor, pieces: torch.Tensor) -> None:
        """Store what `read` gave and the caller changed in place; nothing to do for a view."""
        if self.step is None:
            x[:, self._index(x.device)] = pieces.transpose(0, 1).flatten(1, 2)

    def add(self, x: torch.Tensor, pieces: torch.Tensor) -> None:
        """Add (count, b, length, ..) pieces to x; where pieces overlap, all of them count."""
        if self.step is None:
            x.index_add_(1, self._index(x.device), pieces.transpose(0, 1).flatten(1, 2).to(x.dtype))
            return
        # A part of at most one step does not overlap that of the next piece.
        for part in range(0, self.length, max(1, self.step)):
            size = min(self.step, self.length - part)
            self._view(x, self.first + part, size).add_(pieces[:, :, part : part + size])

    def _view(self, x: torch.Tensor, first: int, length: int) -> torch.Tensor:
        batch, position, *rest = x.stride()
        shape = (self.count, x.shape[0], length, *x.shape[2:])
        return x.as_strided(
            shape, (self.step * position, batch, position, *rest), x.storage_offset() + first * position
        )

    def _index(self, device: torch.device) -> torch.Tensor:
        return torch.from_numpy((self._starts[:, None] + np.arange(self.length)).ravel()).to(device)
