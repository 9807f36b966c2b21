"""About how long a training run takes, from a pass through one layer of its model; and what its steps show."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plsh_cli import ranks
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.experiments import train_model, train_plan
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.experiments.train_progress import Progress, clock
from plsh_cli.experiments.train_subject import Subject, subject_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from plsh_cli.console import Steps
    from plsh_cli.experiments.harness import Run
    from plsh_cli.experiments.train_model import Biased

_CALIBRATION_TOKENS, _CALIBRATION_FLOPS, _CALIBRATION_VOCABULARY = 1024, 2e11, 512


def calibrate(cfg: TrainingCommand) -> dict[str, object]:
    """About how long a run takes: one forward and backward pass of a model cut to one layer, and the matrix rate."""
    from plsh_cli.training import together

    subject, device = subject_of(cfg), chosen_device(cfg.device)
    config = subject.sizes()
    if config is None:
        return {}
    together.share_cores(cfg.train.threads)
    rate = matmul_rate(cfg, device)
    pairs = train_plan.pairs_of(cfg, config, cfg.train.context)
    flops = train_plan.flops_of(cfg, config, train_plan.counts_of(subject, config), pairs) / ranks.count()
    share = _measured_share(subject, config, device, rate)
    steps = train_plan.steps_of(cfg, subject)
    seconds = flops / (rate * share)
    line = f"about {seconds:.3g} s per step"
    if steps is not None:
        line += f", {clock(seconds * steps)} in all without held-out losses and the final evaluation"
    measured = (
        f"{rate / 1e9:,.0f} GFLOP/s in a matrix product here, {100 * share:.0f} % of it in one layer of this model"
    )
    return {"time": f"{line} ({measured})"}


def progress(
    subject: Subject, run: Run, biased: Biased, device: str, display: Steps, span: tuple[int, int]
) -> Progress:
    """What completes and shows the records of steps; span: the steps behind a resumed run, and all of them."""
    from plsh_cli.training.statistics import draw_statistics

    cfg, config = subject.cfg, biased.model.config
    heads, context = config.get_text_config().num_attention_heads, cfg.train.context
    pairs = train_plan.pairs_of(cfg, config, context)
    flops = train_plan.flops_of(cfg, config, train_plan.counts_of(subject, config), pairs)

    def statistics() -> dict[str, float]:
        return draw_statistics(biased.draws.last, heads, context) if biased.draws else {}

    return Progress(
        total=span[1],
        first=span[0],
        tokens=train_plan.tokens_per_step(cfg),
        flops=lambda: flops,
        rate=matmul_rate(cfg, device) * ranks.count(),
        statistics=statistics,
        log=run.log,
        display=display,
    )


def matmul_rate(cfg: TrainingCommand, device: str) -> float:
    """Operations per second of a matrix product in the type that the model computes in."""
    from plsh_cli.training import cost

    return cost.matmul_rate(device, "bfloat16" if cfg.train.bf16 else cfg.model.dtype)


def _measured_share(subject: Subject, whole: PreTrainedConfig, device: str, rate: float) -> float:
    """The share of the matrix rate that one layer of the model reaches in a pass over a short window and back."""
    import torch

    from plsh_cli.training import cost, scratch

    cfg, config = subject.cfg, _one_layer(whole)
    model = scratch.build(config, cfg.model.dtype, cfg.seed).to(device).train()
    counts = train_plan.counts_of(subject, config)
    biased = train_model.under_bias(model, cfg)
    trained = subject.trained(biased.model)
    most = max(64, int(_CALIBRATION_FLOPS / (6 * counts.multiplying)))
    length = min(cfg.train.context, _CALIBRATION_TOKENS, most)
    tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
    pairs = train_plan.pairs_of(cfg, config, length)
    flops = cost.step_flops(config, counts.multiplying, length, length, pairs, counts.adapter)

    def step() -> None:
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=cfg.train.bf16):
            trained(input_ids=tokens, labels=tokens).loss.backward()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return min(1.0, flops / _best_seconds(step) / rate)


def _one_layer(whole: PreTrainedConfig) -> Any:
    """The configuration of a model's text part cut to one layer and a small vocabulary."""
    config = copy.deepcopy(whole)
    text = config.get_text_config()
    text.vocab_size, text.num_hidden_layers = _CALIBRATION_VOCABULARY, 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(text, name, None)
    return config


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
