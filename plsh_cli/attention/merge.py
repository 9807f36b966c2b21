"""Merging attentions over disjoint sets of keys: the log-sum-exp rule, natural logarithm.

A part is (out (.., e), lse (..)); a part without keys is (0, -inf). The merge of two parts is attention over the keys
of both: out = sum of exp(lse_k) out_k / sum of exp(lse_k). A key that lies in several parts counts once in each, and a
part of weight w enters with lse + ln w.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


def merge(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the merged part; differentiable, with gradient 0 where there is no key. Both -inf gives (0, -inf)."""
    largest = torch.maximum(lse, other_lse).detach()
    empty = largest == -torch.inf
    pivot = torch.where(empty, 0.0, largest)
    # exp(-inf) is 0 with gradient 0 as long as the pivot is finite; autograd never sees -inf - -inf.
    mine, theirs = (lse - pivot).exp(), (other_lse - pivot).exp()
    total = torch.where(empty, 1.0, mine + theirs)
    merged = (mine / total)[..., None] * out + (theirs / total)[..., None] * other
    return merged, torch.where(empty, -torch.inf, total.log() + pivot)


class Sums(NamedTuple):
    """A merge under way, for loops that keep no graph: numerators (.., e), largest lse so far (..), and masses (..).

    Sums are relative to the largest lse, so that each part costs a rounding of the size of its share in the result, not
    one of the size of the lse. `start` holds no part; `absorb` adds one, in place.
    """

    total: torch.Tensor
    largest: torch.Tensor
    mass: torch.Tensor

    @classmethod
    def start(cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Sums:
        rows = shape[:-1]
        return cls(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.full(rows, -torch.inf, dtype=dtype, device=device),
            torch.zeros(rows, dtype=dtype, device=device),
        )

    def absorb(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        largest = torch.maximum(self.largest, lse)
        pivot = largest.masked_fill(largest == -torch.inf, 0.0)
        kept, added = (self.largest - pivot).exp_(), (lse - pivot).exp_()
        self.total.mul_(kept.unsqueeze(-1)).addcmul_(out.to(self.total.dtype), added.unsqueeze(-1))
        self.mass.mul_(kept).add_(added)
        self.largest.copy_(largest)

    def merged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the merged part; its out takes the place of the numerators."""
        empty = self.mass == 0
        return self.total.div_(self.mass.masked_fill(empty, 1.0).unsqueeze(-1)), self.mass.log().add_(self.largest)
