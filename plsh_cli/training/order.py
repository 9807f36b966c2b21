"""In which order an epoch visits the training windows."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from plsh_cli.positional.streams import generator


class KeyedOrder(Sampler[int]):
    """A random order of `size` windows per epoch, from the stream (seed, "data", epoch), less those that fill no batch.

    batch: windows of a forward pass of all processes. Which windows are left out changes with the epoch.
    It depends on nothing else: not on the process, the draws of a bias, nor on how far training has come, so that a
    resumed run finds its place again.
    """

    def __init__(self, size: int, seed: int, batch: int = 1) -> None:
        self._size, self._seed, self._used, self._epoch = size, seed, size - size % batch, 0

    def __len__(self) -> int:
        return self._used

    def __iter__(self) -> Iterator[int]:
        return iter(generator(self._seed, "data", self._epoch).permutation(self._size)[: self._used].tolist())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, counted from 0, whose order comes next."""
        self._epoch = epoch
