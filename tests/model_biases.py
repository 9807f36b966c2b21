"""The biases that tests run models under, and a model's own attention under the same matrix, as the oracle."""

from __future__ import annotations

import math

import numpy as np
import torch
import toy

from plsh_cli.attention import Alibi, FixedBlocks, NoBias, Plsh, Window
from plsh_cli.attention.bias import Mixed
from plsh_cli.positional import kernels
from plsh_cli.positional.kernels import alibi_slopes
from plsh_cli.positional.matrices import m_tilde
from plsh_cli.positional.partitions import stack
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator

SIGMAS = (1.0 / alibi_slopes(toy.HEADS)).tolist()


def draws(capacity=toy.POSITIONS, heads=toy.HEADS, seed=0, sampler="iid", pitch="real", num_samples=5, merge="lse"):
    parts = [
        draw(kernels.alibi(SIGMAS[head]), capacity, num_samples, generator(seed, "test", head), sampler, pitch)
        for head in range(heads)
    ]
    return Plsh(stack(parts), merge)


def mixed(capacity=toy.POSITIONS):
    return Mixed((((0, 1, 2, 3), draws(capacity, heads=4)), ((4, 5, 6, 7, 8), Alibi(SIGMAS[4:]))))


BIASES = {
    "none": NoBias,
    "alibi": lambda: Alibi(SIGMAS),
    "window": lambda: Window(SIGMAS, 1e-2),
    "fixed_blocks": lambda: FixedBlocks(SIGMAS),
    "plsh": draws,
    "plsh_importance_integer": lambda: draws(sampler="importance", pitch="integer"),
    "mixed": mixed,
}


def matrix(bias, n):
    """L*, its window, or M~ of every head, (h, n, n) float64, from the definitions alone."""
    if isinstance(bias, Mixed):
        whole = np.empty((toy.HEADS, n, n))
        for heads, one in bias.groups:
            whole[list(heads)] = matrix(one, n)
        return whole
    if isinstance(bias, NoBias):
        return np.ones((toy.HEADS, n, n))
    if isinstance(bias, Plsh):
        parts = bias.parts.prefix(n)
        return np.stack([m_tilde(parts.head(head)) for head in range(parts.num_heads)])
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    sigma = np.asarray(bias.sigma)[:, None, None]
    if isinstance(bias, FixedBlocks):
        block = np.arange(n) // np.maximum(1, np.round(2 * np.asarray(bias.sigma)))[:, None]
        return (block[:, :, None] == block[:, None, :]).astype(float)
    weights = np.exp(-distance / sigma)
    return (
        np.where(distance <= np.floor(-sigma * math.log(bias.eps)), weights, 0.0) if type(bias) is Window else weights
    )


def own_logits(model, ids, weights, seen=None):
    """Logits of the model's own eager attention under (h, n, n) weights, given as a 4-D mask that it adds to scores."""
    n = ids.shape[1]
    seen = np.tri(n, dtype=bool) if seen is None else seen & np.tri(n, dtype=bool)
    seen = seen & (weights > 0)
    logs = np.where(seen, np.log(np.where(seen, weights, 1.0)), -np.inf)
    model.set_attn_implementation("eager")
    mask = torch.from_numpy(np.where(np.isfinite(logs), logs, -1e30))[None].to(model.dtype)
    with torch.inference_mode():
        logits = model(ids, attention_mask=mask, use_cache=False).logits
    model.set_attn_implementation("sdpa")
    return logits
