"""Outputs of one head under several bias matrices against those under L*, in float64, some rows at a time.

Nothing of n x n is made beside the bias matrices themselves; under a causal mask rows meet only the keys before them.
Code name and paper symbol: exact, L*; weights, W (M~ or a baseline's matrix).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from plsh_cli.experiments.attn_error_metrics import numbers_of_rows

if TYPE_CHECKING:
    import torch

    from plsh_cli.models.capture import Captured

#: Queries at a time.
_ROWS = 128
#: Under this mass the products of tiny numbers have lost digits, and logarithms take their place.
_FAINT = 1e-250
#: Up to so many tokens the matrices are small: more threads gain a third on an idle machine and lose a factor of twenty
#: on a busy one.
_ONE_THREAD_TOKENS = 2048
#: What the paper's code puts in the place of zeros of M~.
PAPER_ZERO = 1e-20


class Head(NamedTuple):
    """One head's rows of scores (n, d), keys (n, d) and values (n, e) in float64, and the factor on their products."""

    rows: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float


def head_of(layer: Captured, head: int, paper: bool) -> Head:
    """Query head `head` of a layer. paper: its rows are keys (K Q^T), and its key head is min(head, g - 1)."""
    groups = layer.k.shape[0]
    group = min(head, groups - 1) if paper else head // (layer.q.shape[0] // groups)
    q, k, v = layer.q[head].double(), layer.k[group].double(), layer.v[group].double()
    return Head(k, q, v, layer.scale) if paper else Head(q, k, v, layer.scale)


def row_numbers(
    head: Head, exact: torch.Tensor, weights: Sequence[torch.Tensor], max_errors: Sequence[float], causal: bool
) -> list[torch.Tensor]:
    """The numbers of metrics.ROW for every row, (ROW, n) float64, one tensor per bias matrix (n, n) in `weights`.

    max_errors: max |W - L*| of each.
    """
    import torch

    n = head.rows.shape[0]
    with_ones = torch.cat([head.values, torch.ones_like(head.values[:, :1])], dim=1)
    lengths = head.values.norm(dim=1)
    largest = lengths.cummax(dim=0).values if causal else lengths.max().expand(n)
    pieces: list[list[torch.Tensor]] = [[] for _ in weights]
    for start in range(0, n, _ROWS):
        rows = slice(start, min(start + _ROWS, n))
        seen = rows.stop if causal else n
        scores = head.scale * (head.rows[rows] @ head.keys[:seen].T)
        if causal:
            hidden = torch.ones(rows.stop - start, rows.stop - start, dtype=torch.bool, device=scores.device).triu(1)
            scores[:, start:].masked_fill_(hidden, -torch.inf)
        shares = scores.softmax(dim=-1)
        wanted = _mixed(scores, shares, exact[rows, :seen], with_ones[:seen])
        for place, matrix in enumerate(weights):
            got = _mixed(scores, shares, matrix[rows, :seen], with_ones[:seen])
            pieces[place].append(numbers_of_rows(got, wanted, max_errors[place], largest[rows]))
    return [torch.cat(piece, dim=1) for piece in pieces]


@contextmanager
def few_threads(n: int) -> Iterator[None]:
    """Keeps torch to one processor core within the body where n is small."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if n <= _ONE_THREAD_TOKENS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _mixed(
    scores: torch.Tensor, shares: torch.Tensor, weights: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and their masses: values has a last column of ones."""
    total = (shares * weights) @ values
    mass = total[:, -1:]
    out = total[:, :-1] / mass
    faint = mass[:, 0] < _FAINT
    if bool(faint.any()):
        logits = scores[faint] + weights[faint].log()
        out[faint] = logits.softmax(dim=-1) @ values[:, :-1]
    return out, mass
