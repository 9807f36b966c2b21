"""The paper's algorithm in plain torch: ordinary attentions without a bias, merged by their lse; and its gradient.

Backends `blocks` and `augmented`, which differ in the pieces that they merge. The gradient of the merge is the sum of
the kernels' own backward passes, each given the merged out and lse in place of its own: nothing is stored per draw.
Shapes: b batch, h query heads, g key/value heads (h is a multiple of g), n queries, m keys, d head dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

from plsh_cli.attention import contain
from plsh_cli.attention.bias import Bias, Decay, NoBias, Plsh, head_structures
from plsh_cli.attention.inputs import Layout, check, check_draws, compute_dtype
from plsh_cli.attention.merge import Sums
from plsh_cli.attention.pieces import Piece, block_pieces
from plsh_cli.attention.places import Places
from plsh_cli.attention.stock import CHUNK_SCORES, EMPTY, REMOVED, attend, attend_backward
from plsh_cli.positional.partitions import PartitionSet

Structures = Sequence[Decay | PartitionSet]
Pieces = Callable[[Decay | PartitionSet, Layout, torch.Tensor, float], Iterator[Piece]]


def block_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: Bias | None = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    q_offset: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (b, h, n, d) and lse (b, h, n), differentiable in q, k, v, in memory linear in n: see `attention`."""
    layout, scale = check(
        q, k, v, causal=causal, scale=scale, q_offset=q_offset, cu_seqlens=cu_seqlens, key_padding_mask=key_padding_mask
    )
    structures = head_structures(NoBias() if bias is None else bias, q.shape[1], layout.positions)
    if any(isinstance(one, PartitionSet) for one in structures):
        check_draws(layout)
    mean = isinstance(bias, Plsh) and bias.merge == "mean"
    return merged_attention(q, k, v, structures, layout, scale, block_pieces, mean)


def merged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    structures: Structures,
    layout: Layout,
    scale: float,
    pieces: Pieces,
    mean: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse of the merge of every head's pieces; mean: of the mean of its draws."""
    if scale <= 0.0:
        # torch's kernels multiply the -inf of a causal mask by the scale.
        q, scale = (q * 0.0, 1.0) if scale == 0.0 else (-q, -scale)
    return _Merged.apply(q, k, v, _Task(structures, layout, scale, pieces, mean))


@dataclass(frozen=True, eq=False)
class _Task:
    structures: Structures
    layout: Layout
    scale: float
    pieces: Pieces
    mean: bool

    def of_head(self, i: int, like: torch.Tensor) -> Iterator[Piece]:
        """Yield the pieces of a head, cut where a mask per batch row and segment would grow too large."""
        for piece in self.pieces(self.structures[i], self.layout, like, self.scale):
            run, size = piece.run, piece.run.q_len * piece.run.k_len * like.shape[0]
            step = len(run.q_start)
            if piece.mask is not None and self.layout.keep is not None:
                step = max(1, CHUNK_SCORES // size)
            for first in range(0, len(run.q_start), step):
                at = slice(first, first + step)
                yield replace(piece, run=run._replace(q_start=run.q_start[at], k_start=run.k_start[at]))

    def padding(self, q: torch.Tensor) -> torch.Tensor | None:
        """Return what the padding mask adds to scores, (b, m)."""
        if self.layout.keep is None:
            return None
        zeros = torch.zeros(self.layout.keep.shape, dtype=q.dtype, device=q.device)
        return zeros.masked_fill_(~self.layout.keep, REMOVED)


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, task):
        q, k, v = q.detach(), k.detach(), v.detach()
        finite, scores, spoilt = contain.all_finite(q, k, v), None, None
        if not finite:
            bad_q, bad_k, bad_v = (contain.bad_rows(x) for x in (q, k, v))
            q, k, v = (torch.where(x.isfinite(), x, 0.0) for x in (q, k, v))
        out, lse = _forward(*(_wide(x) for x in (q, k, v)), task)
        out = out.to(q.dtype)
        ctx.task, ctx.finite = task, finite
        shown, shown_lse = out, lse
        if not finite:
            scores = contain.rows_that_see(bad_k, task.structures, task.layout) | (bad_q & (lse > -torch.inf))
            spoilt = scores | contain.rows_that_see(bad_v, task.structures, task.layout)
            shown, shown_lse = out.masked_fill(spoilt[..., None], math.nan), lse.masked_fill(scores, math.nan)
        ctx.save_for_backward(q, k, v, out, lse, scores, spoilt)
        ctx.set_materialize_grads(False)
        return shown, shown_lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, out, lse, scores, spoilt = ctx.saved_tensors
        if d_out is None and d_lse is None:
            return None, None, None, None
        d_out = torch.zeros_like(out) if d_out is None else d_out
        finite = ctx.finite and contain.all_finite(d_out, *([] if d_lse is None else [d_lse]))
        if not finite:
            # Probabilities are spoilt by scores, their gradients by values as well.
            bad_terms = bad_grads = contain.bad_rows(d_out)
            d_out = d_out.masked_fill(bad_terms[..., None], 0.0)
            if d_lse is not None:
                bad_grads = bad_grads | ~d_lse.isfinite()
                d_lse = d_lse.masked_fill(~d_lse.isfinite(), 0.0)
            if not ctx.finite:
                bad_terms, bad_grads = bad_terms | scores, bad_grads | spoilt
        grads = _backward(*(_wide(x) for x in (q, k, v, out)), lse, _wide(d_out), d_lse, ctx.task)
        if not finite:
            some = lse > -torch.inf
            layout, structures = ctx.task.layout, ctx.task.structures
            keys, values = (
                contain.keys_seen_by(bad & some, structures, layout, k.shape[1]) for bad in (bad_grads, bad_terms)
            )
            for grad, rows in zip(grads, (bad_grads & some, keys, values), strict=True):
                grad.masked_fill_(rows[..., None], math.nan)
        return *(grad.to(q.dtype) for grad in grads), None


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Return x in the type of sums and with unit last stride, as torch's kernels need it.

    On 16-bit inputs they would round probabilities and the output of each draw, and take longer for short blocks.
    """
    x = x.to(compute_dtype(x.dtype))
    return x if x.stride(-1) == 1 else x.contiguous()


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, task: _Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse in the type of sums."""
    sums = _sums(q)
    if q.shape[0] == 0:  # torch's kernels divide by the batch
        return sums.merged()
    padding, share = task.padding(q), q.shape[1] // k.shape[1]
    for i in range(q.shape[1]):
        inputs, mine = (q[:, i], k[:, i // share], v[:, i // share]), Sums(*(x[:, i] for x in sums))
        if task.mean:
            _mean_forward(*inputs, mine, i, padding, task)
            continue
        for piece in task.of_head(i, q):
            _absorb_piece(*inputs, mine, piece, piece.log_weight, padding, task.scale)
    return sums.merged()


def _mean_forward(q, k, v, sums: Sums, i: int, padding, task: _Task) -> None:
    """Fill the sums: out the weighted mean of the draws' outputs, where they have keys, and lse that of the merge."""
    mean, weights = torch.zeros_like(sums.total), torch.zeros_like(sums.mass)
    for log_weight, out, lse, _ in _draws_of(q, k, v, i, padding, task):
        weight = _mass(log_weight, lse)
        mean.addcmul_(out, weight.unsqueeze(-1))
        weights += weight
        sums.absorb(out, lse + log_weight)
    factor = sums.mass / weights.masked_fill(weights == 0, 1.0)
    torch.mul(mean, factor.unsqueeze(-1), out=sums.total)


def _mass(log_weight: float, lse: torch.Tensor) -> torch.Tensor:
    """Return the draw's weight in the rows where it has keys."""
    return torch.full_like(lse, math.exp(log_weight)).masked_fill_(lse == -torch.inf, 0.0)


def _draws_of(q, k, v, i: int, padding, task: _Task) -> Iterator[tuple[float, torch.Tensor, torch.Tensor, list[Piece]]]:
    """Yield each draw of a head: ln of its weight, its own out and lse (b, n), and its pieces."""
    pieces: dict[int, list[Piece]] = {}
    for piece in task.of_head(i, q):
        pieces.setdefault(piece.draw, []).append(piece)
    for of_draw in pieces.values():
        sums = _sums(q)
        for piece in of_draw:
            _absorb_piece(q, k, v, sums, piece, 0.0, padding, task.scale)
        yield of_draw[0].log_weight, *sums.merged(), of_draw


def _sums(q: torch.Tensor) -> Sums:
    return Sums.start(q.shape, q.dtype, q.device)


def _absorb_piece(q, k, v, sums: Sums, piece: Piece, log_weight: float, padding, scale: float) -> None:
    """Merge a piece into one head's sums, (b, n, d) and (b, n), in place."""
    queries, _, inputs, mask = _gather(q, k, v, piece, padding)
    part, part_lse = attend(*inputs, causal=piece.run.causal, mask=mask, scale=scale)
    if mask is not None:
        part_lse = part_lse.masked_fill(part_lse < EMPTY, -torch.inf)
    if piece.row_bias is not None:
        part_lse = part_lse + piece.row_bias.to(part_lse.dtype)
    mine = Sums(*(queries.read(x) for x in sums))
    mine.absorb(part[..., : mine.total.shape[-1]], part_lse + log_weight)
    for whole, rows in zip(sums, mine, strict=True):
        queries.write(whole, rows)


def _gather(q, k, v, piece: Piece, padding) -> tuple[Places, Places, list[torch.Tensor], torch.Tensor | None]:
    """Return where a piece's queries and keys are, its q, k, v as (count, b, length, d), and its mask."""
    run = piece.run
    queries, keys = Places(run.q_start, run.q_len), Places(run.k_start, run.k_len)
    inputs = [queries.read(q), keys.read(k), keys.read(v)]
    if piece.q_columns is not None:
        inputs = [
            torch.cat([inputs[0], piece.q_columns.expand(*inputs[0].shape[:-1], -1)], dim=-1),
            torch.cat([inputs[1], piece.k_columns.expand(*inputs[1].shape[:-1], -1)], dim=-1),
            pad(inputs[2], (0, piece.q_columns.shape[0])),
        ]
    mask = piece.mask
    if padding is not None:
        padded = keys.read(padding).unsqueeze(-2)
        mask = padded if mask is None else padded + mask
    return queries, keys, inputs, mask


def _backward(q, k, v, out, lse, d_out, d_lse, task: _Task) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients in the type of sums."""
    dim = q.shape[-1]
    if q.shape[0] == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if d_lse is not None:
        # One more column, ones in v and d_lse in d_out, adds d_lse to d_out v^T and leaves the rest as it was.
        q, k, v, out = (_wide(pad(x, (0, 1), value=one)) for x, one in ((q, 0.0), (k, 0.0), (v, 1.0), (out, 0.0)))
        d_out = torch.cat([d_out, d_lse[..., None].to(d_out.dtype)], dim=-1)
    d_out = d_out.contiguous()
    grads = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    # A row without keys: any finite lse, for its terms are exp(REMOVED).
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    padding, share = task.padding(q), q.shape[1] // k.shape[1]
    for i in range(q.shape[1]):
        inputs = q[:, i], k[:, i // share], v[:, i // share]
        mine = grads[0][:, i], grads[1][:, i // share], grads[2][:, i // share]
        if task.mean:
            _mean_backward(*inputs, lse[:, i], d_out[:, i], d_lse is not None, mine, i, padding, task)
            continue
        for piece in task.of_head(i, q):
            of_piece = out[:, i], lse[:, i], d_out[:, i]
            _add_gradients(*inputs, *of_piece, mine, piece, piece.log_weight, padding, task.scale)
    return tuple(grad[..., :dim] for grad in grads)


def _mean_backward(q, k, v, lse, d_out, with_lse: bool, grads, i: int, padding, task: _Task) -> None:
    """The draws' own softmaxes, computed again, each with its share of d_out and of d_lse (the last column)."""
    mass = torch.zeros_like(lse)
    for log_weight, _, mine_lse, _ in _draws_of(q, k, v, i, padding, task):
        mass += _mass(log_weight, mine_lse)
    mass = torch.where(mass == 0, 1.0, mass)
    for log_weight, mine, mine_lse, pieces in _draws_of(q, k, v, i, padding, task):
        share = d_out * (math.exp(log_weight) / mass).unsqueeze(-1)
        if with_lse:
            share[..., -1] = d_out[..., -1] * (mine_lse + log_weight - lse).exp()
            mine[..., -1] = 0.0
        mine_lse = mine_lse.masked_fill(mine_lse == -torch.inf, 0.0)
        for piece in pieces:
            _add_gradients(q, k, v, mine, mine_lse, share, grads, piece, 0.0, padding, task.scale)


def _add_gradients(q, k, v, out, lse, d_out, grads, piece: Piece, log_weight: float, padding, scale: float) -> None:
    """Add one piece's part to a head's gradients (b, n, d), (b, m, d), (b, m, d), in place."""
    queries, keys, inputs, mask = _gather(q, k, v, piece, padding)
    of_queries = [queries.read(x) for x in (d_out, out)]
    if piece.q_columns is not None:
        of_queries = [pad(x, (0, piece.q_columns.shape[0])) for x in of_queries]
    part_lse = queries.read(lse) - log_weight
    if piece.row_bias is not None:
        part_lse = part_lse - piece.row_bias.to(lse.dtype)
    d_out, out = of_queries
    changes = attend_backward(d_out, *inputs, out, part_lse, causal=piece.run.causal, mask=mask, scale=scale)
    for grad, places, change in zip(grads, (queries, keys, keys), changes, strict=True):
        places.add(grad, change[..., : grad.shape[-1]])
