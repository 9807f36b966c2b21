"""The recipe of a run as transformers' TrainingArguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plsh_cli import ranks
from plsh_cli.positional.streams import generator


@dataclass(frozen=True)
class Recipe:
    """How to train. steps or epochs is None; intervals are steps, "epoch" or None; the rest as in conf/train.yaml."""

    steps: int | None
    epochs: float | None
    batch: int
    accumulate: int
    learning_rate: float
    schedule: str
    warmup: float
    betas: tuple[float, float]
    adam_eps: float
    weight_decay: float
    clip: float | None
    bf16: bool
    gradient_checkpointing: bool
    eval_every: int | str | None
    eval_batch: int
    save_every: int | str | None
    best: bool
    fsdp: bool


def arguments(recipe: Recipe, folder: Path, seed: int, *, cpu: bool) -> Any:
    """TrainingArguments for a recipe, with checkpoints in `folder`; nothing is reported but to callbacks."""
    from plsh_cli.training.hf_trainer import TrainingArguments

    steps = recipe.steps if recipe.steps is not None else -1
    evaluation, saving = _interval("eval", recipe.eval_every), _interval("save", recipe.save_every)
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        num_train_epochs=recipe.epochs if recipe.epochs is not None else 1.0,
        per_device_train_batch_size=recipe.batch,
        per_device_eval_batch_size=recipe.eval_batch,
        gradient_accumulation_steps=recipe.accumulate,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=_SCHEDULES[recipe.schedule],
        warmup_steps=recipe.warmup,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        adam_epsilon=recipe.adam_eps,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip if recipe.clip is not None else 0.0,
        bf16=recipe.bf16,
        activation_checkpointing=recipe.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if recipe.gradient_checkpointing else None,
        **evaluation,
        **saving,
        load_best_model_at_end=recipe.best,
        metric_for_best_model="eval_loss" if recipe.best else None,
        greater_is_better=False if recipe.best else None,
        logging_strategy="steps",
        logging_steps=1,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to="none",
        log_level="error",
        log_level_replica="error",
        prediction_loss_only=True,
        remove_unused_columns=False,
        dataloader_pin_memory=not cpu,
        # Dropout is what torch's own generator is for here; weights, data order and draws have their own streams.
        seed=int(generator(seed, "dropout").integers(2**31)),
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and ranks.count() > 1 else None,
        ddp_find_unused_parameters=False,
        fsdp=True if recipe.fsdp else None,
    )


_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


def _interval(what: str, every: int | str | None) -> dict[str, Any]:
    if every is None:
        return {f"{what}_strategy": "no"}
    return {f"{what}_strategy": "epoch"} if every == "epoch" else {f"{what}_strategy": "steps", f"{what}_steps": every}
