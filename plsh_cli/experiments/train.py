"""`plsh train`: a decoder from scratch under one positional bias, and what it reaches beyond its training length.

The rows of the result are those of its evaluation (see train_final.py); metrics.jsonl has every step (see
train_progress.py); the model is in model/, its checkpoints in checkpoints/.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import console, ranks, rundir
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import MessageError
from plsh_cli.experiments import train_data, train_final, train_model, train_plan
from plsh_cli.experiments.result import Result
from plsh_cli.experiments.train_progress import Progress

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run
    from plsh_cli.experiments.train_model import Biased
    from plsh_cli.training.trainer import PlshTrainer

MODEL, CHECKPOINTS = "model", "checkpoints"


def plan(cfg: TrainCommand) -> dict[str, object]:
    """What a run would do, without making anything. Raises UserError for what cannot run."""
    if cfg.study is not None:
        from plsh_cli.experiments import train_study

        return train_study.plan(cfg)
    return train_plan.plan(cfg)


def calibrate(cfg: TrainCommand) -> dict[str, object]:
    """The estimated time of a run, from a few measured operations; only for a dry run."""
    return {} if cfg.study is not None else train_plan.calibrate(cfg)


def check_fit(cfg: TrainCommand) -> None:
    """Raise UserError where the run needs more memory than there is."""
    if cfg.study is None:
        train_plan.check_fit(cfg)


def run(cfg: TrainCommand, run: Run) -> Result:
    """Train and evaluate; where the configuration has a study, all of its variants."""
    if cfg.study is not None:
        from plsh_cli.experiments import train_study

        return train_study.run(cfg, run)
    result = _session(cfg, run)
    assert result is not None
    return result


def follow(cfg: TrainCommand) -> None:
    """Take part in training as a process other than the main one."""
    if cfg.study is not None:
        raise MessageError("study: it runs its variants side by side itself; start it without torchrun")
    _session(cfg, None)


def _session(cfg: TrainCommand, run: Run | None) -> Result | None:
    """One run; `run` is None in processes other than the main one, which write and return nothing."""
    from plsh_cli.models import check_causal
    from plsh_cli.models.load import quiet
    from plsh_cli.training import scratch, together

    begin = time.perf_counter()
    say: Callable[[str], None] = run.say if run else _silent
    device = train_plan.chosen_device(cfg.device)
    with together.group(device == "cpu"), quiet():
        folder = Path(together.from_main(str(run.path.resolve()) if run else None))
        threads = together.share_cores(cfg.train.threads)
        data = train_data.prepare(cfg, say)
        held = train_final.held(cfg, data)
        config = train_model.configuration(cfg, data.tokenizer, data.vocab_size)
        biased = train_model.under_bias(scratch.build(config, cfg.model.dtype, cfg.seed), cfg)
        # Nothing is trained or measured on a model whose tokens see later ones.
        check_causal(biased.model, min(33, cfg.train.context))
        trainer, watch = _trainer(cfg, run, device, folder, data, biased)
        checkpoint = _checkpoint(cfg, run, folder, say)
        ready = time.perf_counter()
        with watch as progress:
            trainer.train(resume_from_checkpoint=checkpoint)
        trained = time.perf_counter()
        trainer.save_model(str(folder / MODEL))
        state = trainer.state
        if run is None:
            return None
        (folder / MODEL / "training_args.bin").unlink(missing_ok=True)
        rows = train_final.evaluate(cfg, run, held, biased, device)
    summary = _summary(cfg, data, biased, state, device)
    timing = {
        "prepare_seconds": ready - begin,
        "train_seconds": trained - ready,
        "final_seconds": time.perf_counter() - trained,
        "step_seconds_median": _median(progress.seconds),
        "threads": threads,
        "processes": ranks.count(),
    }
    return Result(rows, summary, timing)


def _trainer(
    cfg: TrainCommand, run: Run | None, device: str, folder: Path, data: train_data.Prepared, biased: Biased
) -> tuple[PlshTrainer, Any]:
    """The trainer, and a context in which its steps are shown."""
    from plsh_cli.training import recipe
    from plsh_cli.training.trainer import PlshTrainer

    arguments = recipe.arguments(train_plan.recipe(cfg), folder / CHECKPOINTS, cfg.seed, cpu=device == "cpu")
    watch = _Watch(cfg, run, device, data, biased)
    trainer = PlshTrainer(
        biased.model,
        arguments,
        train=data.train,
        held_out=data.held_out if cfg.train.eval_every is not None else None,
        collate=data.collate,
        tokenizer=data.tokenizer,
        seed=cfg.seed,
        keep=cfg.train.keep,
        draws=biased.draws,
        report=watch.report,
    )
    watch.trainer = trainer
    return trainer, watch


class _Watch:
    """Opens the display when training begins, since only then the number of steps is known."""

    def __init__(
        self, cfg: TrainCommand, run: Run | None, device: str, data: train_data.Prepared, biased: Biased
    ) -> None:
        self._cfg, self._run, self._device, self._data, self._biased = cfg, run, device, data, biased
        self.trainer: PlshTrainer | None = None
        self._progress: Progress | None = None
        self._display: Any = None

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._display is not None:
            self._display.__exit__(*error)

    @property
    def seconds(self) -> list[float]:
        """What every step took."""
        return self._progress.seconds if self._progress else []

    def report(self, record: dict[str, Any]) -> None:
        """Take the record of a step."""
        if self._progress is None:
            self._progress = self._open(record["step"] - 1)
        self._progress.report(record)

    def _open(self, first: int) -> Progress:
        assert self.trainer is not None
        assert self._run is not None
        total = self.trainer.state.max_steps
        self._display = console.steps(total, first, "plsh train")
        return train_plan.progress(
            self._cfg, self._run, self._biased, self._device, self._display.__enter__(), (first, total)
        )


def _checkpoint(cfg: TrainCommand, run: Run | None, folder: Path, say: Callable[[str], None]) -> str | None:
    """The checkpoint to go on from; metrics.jsonl forgets the steps after it, and damaged checkpoints are deleted."""
    import shutil

    from plsh_cli.training import checkpoints, together

    found: str | None = None
    if run is not None and run.resumed:
        latest, skipped = checkpoints.latest(folder / CHECKPOINTS)
        for sentence in skipped:
            say(sentence)
        for broken in checkpoints.every(folder / CHECKPOINTS)[: len(skipped)]:
            shutil.rmtree(broken, ignore_errors=True)
        step = checkpoints.step_of(latest) if latest else 0
        run.tracker.rewind(step)
        say(f"going on after step {step}" if latest else "no whole checkpoint: starting from the first step")
        if latest:
            found = str(latest)
            _say_schedule(cfg, latest, say)
    return together.from_main(found)


def _say_schedule(cfg: TrainCommand, checkpoint: Path, say: Callable[[str], None]) -> None:
    """Say what another number of steps does to the learning rate."""
    before = (rundir.read_json(checkpoint / "trainer_state.json") or {}).get("max_steps")
    if cfg.train.steps is None or before in (None, cfg.train.steps):
        return
    say(
        f"the {cfg.train.schedule} schedule is laid over {cfg.train.steps} steps instead of {before}, with its "
        f"warm-up: from here on the learning rate is that of a run of {cfg.train.steps} steps"
    )


def _summary(
    cfg: TrainCommand, data: train_data.Prepared, biased: Biased, state: Any, device: str
) -> dict[str, object]:
    """What was trained, on what, and how far."""
    losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
    return {
        "model": cfg.model.name,
        "bias": cfg.bias.name,
        "num_samples": getattr(cfg.bias, "num_samples", None),
        "sampler": getattr(cfg.bias, "sampler", None),
        "rope": train_model.rope(cfg),
        "context": cfg.train.context,
        "parameters": sum(weight.numel() for weight in biased.model.parameters()),
        "steps": state.global_step,
        "tokens": state.global_step * train_plan.tokens_per_step(cfg),
        "held_out_loss_last": losses[-1] if losses else None,
        "held_out_loss_best": min(losses) if losses else None,
        "model_kept": f"the best, step {state.best_global_step}" if cfg.train.best else "the last",
        "exact_heads": biased.replaced_heads,
        "attention_backend": biased.handle.backend if biased.handle else "the model's own",
        "attention_calls": biased.handle.calls if biased.handle else None,
        "device": device,
        "data": data.facts,
    }


def _median(values: list[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


def _silent(text: str) -> None:
    """Processes other than the main one print nothing."""
