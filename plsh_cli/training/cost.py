"""What a training step costs: floating point operations, bytes, and how fast this machine multiplies matrices.

Formulas (Kaplan et al. 2020, with attention counted by the pairs that are really scored): a multiplication by a weight
is 2 operations forward and 4 backward, a (query, key) pair 4 d forward (2 d for the score, 2 d for the value) and 8 d
backward. What gradient checkpointing computes again does not count as useful work.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plsh_cli.attention.bias import Bias, Mixed, Plsh, head_structures
from plsh_cli.attention.cheaper import dense_pairs, pairs
from plsh_cli.models.shape import shape_of_config
from plsh_cli.positional.partitions import PartitionSet

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def attended_pairs(bias: Bias | None, heads: int, n: int) -> int:
    """The (query, key) pairs with a weight in all heads of one causal sequence.

    For plsh the union of the draws, which is what is scored; with merge="mean" each draw is scored for itself.
    """
    if bias is None:
        return heads * dense_pairs(n, True)
    if isinstance(bias, Mixed):
        return sum(attended_pairs(one, len(of_group), n) for of_group, one in bias.groups)
    total, scorer = 0, "blocks" if isinstance(bias, Plsh) and bias.merge == "mean" else "fused"
    for structure in head_structures(bias, heads, n):
        if isinstance(structure, PartitionSet):
            total += pairs(structure, 0, True, scorer)
        else:
            reach = int(min(structure.width, n - 1))
            total += n + n * reach - reach * (reach + 1) // 2
    return total


def step_flops(
    config: PreTrainedConfig,
    multiplying: int,
    tokens: int,
    context: int,
    pairs_per_window: int,
    adapter: int | None = None,
) -> float:
    """The useful operations of a forward and backward pass over `tokens` tokens in windows of `context`.

    multiplying: the parameters that multiply every token, without an adapter's. pairs_per_window: of all heads of one
    layer. adapter: the parameters of one, beside which the others are frozen and have no gradient of their own (4
    operations in place of 6); None: all are trained.
    """
    sizes = shape_of_config(config.to_dict())
    attention = 12.0 * sizes.head_dim * pairs_per_window * sizes.layers * (tokens / context)
    weights = 6.0 * multiplying if adapter is None else 4.0 * multiplying + 6.0 * adapter
    return weights * tokens + attention


def step_bytes(
    config: PreTrainedConfig,
    total: int,
    tokens: int,
    *,
    weight_bytes: int,
    compute_bytes: int,
    checkpointing: bool,
    adapter: int | None = None,
) -> dict[str, float]:
    """About how many bytes training holds, by purpose, for one process that passes `tokens` tokens forward at a time.

    weights, gradients and AdamW's two averages in the weights' type; of a model whose `total` weights are frozen beside
    an adapter of so many, gradients and averages of the adapter alone, all three in float32. activations: per layer and
    token about 10 hidden vectors, 5 of the MLP's and those of q, k, v and the output, with checkpointing one hidden
    vector per layer and one layer's all (what an adapter keeps beside them, and frozen weights need not, is left out);
    logits: three float32 copies.
    """
    text, sizes = config.get_text_config(), shape_of_config(config.to_dict())
    heads = 2 * (sizes.heads + sizes.kv_heads) * sizes.head_dim
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    layer = 10 * text.hidden_size + 5 * inner + heads
    layers = sizes.layers
    trained = weight_bytes * total if adapter is None else 4 * adapter
    per_token = layers * text.hidden_size + layer if checkpointing else layers * layer
    return {
        "weights": float(weight_bytes * total + (0 if adapter is None else trained)),
        "gradients": float(trained),
        "optimiser": float(2 * trained),
        "activations": float(compute_bytes * per_token * tokens),
        "logits": 3.0 * 4 * text.vocab_size * tokens,
    }


def matmul_rate(device: str, dtype: str, seconds: float = 0.4) -> float:
    """The operations per second of a square matrix product on this device with the threads now set.

    The best of those that fit in `seconds`, 2 size^3 operations each: on a CPU short ones (about 4 ms), so that on a
    busy machine some are not interrupted.
    """
    import torch

    size = 512 if device == "cpu" else 4096
    a = torch.ones(size, size, device=device, dtype=getattr(torch, dtype))
    best, begin = float("inf"), time.perf_counter()
    for turn in range(1000):
        start = time.perf_counter()
        torch.mm(a, a)
        if a.is_cuda:
            torch.cuda.synchronize()
        if turn:
            best = min(best, time.perf_counter() - start)
        if turn > 2 and time.perf_counter() - begin > seconds:
            break
    return 2.0 * size**3 / best
