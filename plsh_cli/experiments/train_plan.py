"""What a training run needs before it starts: parameters, tokens, operations, memory, and about how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plsh_cli import ranks
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import train_model
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.train_progress import Progress, clock

if TYPE_CHECKING:
    from plsh_cli.console import Steps
    from plsh_cli.experiments.harness import Run
    from plsh_cli.experiments.train_model import Biased
    from plsh_cli.training.recipe import Recipe

#: Bytes of text of the corpora that the program knows, for plans made before anything is fetched: about.
CORPUS_BYTES = {"sotu": 12e6, "wikitext103": 537e6, "fineweb_edu": 4.5e10}
BYTE_VOCABULARY = 257
_CALIBRATION_TOKENS = 1024
_ASSUMED_VOCABULARY, _BYTES_PER_TOKEN = 50_000, 4.4


def plan(cfg: TrainCommand) -> dict[str, object]:
    """Sizes and memory of a run. Raises UserError for what cannot run, such as more memory than there is."""
    from plsh_cli.training import cost, scratch

    train_model.check_lengths(cfg)
    device = chosen_device(cfg.device)
    _check_bf16(cfg)
    config = train_model.configuration(cfg, None, vocabulary(cfg))
    total, multiplying = scratch.parameters(config)
    pairs = _pairs(cfg)
    per_step = tokens_per_step(cfg)
    flops = cost.step_flops(config, multiplying, per_step, cfg.train.context, pairs)
    memory = _memory(cfg, config, total)
    steps = steps_of(cfg)
    parts = ", ".join(f"{name} {gibibytes(size)}" for name, size in memory.items())
    known = steps is not None
    return {
        "model": f"{cfg.model.name}: {total:,} parameters, {multiplying:,} of them multiply every token",
        "bias": f"{cfg.bias.name}, RoPE {'kept' if train_model.rope(cfg) == 'keep' else 'dropped'}, "
        f"{pairs / config.num_attention_heads / cfg.train.context:.0f} keys scored per token and head",
        "steps": f"{steps:,} of {per_step:,} tokens"
        if known
        else f"of {per_step:,} tokens, {cfg.train.epochs:g} epochs",
        "tokens": f"about {steps * per_step:,}" if known else "as many as the corpus has",
        "operations": f"{flops:.3g} per step" + (f", {flops * steps:.3g} in all" if known else ""),
        "memory": f"about {gibibytes(sum(memory.values()))} ({parts})",
        "device": f"{device}, {ranks.count()} process{'es' if ranks.count() > 1 else ''}",
    }


def check_fit(cfg: TrainCommand) -> None:
    """Raise UserError where the run needs more memory than there is."""
    from plsh_cli.training import scratch

    config = train_model.configuration(cfg, None, vocabulary(cfg))
    total, _ = scratch.parameters(config)
    _check_memory(cfg, sum(_memory(cfg, config, total).values()), chosen_device(cfg.device))


def calibrate(cfg: TrainCommand) -> dict[str, object]:
    """About how long a run takes: one forward and backward pass of a model cut to one layer, and the matrix rate."""
    from plsh_cli.training import cost, scratch, together

    device = chosen_device(cfg.device)
    together.share_cores(cfg.train.threads)
    rate = matmul_rate(cfg, device)
    config = train_model.configuration(cfg, None, vocabulary(cfg))
    _, multiplying = scratch.parameters(config)
    pairs = _pairs(cfg)
    flops = cost.step_flops(config, multiplying, tokens_per_step(cfg), cfg.train.context, pairs) / ranks.count()
    share = _measured_share(cfg, device, rate)
    steps = steps_of(cfg)
    seconds = flops / (rate * share)
    line = f"about {seconds:.3g} s per step"
    if steps is not None:
        line += f", {clock(seconds * steps)} in all without held-out losses and the final evaluation"
    measured = (
        f"{rate / 1e9:,.0f} GFLOP/s in a matrix product here, {100 * share:.0f} % of it in one layer of this model"
    )
    return {"time": f"{line} ({measured})"}


def recipe(cfg: TrainCommand) -> Recipe:
    """The settings as the training room takes them."""
    from plsh_cli.training.recipe import Recipe

    own = {
        name: getattr(cfg.train, name) for name in Recipe.__dataclass_fields__ if name in type(cfg.train).model_fields
    }
    return Recipe(**{**own, "betas": tuple(cfg.train.betas)}, eval_batch=cfg.train.batch)


def progress(
    cfg: TrainCommand, run: Run, biased: Biased, device: str, display: Steps, span: tuple[int, int]
) -> Progress:
    """What completes and shows the records of steps; span: the steps behind a resumed run, and all of them."""
    from plsh_cli.training import cost, scratch
    from plsh_cli.training.statistics import draw_statistics

    config = biased.model.config.get_text_config()
    heads, context = config.num_attention_heads, cfg.train.context
    _, multiplying = scratch.parameters(config)
    fixed = _pairs(cfg)

    def statistics() -> dict[str, float]:
        return draw_statistics(biased.draws.last, heads, context) if biased.draws else {}

    def flops() -> float:
        return cost.step_flops(config, multiplying, tokens_per_step(cfg), context, fixed)

    return Progress(
        total=span[1],
        first=span[0],
        tokens=tokens_per_step(cfg),
        flops=flops,
        rate=matmul_rate(cfg, device) * ranks.count(),
        statistics=statistics,
        log=run.log,
        display=display,
    )


def chosen_device(device: str) -> str:
    """The torch device that `auto` stands for: the fastest there is. Raises UserError for one that is not there."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    there = {"cpu": True, "mps": torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}
    if not there[device.partition(":")[0]]:
        raise UserError("device", device, "is not there; use auto or cpu", "--device")
    return device


def vocabulary(cfg: TrainCommand) -> int:
    """The ids of the model, before its tokenizer is there; a guess where only the tokenizer knows."""
    assert cfg.model.architecture is not None
    given = cfg.model.architecture.vocab_size
    if given is not None:
        return given
    return BYTE_VOCABULARY if cfg.model.architecture.tokenizer == "bytes" else _ASSUMED_VOCABULARY


def tokens_per_step(cfg: TrainCommand) -> int:
    """Tokens behind one optimiser step, of all processes."""
    return cfg.train.context * cfg.train.batch * cfg.train.accumulate * ranks.count()


def steps_of(cfg: TrainCommand) -> int | None:
    """The optimiser steps; for epochs of a corpus of known size about so many, None where it is unknown."""
    if cfg.train.steps is not None:
        return cfg.train.steps
    size = CORPUS_BYTES.get(cfg.data.name)
    if size is None or cfg.train.epochs is None or cfg.model.architecture is None:
        return None
    per_token = 1.0 if cfg.model.architecture.tokenizer == "bytes" else _BYTES_PER_TOKEN
    # WikiText comes with a held-out part of its own.
    trained = 1.0 if cfg.data.name == "wikitext103" else 1.0 - cfg.train.heldout
    return max(1, round(cfg.train.epochs * size * trained / per_token / tokens_per_step(cfg)))


def matmul_rate(cfg: TrainCommand, device: str) -> float:
    """Operations per second of a matrix product in the type that the model computes in."""
    from plsh_cli.training import cost

    return cost.matmul_rate(device, "bfloat16" if cfg.train.bf16 else cfg.model.dtype)


def _pairs(cfg: TrainCommand, length: int | None = None) -> int:
    """The pairs of all heads of a layer in one window, by default of the training length."""
    from plsh_cli.config.schema.biases import OriginalBias
    from plsh_cli.training import cost

    assert cfg.model.architecture is not None
    heads, context = cfg.model.architecture.num_attention_heads, length or cfg.train.context
    bias = None if isinstance(cfg.bias, OriginalBias) else train_model.bias_for(cfg, context, "step", 0)
    return cost.attended_pairs(bias, heads, context)


def _memory(cfg: TrainCommand, config: Any, total: int) -> dict[str, float]:
    from plsh_cli.training import cost

    weight = {"float32": 4, "bfloat16": 2, "float16": 2}[cfg.model.dtype]
    made = cost.step_bytes(
        config,
        total,
        cfg.train.batch * cfg.train.context,
        weight_bytes=weight,
        compute_bytes=2 if cfg.train.bf16 else weight,
        checkpointing=cfg.train.gradient_checkpointing,
    )
    if cfg.train.fsdp:
        for name in ("weights", "gradients", "optimiser"):
            made[name] /= ranks.count()
    return made


def _check_memory(cfg: TrainCommand, needed: float, device: str) -> None:
    import torch

    available = available_bytes() if device == "cpu" else None
    if device.startswith("cuda"):
        available = torch.cuda.mem_get_info(device)[0]
    # Processes of one machine share its memory; on GPUs each has its own.
    here = needed * (ranks.count() if device == "cpu" else 1)
    if available is not None and here > available:
        allowed = (
            f"needs about {gibibytes(here)}, {gibibytes(available)} are available; use a smaller train.batch (with "
            f"more train.accumulate), train.context or model, or train.gradient_checkpointing=true"
        )
        raise UserError("train.batch", cfg.train.batch, allowed, "train.batch=...")


def _check_bf16(cfg: TrainCommand) -> None:
    if cfg.model.dtype == "float16":
        allowed = "must be float32 or bfloat16: AdamW's averages need bfloat16's range"
        raise UserError("model.dtype", cfg.model.dtype, allowed, "model.dtype=...")


def _measured_share(cfg: TrainCommand, device: str, rate: float) -> float:
    """The share of the matrix rate that one layer of the model reaches in a pass over a short window and back."""
    import torch

    from plsh_cli.training import cost, scratch

    config = train_model.configuration(cfg, None, 512)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    model = scratch.build(config, cfg.model.dtype, cfg.seed).to(device).train()
    biased = train_model.under_bias(model, cfg)
    length = min(cfg.train.context, _CALIBRATION_TOKENS)
    tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
    _, multiplying = scratch.parameters(config)
    flops = cost.step_flops(config, multiplying, length, length, _pairs(cfg, length))

    def step() -> None:
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=cfg.train.bf16):
            biased.model(input_ids=tokens, labels=tokens).loss.backward()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return min(1.0, flops / _best_seconds(step) / rate)


def _best_seconds(step: Callable[[], None], turns: int = 4, enough: float = 20.0) -> float:
    """The shortest of a few runs after a warm-up, fewer where one takes long."""
    step()
    best, begin = float("inf"), time.perf_counter()
    for _ in range(turns):
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begin > enough:
            break
    return best
