"""What a training run needs before it starts: parameters, tokens, operations and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli import ranks
from plsh_cli.config.schema.biases import OriginalBias
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import train_data, train_model
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.train_subject import Subject, subject_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from plsh_cli.training.recipe import Recipe

#: Bytes of text of the corpora that the program knows, for plans made before anything is fetched: about.
CORPUS_BYTES = {"sotu": 12e6, "wikitext103": 537e6, "fineweb_edu": 4.5e10}


@dataclass(frozen=True)
class Counts:
    """Parameters of a model: all but an adapter's, those that multiply every token, an adapter's (None: none)."""

    total: int
    multiplying: int
    adapter: int | None


def plan(cfg: TrainingCommand) -> dict[str, object]:
    """Sizes and memory of a run. Raises UserError for what cannot run, MessageError as `Subject.sizes` does."""
    subject, device = subject_of(cfg), chosen_device(cfg.device)
    _check_dtype(cfg)
    train_data.check_source(cfg)
    config = subject.sizes()
    steps, per_step = steps_of(cfg, subject), tokens_per_step(cfg)
    known = steps is not None
    lengths = {
        "steps": f"{steps:,} of {per_step:,} tokens"
        if known
        else f"of {per_step:,} tokens, {cfg.train.epochs:g} epochs",
        "tokens": f"about {steps * per_step:,}" if known else "as many as the corpus has",
    }
    machine = {"device": f"{device}, {ranks.count()} process{'es' if ranks.count() > 1 else ''}"}
    if config is None:
        unknown = {"model": f"{cfg.model.path}: its size is known once it is fetched", "bias": cfg.bias.name}
        return {**unknown, **lengths, **machine}
    train_model.check_lengths(cfg, config)
    counts, pairs = counts_of(subject, config), pairs_of(cfg, config, cfg.train.context)
    flops = flops_of(cfg, config, counts, pairs)
    memory = _memory(cfg, config, counts)
    parts = ", ".join(f"{name} {gibibytes(size)}" for name, size in memory.items())
    keys = pairs / config.get_text_config().num_attention_heads / cfg.train.context
    return {
        "model": f"{cfg.model.path or cfg.model.name}: {_parameters(counts)}",
        "bias": f"{cfg.bias.name}, RoPE {'kept' if cfg.rope == 'keep' else 'dropped'}, "
        f"{keys:.0f} keys scored per token and head",
        **lengths,
        "operations": f"{flops:.3g} per step"
        + (f", {flops * steps:.3g} in all" if known else "")
        + (" (as if windows had no document mask; so has MFU)" if cfg.train.document_mask else ""),
        "memory": f"about {gibibytes(sum(memory.values()))} ({parts})",
        **machine,
    }


def check_fit(cfg: TrainingCommand, subject: Subject | None = None) -> None:
    """Raise UserError where the run needs more memory than there is, as far as its size is known, or more processes."""
    if cfg.train.fsdp and ranks.count() == 1:
        allowed = "needs several processes (torchrun --nproc-per-node N -m plsh_cli ...): this is one"
        raise UserError("train.fsdp", cfg.train.fsdp, allowed, "train.fsdp=false")
    subject = subject or subject_of(cfg)
    config = subject.sizes()
    if config is None:
        return
    needed = sum(_memory(cfg, config, counts_of(subject, config)).values())
    _check_memory(cfg, needed, chosen_device(cfg.device))


def less_memory(cfg: TrainingCommand) -> str:
    """What to change where memory has run out in a run, beside what is set already."""
    return f"use {', '.join(_less_memory(cfg))}; in the evaluations also a smaller final.batch or final.lengths"


def counts_of(subject: Subject, config: PreTrainedConfig) -> Counts:
    """How many parameters the model has, from its configuration; MessageError where its adapters do not fit it."""
    from plsh_cli.training import lora, scratch

    total, multiplying = scratch.parameters(config)
    recipe = subject.lora
    return Counts(total, multiplying, None if recipe is None else lora.adapter_parameters(config, recipe))


def pairs_of(cfg: TrainingCommand, config: PreTrainedConfig, length: int) -> int:
    """The pairs of all heads of a layer in one window of so many tokens."""
    from plsh_cli.training import cost

    heads = config.get_text_config().num_attention_heads
    original = isinstance(cfg.bias, OriginalBias)
    bias = None if original else train_model.bias_for(cfg, heads, length, "step", 0)
    return cost.attended_pairs(bias, heads, length)


def flops_of(cfg: TrainingCommand, config: PreTrainedConfig, counts: Counts, pairs: int) -> float:
    """The operations of an optimiser step of all processes."""
    from plsh_cli.training import cost

    context = cfg.train.context
    return cost.step_flops(config, counts.multiplying, tokens_per_step(cfg), context, pairs, counts.adapter)


def recipe(cfg: TrainingCommand) -> Recipe:
    """The settings as the training room takes them."""
    from plsh_cli.training.recipe import Recipe

    own = {
        name: getattr(cfg.train, name) for name in Recipe.__dataclass_fields__ if name in type(cfg.train).model_fields
    }
    return Recipe(**{**own, "betas": tuple(cfg.train.betas)}, eval_batch=cfg.train.batch)


def tokens_per_step(cfg: TrainingCommand) -> int:
    """Tokens behind one optimiser step, of all processes."""
    return cfg.train.context * cfg.train.batch * cfg.train.accumulate * ranks.count()


def steps_of(cfg: TrainingCommand, subject: Subject) -> int | None:
    """The optimiser steps; for epochs of a corpus of known size about so many, None where it is unknown."""
    if cfg.train.steps is not None:
        return cfg.train.steps
    size = CORPUS_BYTES.get(cfg.data.name)
    if size is None or cfg.train.epochs is None:
        return None
    # WikiText comes with a held-out part of its own.
    trained = 1.0 if cfg.data.name == "wikitext103" else 1.0 - cfg.train.heldout
    return max(1, round(cfg.train.epochs * size * trained / subject.bytes_per_token / tokens_per_step(cfg)))


def _parameters(counts: Counts) -> str:
    line = f"{counts.total:,} parameters, {counts.multiplying:,} of them multiply every token"
    return line if counts.adapter is None else f"{line}, frozen beside {counts.adapter:,} of an adapter"


def _memory(cfg: TrainingCommand, config: Any, counts: Counts) -> dict[str, float]:
    from plsh_cli.training import cost

    weight = {"float32": 4, "bfloat16": 2, "float16": 2}[cfg.model.dtype]
    made = cost.step_bytes(
        config,
        counts.total,
        cfg.train.batch * cfg.train.context,
        weight_bytes=weight,
        compute_bytes=2 if cfg.train.bf16 else weight,
        checkpointing=cfg.train.gradient_checkpointing,
        adapter=counts.adapter,
    )
    if cfg.train.fsdp:
        for name in ("weights", "gradients", "optimiser"):
            made[name] /= ranks.count()
    return made


def _check_memory(cfg: TrainingCommand, needed: float, device: str) -> None:
    import torch

    available = available_bytes() if device == "cpu" else None
    if device.startswith("cuda"):
        available = torch.cuda.mem_get_info(device)[0]
    # Processes of one machine share its memory; on GPUs each has its own.
    here = needed * (ranks.count() if device == "cpu" else 1)
    if available is not None and here > available:
        allowed = (
            f"needs about {gibibytes(here)}, {gibibytes(available)} are available; use {', '.join(_less_memory(cfg))}"
        )
        key = "batch" if cfg.train.batch > 1 else "context"
        raise UserError(f"train.{key}", getattr(cfg.train, key), allowed, f"train.{key}=...")


def _less_memory(cfg: TrainingCommand) -> list[str]:
    train, ways = cfg.train, ["a smaller train.context", "a smaller model"]
    if train.batch > 1:
        ways.insert(0, "a smaller train.batch (with more train.accumulate)")
    if not train.gradient_checkpointing:
        ways.append("train.gradient_checkpointing=true")
    if getattr(cfg, "lora", False) is None:
        ways.append("lora=default")
    if cfg.model.dtype == "float32":
        ways.append("model.dtype=bfloat16")
    return [*ways[:-1], f"or {ways[-1]}"]


def _check_dtype(cfg: TrainingCommand) -> None:
    if cfg.model.dtype == "float16":
        allowed = "must be float32 or bfloat16: AdamW's averages need bfloat16's range"
        raise UserError("model.dtype", cfg.model.dtype, allowed, "model.dtype=...")
