"""Errors of attention outputs under every setting against exact ALiBi: the level `attention` of `plsh compare`.

On Q, K and V of a trained model's layers, or on standard normal ones. Measures, each the mean over layers and heads:
output_error_relative ||T - T*||_F / ||T*||_F, and row_error_median, the median over rows of the same of a row. A unit
is a text (or a set of random inputs) with a seed of its draws. Outputs are float32, by attention's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plsh_cli.errors import MessageError
from plsh_cli.experiments.attn_error_fused import attend
from plsh_cli.experiments.compare_costs import Draws
from plsh_cli.experiments.compare_settings import Setting
from plsh_cli.positional.streams import generator

if TYPE_CHECKING:
    import torch

    from plsh_cli.attention.bias import Bias
    from plsh_cli.models.capture import Captured

MEASURES = ("output_error_relative", "row_error_median")


def bias_of(setting: Setting, draws: Draws, unit: int, own_slopes: bool) -> Bias:
    """The bias that attention takes. own_slopes: the model has ALiBi of its own, which `original` then is."""
    from plsh_cli.attention.bias import Alibi, FixedBlocks, NoBias, Plsh, Window

    sigmas = [float(kernel.sigma or 0.0) for kernel in draws.kernels]
    if setting.num_samples is not None:
        return Plsh(draws.parts(unit, setting.num_samples))
    if setting.lengths is not None:
        return FixedBlocks([length / 2.0 for length in setting.lengths])
    if setting.eps is not None:
        return Window(sigmas, setting.eps)
    exact = setting.bias == "alibi" or (setting.bias == "original" and own_slopes)
    return Alibi(sigmas) if exact else NoBias()


def errors(
    settings: Sequence[Setting],
    draws: Draws,
    inputs: Iterator[list[Captured]],
    texts: int,
    own_slopes: bool,
    done: Callable[[int], None],
) -> dict[Setting, np.ndarray]:
    """Per setting (MEASURES, texts, seeds), one seed for what has no draws; done(number of attentions computed).

    draws: its units are all seeds of the first text, then of the next. inputs: layers of every text.
    """
    seeds = len(draws.units) // texts
    found = {one: np.zeros((len(MEASURES), texts, seeds if one.drawn else 1)) for one in settings}
    for text, layers in enumerate(inputs):
        exact = [_attended(layer, bias_of(Setting("alibi"), draws, 0, own_slopes)) for layer in layers]
        for setting, values in found.items():
            for seed in range(values.shape[2]):
                bias = bias_of(setting, draws, text * seeds + seed, own_slopes)
                each = [_compared(layer, bias, wanted) for layer, wanted in zip(layers, exact, strict=True)]
                values[:, text, seed] = np.mean(each, axis=0)
                done(len(layers))
        if not all(np.isfinite(values[:, text]).all() for values in found.values()):
            raise MessageError(f"outputs of text {text} are not finite: its Q, K or V are too large for float32")
    return found


def random_inputs(texts: int, seed: int, shape: tuple[int, int, int], device: str) -> Iterator[list[Captured]]:
    """One layer of standard normal Q, K, V of shape (heads, n, head_dim) for each text."""
    import torch

    from plsh_cli.models.capture import Captured

    for text in range(texts):
        numbers = generator(seed, "qkv", text).standard_normal((3, *shape), dtype=np.float32)
        q, k, v = torch.from_numpy(numbers).to(device)
        yield [Captured(q, k, v, shape[2] ** -0.5)]


def timed_call(layer: Captured, draws: Draws, own_slopes: bool) -> Callable[[Setting], Callable[[], object]]:
    """What makes a call of one attention under a setting, for ByTime: the first text's layer and draws."""
    from plsh_cli.attention import attention

    q, k, v = (x[None].float() for x in (layer.q, layer.k, layer.v))

    def prepared(setting: Setting) -> Callable[[], object]:
        bias = bias_of(setting, draws, 0, own_slopes)

        def call() -> object:
            out = attention(q, k, v, bias, causal=True, scale=layer.scale)
            if out.is_cuda:
                import torch

                torch.cuda.synchronize()
            return out

        return call

    return prepared


def _attended(layer: Captured, bias: Bias) -> torch.Tensor:
    q, k, v = (x[None].float() for x in (layer.q, layer.k, layer.v))
    return attend(q, k, v, bias, layer.scale)[0]


def _compared(layer: Captured, bias: Bias, wanted: torch.Tensor) -> tuple[float, float]:
    """The measures against `wanted` (h, n, d), the mean over heads."""
    error, exact = (_attended(layer, bias) - wanted).norm(dim=-1), wanted.norm(dim=-1)
    whole = error.norm(dim=-1) / exact.norm(dim=-1)
    rows = (error / exact.clamp_min(1e-300)).quantile(0.5, dim=-1)
    return float(whole.mean()), float(rows.mean())
