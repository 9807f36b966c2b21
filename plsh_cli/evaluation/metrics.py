"""What is measured at one token: how the model's distribution over the vocabulary places the token that came."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Measures of one token, in this order. nats: -ln of its probability. entropy: of the distribution, in nats.
#: reciprocal_rank: 1 / rank. top1, top10, top100: 1 where the rank is at most so many, else 0.
MEASURES = ("nats", "entropy", "reciprocal_rank", "top1", "top10", "top100")
_TOPS = (1, 10, 100)


def measure(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The measures of each row of logits (r, vocabulary) for its target (r,): float64 (MEASURES, r), on the CPU.

    Computed in float32. The rank of a token is 1 + the number of tokens with a larger logit + half the number of other
    tokens with the same one, its expected place where ties are broken at random: a model that gives all tokens the same
    logit gains nothing. Raises ValueError where a row has a NaN or +inf.
    """
    import torch

    logits = logits.float()
    normaliser = torch.logsumexp(logits, dim=-1)
    if not bool(torch.isfinite(normaliser).all()):
        raise ValueError("logits: some are not finite, the model computes no probabilities here")
    own = logits.gather(-1, targets[:, None])
    larger, ties = (logits > own).sum(dim=-1), (logits == own).sum(dim=-1) - 1
    log_p = logits - normaliser[:, None]
    # p ln p is 0 where p is: a logit of -inf excludes a token.
    entropy = -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(dim=-1)
    # Some devices have no float64.
    nats, entropy, larger, ties = (x.cpu().double() for x in (normaliser - own[:, 0], entropy, larger, ties))
    rank = 1.0 + larger + 0.5 * ties
    return torch.stack([nats, entropy, 1.0 / rank, *((rank <= top).double() for top in _TOPS)])
