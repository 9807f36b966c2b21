"""The Triton kernels: forward, delta, dq and dk with dv, each over the tiles inside the union band only.

Shapes: b batch, h query heads, g key heads, n queries, m keys, d head dim (a multiple of 16). One program per tile of
rows (queries, or keys for dk and dv), batch and head; it passes over its partners in one fixed order, so results are
deterministic. Sums and scores are float32, logarithms natural. Lengths, offsets and draws are data: none is compiled
in. `sizes` is m, the capacity of the tables, the number of draws and the words of a draw.

A pair that does not count has logit -inf before the row's maximum and 0 after exp. Where numbers that are not finite
are about (`spoilt`: how many rows before each row hold one), a slower copy of the loop reads them as 0 and puts NaN
where they were seen: in a plain product 0 x NaN would reach rows that do not see them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plsh_cli.attention.triton_pairs import reach, seen_and_bias

# Integers that change from call to call: the compiler must not specialise on their values.
DATA = ("n", "m", "offset", "capacity", "num_draws", "words", "batch_heads", "heads", "group", "table_step")


@triton.jit
def load_rows(base, stride, begin, stop, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows begin..begin+BLOCK-1 of a (positions, DIM) matrix; zeros from row `stop` and column DIM."""
    rows, dims = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    mask = (begin + rows < stop)[:, None] & (dims < DIM)[None, :]
    base += tl.full([], begin, tl.int64) * stride
    return tl.load(base + rows[:, None] * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(base, begin, stop, values, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """The reverse, into a contiguous (positions, DIM) matrix."""
    rows, dims = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    mask = (begin + rows < stop)[:, None] & (dims < DIM)[None, :]
    base += tl.full([], begin, tl.int64) * DIM
    tl.store(base + rows[:, None] * DIM + dims[None, :], values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def product(left, seen, right, CONTAIN: tl.constexpr):
    """left @ right, left being 0 where not seen; under CONTAIN, NaN where a seen entry of `right` is not finite."""
    if CONTAIN:
        finite = tl.abs(right.to(tl.float32)) < float("inf")
        spoilt = tl.where(finite, 0.0, 1.0).to(right.dtype)
        right = tl.where(finite, right, 0.0).to(right.dtype)
        hits = tl.dot(tl.where(seen, 1.0, 0.0).to(right.dtype), spoilt, input_precision="ieee")
        result = tl.dot(left.to(right.dtype), right, input_precision="ieee")
        return tl.where(hits > 0, float("nan"), result)
    return tl.dot(left.to(right.dtype), right, input_precision="ieee")


@triton.jit
def key_range(pairs, table, begin_q, last_q, sizes, CAUSAL: tl.constexpr):
    """Keys [low, high) that the queries at positions begin_q..last_q may see."""
    low, high = reach(pairs, table, begin_q, last_q, sizes)
    if CAUSAL:
        high = tl.minimum(high, last_q + 1)
    high = tl.maximum(tl.minimum(high, sizes[0]), 0)
    return tl.minimum(tl.maximum(low, 0), high), high


@triton.jit
def forward_tiles(
    acc, top, total, q, k, v, k_stride, v_stride, pairs, table, batch, begin_q, last_q, low, high, sizes, scale,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
    CONTAIN: tl.constexpr,
):  # fmt: skip
    """Online softmax of one query tile over keys [low, high): sum of p v, row maximum, row sum."""
    at_q = begin_q + tl.arange(0, ROWS)[:, None]
    for begin_k in range(low, high, COLS):
        k_tile = load_rows(k, k_stride, begin_k, high, DIM, COLS, BLOCK_D)
        v_tile = load_rows(v, v_stride, begin_k, high, DIM, COLS, BLOCK_D)
        at_k, last_k = begin_k + tl.arange(0, COLS)[None, :], tl.minimum(begin_k + COLS, high) - 1
        seen, bias = seen_and_bias(pairs, table, batch, at_q, at_k, begin_q, last_q, begin_k, last_k, sizes, CAUSAL)
        logits = tl.dot(q, tl.trans(k_tile), input_precision="ieee") * scale + bias
        logits = tl.where(seen, logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, 1))
        # Rows that saw nothing yet would have -inf minus -inf.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.where(seen, tl.exp(logits - shift[:, None]), 0.0)
        shrink = tl.exp(top - shift)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + product(p, seen, v_tile, CONTAIN)
        top = new_top
    return acc, top, total


@triton.jit(do_not_specialize=DATA)
def forward_kernel(
    q, k, v, out, lse, spoilt_v, pairs, q_strides, k_strides, v_strides, batch_heads, heads, group, n, m, offset,
    capacity, num_draws, words, table_step, scale,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    # The last tiles first: under a causal mask they may have the most to do.
    begin = (tl.cdiv(n, ROWS) - 1 - program // batch_heads) * ROWS
    row = (program % batch_heads).to(tl.int64)
    batch, head = row // heads, row % heads
    key_head, table = head // group, head * table_step
    k += batch * k_strides[0] + key_head * k_strides[1]
    v += batch * v_strides[0] + key_head * v_strides[1]
    begin_q, last_q = begin + offset, tl.minimum(begin + ROWS, n) - 1 + offset
    sizes = (m, capacity, num_draws, words)
    low, high = key_range(pairs, table, begin_q, last_q, sizes, CAUSAL)
    q_tile = load_rows(q + batch * q_strides[0] + head * q_strides[1], q_strides[2], begin, n, DIM, ROWS, BLOCK_D)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    top, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    spoilt = spoilt_v + (batch * (heads // group) + key_head) * (m + 1)
    if tl.load(spoilt + high) > tl.load(spoilt + low):
        acc, top, total = forward_tiles(
            acc, top, total, q_tile, k, v, k_strides[2], v_strides[2], pairs, table, batch, begin_q, last_q, low, high,
            sizes, scale, DIM, BLOCK_D, ROWS, COLS, CAUSAL, True,
        )  # fmt: skip
    else:
        acc, top, total = forward_tiles(
            acc, top, total, q_tile, k, v, k_strides[2], v_strides[2], pairs, table, batch, begin_q, last_q, low, high,
            sizes, scale, DIM, BLOCK_D, ROWS, COLS, CAUSAL, False,
        )  # fmt: skip
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    store_rows(out + row * n * DIM, begin, n, acc / total[:, None], DIM, ROWS, BLOCK_D)
    rows = begin + tl.arange(0, ROWS)
    tl.store(lse + row * n + rows, tl.where(empty, float("-inf"), top + tl.log(total)), mask=rows < n)


@triton.jit(do_not_specialize=DATA)
def delta_kernel(
    out,
    d_out,
    d_lse,
    delta,
    d_out_strides,
    batch_heads,
    heads,
    n,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """delta = rowsum(out * d_out) - d_lse: what the backward pass subtracts from d_p."""
    begin = (tl.program_id(0) // batch_heads) * ROWS
    row = (tl.program_id(0) % batch_heads).to(tl.int64)
    rows = begin + tl.arange(0, ROWS)
    o_tile = load_rows(out + row * n * DIM, DIM, begin, n, DIM, ROWS, BLOCK_D)
    d_out += row // heads * d_out_strides[0] + row % heads * d_out_strides[1]
    d_tile = load_rows(d_out, d_out_strides[2], begin, n, DIM, ROWS, BLOCK_D)
    value = tl.sum(o_tile.to(tl.float32) * d_tile.to(tl.float32), 1)
    if d_lse is not None:
        value -= tl.load(d_lse + row * n + rows, mask=rows < n, other=0.0)
    tl.store(delta + row * n + rows, value, mask=rows < n)


@triton.jit
def p_and_d_score(logits, bias, seen, d_p, lse, delta):
    """p = exp(logit - lse) and p (d_p - delta), both 0 where not seen."""
    # A row with lse -inf saw nothing, or scores of -inf only.
    shift = tl.where(lse == float("-inf"), 0.0, lse)
    p = tl.where(seen, tl.exp(tl.where(seen, logits + bias, 0.0) - shift), 0.0)
    return p, tl.where(seen, p * (d_p - delta), 0.0)


@triton.jit
def dq_tiles(
    acc, q, d_out, lse, delta, k, v, k_stride, v_stride, pairs, table, batch, begin_q, last_q, low, high, sizes, scale,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
    CONTAIN: tl.constexpr,
):  # fmt: skip
    at_q = begin_q + tl.arange(0, ROWS)[:, None]
    for begin_k in range(low, high, COLS):
        k_tile = load_rows(k, k_stride, begin_k, high, DIM, COLS, BLOCK_D)
        v_tile = load_rows(v, v_stride, begin_k, high, DIM, COLS, BLOCK_D)
        at_k, last_k = begin_k + tl.arange(0, COLS)[None, :], tl.minimum(begin_k + COLS, high) - 1
        seen, bias = seen_and_bias(pairs, table, batch, at_q, at_k, begin_q, last_q, begin_k, last_k, sizes, CAUSAL)
        logits = tl.dot(q, tl.trans(k_tile), input_precision="ieee") * scale
        d_p = tl.dot(d_out, tl.trans(v_tile), input_precision="ieee")
        d_score = p_and_d_score(logits, bias, seen, d_p, lse[:, None], delta[:, None])[1]
        acc += product(d_score, seen, k_tile, CONTAIN)
    return acc


@triton.jit(do_not_specialize=DATA)
def dq_kernel(
    q, k, v, d_out, lse, delta, d_q, spoilt_k, pairs, q_strides, k_strides, v_strides, d_out_strides, batch_heads,
    heads, group, n, m, offset, capacity, num_draws, words, table_step, scale,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    begin = (tl.cdiv(n, ROWS) - 1 - program // batch_heads) * ROWS
    row = (program % batch_heads).to(tl.int64)
    batch, head = row // heads, row % heads
    key_head, table = head // group, head * table_step
    k += batch * k_strides[0] + key_head * k_strides[1]
    v += batch * v_strides[0] + key_head * v_strides[1]
    begin_q, last_q = begin + offset, tl.minimum(begin + ROWS, n) - 1 + offset
    sizes = (m, capacity, num_draws, words)
    low, high = key_range(pairs, table, begin_q, last_q, sizes, CAUSAL)
    q_tile = load_rows(q + batch * q_strides[0] + head * q_strides[1], q_strides[2], begin, n, DIM, ROWS, BLOCK_D)
    d_out += batch * d_out_strides[0] + head * d_out_strides[1]
    d_out_tile = load_rows(d_out, d_out_strides[2], begin, n, DIM, ROWS, BLOCK_D)
    rows = begin + tl.arange(0, ROWS)
    lse_row = tl.load(lse + row * n + rows, mask=rows < n, other=0.0)
    delta_row = tl.load(delta + row * n + rows, mask=rows < n, other=0.0)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    spoilt = spoilt_k + (batch * (heads // group) + key_head) * (m + 1)
    if tl.load(spoilt + high) > tl.load(spoilt + low):
        acc = dq_tiles(
            acc, q_tile, d_out_tile, lse_row, delta_row, k, v, k_strides[2], v_strides[2], pairs, table, batch,
            begin_q, last_q, low, high, sizes, scale, DIM, BLOCK_D, ROWS, COLS, CAUSAL, True,
        )  # fmt: skip
    else:
        acc = dq_tiles(
            acc, q_tile, d_out_tile, lse_row, delta_row, k, v, k_strides[2], v_strides[2], pairs, table, batch,
            begin_q, last_q, low, high, sizes, scale, DIM, BLOCK_D, ROWS, COLS, CAUSAL, False,
        )  # fmt: skip
    store_rows(d_q + row * n * DIM, begin, n, acc * scale, DIM, ROWS, BLOCK_D)


@triton.jit
def dkv_tiles(
    acc_k, acc_v, k, v, q, d_out, q_stride, d_out_stride, lse, delta, pairs, table, batch, begin_k, last_k, low, high,
    offset, sizes, scale,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
    CONTAIN: tl.constexpr,
):  # fmt: skip
    """dk / scale and dv of one key tile from query rows [low, high) of one head; everything here is transposed."""
    at_k = begin_k + tl.arange(0, ROWS)[:, None]
    for begin in range(low, high, COLS):
        q_tile = load_rows(q, q_stride, begin, high, DIM, COLS, BLOCK_D)
        d_out_tile = load_rows(d_out, d_out_stride, begin, high, DIM, COLS, BLOCK_D)
        rows = begin + tl.arange(0, COLS)
        lse_row = tl.load(lse + rows, mask=rows < high, other=0.0)[None, :]
        delta_row = tl.load(delta + rows, mask=rows < high, other=0.0)[None, :]
        begin_q, last_q = begin + offset, tl.minimum(begin + COLS, high) - 1 + offset
        at_q = rows[None, :] + offset
        seen, bias = seen_and_bias(pairs, table, batch, at_q, at_k, begin_q, last_q, begin_k, last_k, sizes, CAUSAL)
        logits = tl.dot(k, tl.trans(q_tile), input_precision="ieee") * scale
        d_p = tl.dot(v, tl.trans(d_out_tile), input_precision="ieee")
        p, d_score = p_and_d_score(logits, bias, seen, d_p, lse_row, delta_row)
        acc_v += product(p, seen, d_out_tile, CONTAIN)
        acc_k += product(d_score, seen, q_tile, CONTAIN)
    return acc_k, acc_v


@triton.jit(do_not_specialize=DATA)
def dkv_kernel(
    q, k, v, d_out, lse, delta, d_k, d_v, spoilt_q, pairs, q_strides, k_strides, v_strides, d_out_strides, batch_heads,
    heads, group, n, m, offset, capacity, num_draws, words, table_step, scale,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """batch_heads counts key heads here; the query heads of a key head are summed one after the other."""
    begin_k = (tl.program_id(0) // batch_heads) * ROWS
    row = (tl.program_id(0) % batch_heads).to(tl.int64)
    batch, key_head = row // (heads // group), row % (heads // group)
    k += batch * k_strides[0] + key_head * k_strides[1]
    v += batch * v_strides[0] + key_head * v_strides[1]
    k_tile = load_rows(k, k_strides[2], begin_k, m, DIM, ROWS, BLOCK_D)
    v_tile = load_rows(v, v_strides[2], begin_k, m, DIM, ROWS, BLOCK_D)
    last_k = tl.minimum(begin_k + ROWS, m) - 1
    sizes = (m, capacity, num_draws, words)
    acc_k, acc_v = tl.zeros([ROWS, BLOCK_D], tl.float32), tl.zeros([ROWS, BLOCK_D], tl.float32)
    for member in range(group):
        head = key_head * group + member
        table, line = head * table_step, batch * heads + head
        low, high = reach(pairs, table, begin_k, last_k, sizes)
        if CAUSAL:
            low = tl.maximum(low, begin_k)
        high = tl.maximum(tl.minimum(high - offset, n), 0)
        low = tl.minimum(tl.maximum(low - offset, 0), high)
        q_head = q + batch * q_strides[0] + head * q_strides[1]
        d_out_head = d_out + batch * d_out_strides[0] + head * d_out_strides[1]
        spoilt = spoilt_q + line * (n + 1)
        if tl.load(spoilt + high) > tl.load(spoilt + low):
            acc_k, acc_v = dkv_tiles(
                acc_k, acc_v, k_tile, v_tile, q_head, d_out_head, q_strides[2], d_out_strides[2], lse + line * n,
                delta + line * n, pairs, table, batch, begin_k, last_k, low, high, offset, sizes, scale, DIM, BLOCK_D,
                ROWS, COLS, CAUSAL, True,
            )  # fmt: skip
        else:
            acc_k, acc_v = dkv_tiles(
                acc_k, acc_v, k_tile, v_tile, q_head, d_out_head, q_strides[2], d_out_strides[2], lse + line * n,
                delta + line * n, pairs, table, batch, begin_k, last_k, low, high, offset, sizes, scale, DIM, BLOCK_D,
                ROWS, COLS, CAUSAL, False,
            )  # fmt: skip
    store_rows(d_k + row * m * DIM, begin_k, m, acc_k * scale, DIM, ROWS, BLOCK_D)
    store_rows(d_v + row * m * DIM, begin_k, m, acc_v, DIM, ROWS, BLOCK_D)
