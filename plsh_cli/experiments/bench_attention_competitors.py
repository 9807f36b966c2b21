"""The competitors of `plsh bench attention`: torch's own attention with exact ALiBi, prepared outside the timing.

Shapes: b batch, h heads, n positions, d head dim.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

FLEX_BLOCK = 128  # tokens per side of FlexAttention's blocks


class CannotRun(Exception):
    """A competitor does not run here; the text says why."""


def sdpa_with_mask(sigma: Sequence[float], n: int, *, causal: bool, like: torch.Tensor) -> Attend:
    """Torch's scaled_dot_product_attention with the ALiBi mask (1, h, n, n), made here, in the type of `like`."""
    place = torch.arange(n, dtype=torch.float32, device=like.device)
    mask = torch.empty(1, len(sigma), n, n, dtype=like.dtype, device=like.device)
    for head, scale in enumerate(sigma):
        mask[0, head] = -(place[:, None] - place).abs() / scale
    if causal:
        mask.masked_fill_(torch.ones(n, n, dtype=torch.bool, device=like.device).triu(1), -torch.inf)
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)


def flex(sigma: Sequence[float], eps: float | None, n: int, *, causal: bool, like: torch.Tensor) -> Attend:
    """Compiled FlexAttention with ALiBi as its score_mod, on the blocks with a weight of at least `eps` (None: all).

    Compiled when it is first called. CannotRun where this torch has none.
    """
    try:
        from torch.nn.attention.flex_attention import BlockMask
    except ImportError:
        raise CannotRun("this torch has no FlexAttention") from None
    reach = [math.floor(min(scale * -math.log(eps), n)) if eps is not None else n for scale in sigma]
    slopes = torch.tensor([1.0 / scale for scale in sigma], device=like.device)
    widths = torch.tensor(reach, device=like.device)

    def score_mod(score, batch, head, query, key):
        return score - slopes[head] * (query - key).abs()

    def mask_mod(batch, head, query, key):
        near = (query - key).abs() <= widths[head]
        return near & (key <= query) if causal else near

    partial, full = block_lists(reach, n, causal)
    lists = [x.to(like.device) for x in (*_counted(partial), *_counted(full))]
    # torch's own create_block_mask would make n x n matrices.
    mask = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=FLEX_BLOCK, mask_mod=mask_mod, seq_lengths=(n, n))
    attend = functools.partial(_compiled_flex(), score_mod=score_mod, block_mask=mask)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's, about itself
            try:
                return attend(q, k, v)
            except Exception as error:  # a compiler can fail in any way
                reason = (str(error).strip().splitlines() or [""])[0][:160]
                raise CannotRun(f"FlexAttention does not run here: {type(error).__name__}: {reason}") from error

    return call


def forget_compiled() -> None:
    """Drop what was compiled for other lengths: after a few of them torch would stop compiling."""
    torch.compiler.reset()


def block_lists(reach: Sequence[int], n: int, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Which blocks of keys are seen in part and which in full, (h, blocks of queries, blocks of keys) bool each.

    reach: tokens that a query sees to either side, per head.
    """
    count = -(-n // FLEX_BLOCK)
    place = torch.arange(count)
    apart = place[:, None] - place
    nearest = (apart.abs() * FLEX_BLOCK - (FLEX_BLOCK - 1)).clamp(min=0)
    furthest = apart.abs() * FLEX_BLOCK + FLEX_BLOCK - 1
    allowed, whole = (apart >= 0, apart > 0) if causal else (torch.ones_like(apart, dtype=torch.bool),) * 2
    width = torch.tensor(reach)[:, None, None]
    full = (furthest <= width) & whole
    return (nearest <= width) & allowed & ~full, full


def _counted(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return FlexAttention's form of a block mask: how many per row, and their columns first; (1, h, rows, ..)."""
    columns = torch.stack([(~one).to(torch.int8).argsort(dim=-1, stable=True).to(torch.int32) for one in blocks])
    return blocks.sum(dim=-1, dtype=torch.int32)[None], columns[None]


@functools.cache
def _compiled_flex() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading the compiler warns of torch's own old code
        return torch.compile(flex_attention, dynamic=False)
