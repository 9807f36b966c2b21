"""What a mask function of transformers lets a query see, found by asking it about O(n) pairs instead of n x n.

A mask function answers for (batch row, head, query position, key position) and knows nothing of padding. Causal
attention, packed documents and chunks of fixed length are understood: a query sees the keys of its own stretch of the
sequence up to itself. Anything else (future keys, a sliding window that bites) is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from plsh_cli.errors import MessageError

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

#: Pairs that are asked about at a time where queries follow on cached keys.
PAIRS = 1 << 24


def documents(sees: MaskFunction, batch: int, n: int, device: torch.device | str) -> torch.Tensor | None:
    """Return where each position's stretch starts, (batch, n) int64, for n queries at n keys; None if all at 0."""
    ask = _asker(sees, batch, device)
    at = torch.arange(n, device=device)
    if n > 1 and bool(ask(at[:-1], at[1:]).any()):
        _refuse_future()
    if n == 1:
        return None
    same = ask(at[1:], at[:-1])
    starts = torch.where(same, 0, at[1:]).cummax(dim=1).values
    starts = torch.cat([starts.new_zeros(batch, 1), starts], dim=1)
    if not bool(ask(at, starts).all()):
        _refuse_window()
    return starts if bool(starts.any()) else None


def first_keys(
    sees: MaskFunction, batch: int, queries: range, keys: int, device: torch.device | str
) -> torch.Tensor | None:
    """Return the first key that the queries see, (batch,) int64, where they follow on cached keys; None if all at 0.

    Raises MessageError where the queries of a call begin at different keys.
    """
    if len(queries) * keys * batch > PAIRS:
        raise MessageError(
            f"{len(queries)} tokens at once on a cache of {keys} keys with a mask that is not plainly causal: "
            f"give the model fewer tokens at a time"
        )
    at_k = torch.arange(keys, device=device)
    at_q = torch.arange(queries.start, queries.stop, device=device)
    rows = torch.arange(batch, device=device)[:, None, None]
    seen = sees(rows, torch.zeros((), dtype=torch.int64, device=device), at_q[:, None], at_k[None])
    seen = seen.expand(batch, len(queries), keys)
    if bool((seen & (at_k > at_q[:, None])).any()):
        _refuse_future()
    first = seen.long().argmax(dim=2)
    stretch = (at_k >= first[..., None]) & (at_k <= at_q[:, None])
    if not torch.equal(seen, stretch) or bool((first != first[:, :1]).any()):
        _refuse_window()
    return first[:, 0] if bool(first.any()) else None


def _asker(sees: MaskFunction, batch: int, device: torch.device | str) -> Callable[..., torch.Tensor]:
    rows = torch.arange(batch, device=device)[:, None]
    head = torch.zeros((), dtype=torch.int64, device=device)

    def ask(at_q: torch.Tensor, at_k: torch.Tensor) -> torch.Tensor:
        at_q, at_k = at_q.expand(batch, at_q.shape[-1]), at_k.expand(batch, at_k.shape[-1])
        return sees(rows, head, at_q, at_k).expand(batch, at_q.shape[-1])

    return ask


def _refuse_future() -> None:
    raise MessageError(
        "this model lets tokens see later ones (an encoder, or a part of the text that is seen as a whole); "
        "its attention can be replaced in causal language models only"
    )


def _refuse_window() -> None:
    raise MessageError(
        "this model's sliding window or own mask hides keys inside this text, which the bias cannot honour: "
        "use texts no longer than the window, or a configuration without it"
    )
