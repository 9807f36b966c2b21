"""`plsh attn-error`: how far attention under M~ is from attention under L*, on a trained model's Q, K and V.

For every layer, query head and s: ||T~ - T*||_F / ||T*||_F, both by dense float64 attention, causal, on Q and K after
RoPE, with the model's own grouping of heads. Code name to the paper's symbol: num_samples s, l_star L*, m_tilde M~,
outputs T~ and T*.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import biases
from plsh_cli.experiments.attn_error_inputs import Inputs, chosen_device, chosen_layers, prepare, shape_before_loading
from plsh_cli.experiments.attn_error_rows import rows, slopes
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.result import Result
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import l_star, m_tilde
from plsh_cli.positional.partitions import PartitionSet
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator

if TYPE_CHECKING:
    import torch

    from plsh_cli.models.capture import Captured

ERROR = "||a - b||_F / ||b||_F; a: attention under M~, b: under L*; dense, float64, causal, Q and K after RoPE"
#: Measured: program and model, then the larger of two copies of the logits (float32) and n x n matrices (float64).
_FIXED_BYTES, _LOGIT_BYTES_PER_TOKEN, _MATRICES = 1.1 * 2**30, 2 * 4 * 49_152, 6
_ROWS = 128


def plan(cfg: AttnErrorCommand) -> dict[str, object]:
    """What a run would do, without fetching or loading anything. Raises UserError for what cannot run."""
    shape = shape_before_loading(cfg)
    # What auto means is only known to torch, whose import a plan does without.
    device = "auto" if cfg.device == "auto" else chosen_device(cfg.device)
    layers = chosen_layers(cfg, shape.layers) if shape.layers else cfg.attn_error.layers or "first, middle and last"
    kernels = head_kernels(cfg, shape.heads) if shape.heads else None
    n = cfg.attn_error.tokens
    bytes_needed = _FIXED_BYTES + max(_LOGIT_BYTES_PER_TOKEN * n, _MATRICES * 8 * n * n)
    available = available_bytes()
    if available is not None and bytes_needed > available:
        raise UserError(
            "attn_error.tokens",
            n,
            f"needs about {gibibytes(bytes_needed)}, {gibibytes(available)} are available; use fewer tokens",
            "--tokens",
        )
    return {
        "model": cfg.model.path or cfg.model.name,
        "text": f"{cfg.data.name}, document {cfg.data.document}, first {n} tokens",
        "layers": layers,
        "kernels": [kernel.label for kernel in kernels] if kernels else "one per query head, known after loading",
        "sampler": cfg.bias.sampler,
        "num_samples": sorted(cfg.attn_error.num_samples),
        "seeds": _seeds(cfg),
        "device": device,
        "to_fetch": shape.to_fetch,
        "estimated_peak_memory": gibibytes(bytes_needed),
    }


def run(cfg: AttnErrorCommand, run: object) -> Result:
    """Load, capture, measure. `run` gives progress, metrics and plain lines (see `experiments.harness.Run`)."""
    started = time.perf_counter()
    inputs = prepare(cfg, run.say)
    prepared = time.perf_counter()
    kernels = head_kernels(cfg, inputs.num_heads)
    errors = _measure(cfg, inputs, kernels, run)
    table = rows(cfg, kernels, inputs.layers, errors)
    for row in table:
        if row["head"] is None:
            run.log({key: value for key, value in row.items() if value is not None})
    run.save_arrays(
        "errors",
        errors=errors,
        layers=np.array(inputs.layers),
        num_samples=np.array(sorted(cfg.attn_error.num_samples)),
        seeds=np.array(_seeds(cfg)),
    )
    summary = {
        "perplexity": inputs.perplexity,
        "model": inputs.model,
        "text": inputs.text,
        "model_details": inputs.model_details,
        "text_details": inputs.text_details,
        "layers": inputs.layers,
        "device": inputs.device,
        "error": ERROR,
        "slopes": slopes(inputs.layers, sorted(cfg.attn_error.num_samples), errors),
    }
    finished = time.perf_counter()
    return Result(table, summary, {"seconds": finished - started, "load_and_capture_seconds": prepared - started})


def head_kernels(cfg: AttnErrorCommand, num_heads: int) -> list[Kernel]:
    """One kernel per query head: those of the `bias` section, a single one standing for all heads.

    Raises UserError where their number is neither 1 nor the number of heads, and as `biases.kernels` does.
    """
    kernels = biases.kernels(cfg.bias, num_heads, cfg.attn_error.tokens)
    if len(kernels) == 1:
        return kernels * num_heads
    if len(kernels) != num_heads:
        field, value = ("bias.sigma", cfg.bias.sigma) if cfg.bias.kernel == "alibi" else ("bias.a", cfg.bias.a)
        raise UserError(
            field,
            value,
            f"must have one value for all heads or {num_heads}, one per query head; has {len(kernels)}",
            "--sigma" if field == "bias.sigma" else f"{field}=[...]",
        )
    return kernels


def _measure(cfg: AttnErrorCommand, inputs: Inputs, kernels: list[Kernel], run: object) -> np.ndarray:
    """The relative errors, float64 of shape (seeds, sizes, layers, heads).

    Heads are taken one at a time, so that memory holds a few n x n matrices whatever the number of heads and layers.
    Heads with one kernel share its draws, and all layers do.
    """
    n, seeds, sizes = cfg.attn_error.tokens, _seeds(cfg), sorted(cfg.attn_error.num_samples)
    errors = np.empty((len(seeds), len(sizes), len(inputs.layers), len(kernels)))
    distinct = list(dict.fromkeys(kernels))
    with _one_thread(), run.progress(len(distinct) * len(seeds) * len(sizes), "plsh attn-error") as bar:
        for kernel in distinct:
            heads = [head for head, other in enumerate(kernels) if other == kernel]
            exact = _outputs(inputs, heads, l_star(kernel, n))
            for row, seed in enumerate(seeds):
                for column, parts in enumerate(_draws(cfg, kernel, seed, sizes)):
                    errors[row, column][:, heads] = _relative(_outputs(inputs, heads, m_tilde(parts)), exact)
                    bar.advance()
    return errors


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps torch to one processor core within the body.

    The matrices are small: more threads gain a third on an idle machine and lose a factor of twenty on a busy one.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draws(cfg: AttnErrorCommand, kernel: Kernel, seed: int, sizes: Sequence[int]) -> Iterator[PartitionSet]:
    """One set of draws per size: i.i.d. ones are the first draws of the largest set, others are drawn anew."""
    n, pitch, sampler = cfg.attn_error.tokens, cfg.bias.pitch, cfg.bias.sampler
    if sampler == "iid":
        largest = draw(kernel, n, sizes[-1], generator(seed, "partitions", kernel.label, pitch), sampler, pitch)
        yield from (largest.take(size) for size in sizes)
        return
    for size in sizes:
        yield draw(kernel, n, size, generator(seed, "partitions", kernel.label, pitch, sampler, size), sampler, pitch)


def _outputs(inputs: Inputs, heads: Sequence[int], matrix: np.ndarray) -> list[list[torch.Tensor]]:
    """Attention outputs (n, d) in float64 under one (n, n) bias matrix, per layer and head."""
    import torch

    weights = torch.from_numpy(matrix).to(inputs.device)
    return [[_one_head(layer, head, weights) for head in heads] for layer in inputs.captured]


def _one_head(layer: Captured, head: int, weights: torch.Tensor) -> torch.Tensor:
    import torch

    from plsh_cli.attention.reference import dense_attention

    group = head // (layer.q.shape[0] // layer.k.shape[0])
    q, k, v = layer.q[head : head + 1], layer.k[group : group + 1], layer.v[group : group + 1]
    q, k, v = q.double(), k.double(), v.double()
    pieces = []
    # Under a causal mask, _ROWS queries that end at `stop` need only the keys before `stop`: half the work.
    for start in range(0, q.shape[1], _ROWS):
        stop = start + _ROWS
        part = q[:, start:stop], k[:, :stop], v[:, :stop], weights[start:stop, :stop]
        pieces.append(dense_attention(*part, causal=True, scale=layer.scale)[0])
    return torch.cat(pieces, dim=1)[0]


def _relative(approximate: list[list[torch.Tensor]], exact: list[list[torch.Tensor]]) -> list[list[float]]:
    return [
        [float((a - b).norm() / b.norm()) for a, b in zip(*pair, strict=True)]
        for pair in zip(approximate, exact, strict=True)
    ]


def _seeds(cfg: AttnErrorCommand) -> list[int]:
    return list(range(cfg.seed, cfg.seed + cfg.attn_error.seeds))
