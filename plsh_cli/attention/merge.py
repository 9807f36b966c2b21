"""Merging attentions over disjoint sets of keys: the log-sum-exp rule, natural logarithm.

A part is (out (.., e), lse (..)); a part without keys is (0, -inf). The merge of two parts is attention over the keys
of both: out = sum of exp(lse_k) out_k / sum of exp(lse_k). A key that lies in several parts counts once in each, and a
part of weight w enters with lse + ln w.
"""

from __future__ import annotations

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


def absorb(out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> None:
    """Merge the second part into the first, in place: `merge` for loops that keep no graph."""
    total = torch.logaddexp(lse, other_lse)
    pivot = total.masked_fill(total == -torch.inf, 0.0)
    out.mul_((lse - pivot).exp_().unsqueeze(-1)).addcmul_(other.to(out.dtype), (other_lse - pivot).exp_().unsqueeze(-1))
    lse.copy_(total)
