"""One training run, of `plsh train` or `plsh finetune`: data, model, trainer, evaluation, saved files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import ranks, rundir
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.experiments import train_data, train_final, train_model, train_plan, train_text
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.experiments.memory import exhaustion_explained
from plsh_cli.experiments.result import Result
from plsh_cli.experiments.train_subject import Stage, Subject, subject_of
from plsh_cli.experiments.train_watch import Watched

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run
    from plsh_cli.experiments.train_final import Held
    from plsh_cli.experiments.train_model import Biased
    from plsh_cli.training.trainer import PlshTrainer

MODEL, CHECKPOINTS, BEFORE = "model", "checkpoints", "before.json"


@dataclass(frozen=True)
class _Session:
    """What the parts of a run share; run: None in processes other than the main one, which write and print nothing."""

    cfg: TrainingCommand
    subject: Subject
    run: Run | None
    folder: Path
    device: str
    say: Callable[[str], None]


def session(cfg: TrainingCommand, run: Run | None) -> Result | None:
    """Train and evaluate; the result, None in processes other than the main one (`run` is None there).

    Raises PlshError, with what to change, where memory runs out.
    """
    from plsh_cli.models.loading import quiet
    from plsh_cli.training import together

    device = chosen_device(cfg.device)
    with together.group(device == "cpu"), quiet(), exhaustion_explained(train_plan.less_memory(cfg)):
        folder = Path(together.from_main(str(run.path.resolve()) if run else None))
        return _train(_Session(cfg, subject_of(cfg), run, folder, device, run.say if run else _silent))


def _train(one: _Session) -> Result | None:
    from plsh_cli.training import together

    cfg, begin = one.cfg, time.perf_counter()
    threads = together.share_cores(cfg.train.threads)
    known = one.subject.sizes() is not None
    tokenizer, vocab_size = one.subject.tokenizer(one.say)
    if not known:
        # A model of the hub that had to be fetched first.
        train_plan.check_fit(cfg, one.subject)
    data = train_data.prepare(cfg, tokenizer, one.say)
    if one.run is not None:
        one.subject.note_base(one.run.folder, one.run.resumed)
        train_text.check(one.run.folder, {**data.facts, "documents": data.hashes}, one.run.resumed)
    held = train_final.held(cfg, data)
    biased, rows = _prepared(one, one.subject.model(tokenizer, vocab_size, one.say), held)
    _say_short_steps(one, data)
    trainer, watch = _trainer(one, data, biased)
    checkpoint = _checkpoint(one)
    ready = time.perf_counter()
    with watch as progress:
        trainer.train(resume_from_checkpoint=checkpoint)
    trained = time.perf_counter()
    trainer.save_model(str(one.folder / MODEL))
    state = trainer.state
    if one.run is None:
        return None
    (one.folder / MODEL / "training_args.bin").unlink(missing_ok=True)
    one.subject.finish(one.folder / MODEL, biased)
    # Its own type again, as `plsh eval` scores it: the trainer's autocast would stay around its forward pass.
    trainer.leave_autocast()
    rows += _scored(one, held, biased, "after")
    timing = {
        "prepare_seconds": ready - begin,
        "train_seconds": trained - ready,
        "final_seconds": time.perf_counter() - trained,
        "step_seconds_median": _median(progress.seconds),
        "threads": threads,
        "processes": ranks.count(),
    }
    return Result(rows, _summary(one, data, biased, state), timing)


def _prepared(one: _Session, model: Any, held: Held) -> tuple[Biased, list[dict[str, object]]]:
    """The model under its bias, and the rows of its scores before training."""
    from plsh_cli.models import check_causal

    cfg, known = one.cfg, _rows_before(one)
    variants = one.subject.variants("before") if one.run and known is None else []
    untouched = [variant for variant in variants if variant.section is None]
    rows: list[dict[str, object]] = []
    if variants:
        model.to(one.device)
    if untouched:
        check_causal(model, min(33, cfg.train.context))
        rows += _scored(one, held, train_model.Biased(model), "before", untouched)
    biased = train_model.under_bias(model, cfg)
    # Nothing is trained or measured on a model whose tokens see later ones.
    check_causal(biased.model, min(33, cfg.train.context))
    others = [variant for variant in variants if variant.section is not None]
    if others:
        rows += _scored(one, held, biased, "before", others)
    if variants and one.run:
        one.run.folder.write_json(BEFORE, {"final": _final(cfg), "rows": rows})
    if biased.draws is not None:
        biased.draws.held_out()
    return biased, rows if known is None else known


def _rows_before(one: _Session) -> list[dict[str, object]] | None:
    """The scores before training, where a resumed run has them already for the same settings."""
    if one.run is None or not one.run.resumed:
        return None
    found = rundir.read_json(one.folder / BEFORE) or {}
    return found["rows"] if found.get("final") == _final(one.cfg) else None


def _final(cfg: TrainingCommand) -> dict[str, Any]:
    return {**cfg.final.model_dump(mode="json"), "lengths": cfg.lengths, "bias": cfg.bias.model_dump(mode="json")}


def _scored(
    one: _Session, held: Held, biased: Biased, stage: Stage, variants: list[Any] | None = None
) -> list[dict[str, object]]:
    """The rows of one stage."""
    assert one.run is not None
    variants = one.subject.variants(stage) if variants is None else variants
    biased.model.to(one.device)
    title = "evaluation" if stage == "after" else "evaluation before training"
    rows = train_final.evaluate(one.cfg, one.run, held, biased, variants, title)
    return [{**one.subject.fields(stage), **row} for row in rows]


def _trainer(one: _Session, data: train_data.Prepared, biased: Biased) -> tuple[PlshTrainer, Watched]:
    """The trainer, and a context in which its steps are shown."""
    from plsh_cli.training import recipe
    from plsh_cli.training.trainer import PlshTrainer

    cfg = one.cfg
    arguments = recipe.arguments(train_plan.recipe(cfg), one.folder / CHECKPOINTS, cfg.seed, cpu=one.device == "cpu")
    watch = Watched(one.subject, one.run, one.device, biased)
    trainer = PlshTrainer(
        one.subject.trained(biased.model),
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


def _checkpoint(one: _Session) -> str | None:
    """The checkpoint to go on from; metrics.jsonl forgets the steps after it, and damaged checkpoints are deleted."""
    import shutil

    from plsh_cli.training import checkpoints, together

    found: str | None = None
    if one.run is not None and one.run.resumed:
        latest, skipped = checkpoints.latest(one.folder / CHECKPOINTS)
        for sentence in skipped:
            one.say(sentence)
        for broken in checkpoints.every(one.folder / CHECKPOINTS)[: len(skipped)]:
            shutil.rmtree(broken, ignore_errors=True)
        step = checkpoints.step_of(latest) if latest else 0
        one.run.tracker.rewind(step)
        one.say(f"going on after step {step}" if latest else "no whole checkpoint: starting from the first step")
        if latest:
            found = str(latest)
            _, damage = checkpoints.best(latest)
            if one.cfg.train.best and damage:
                one.say(damage)
            _say_schedule(one, latest)
    return together.from_main(found)


def _say_short_steps(one: _Session, data: train_data.Prepared) -> None:
    """Say that no step has as many batches as are asked for, where an epoch has fewer."""
    windows, train = data.facts.get("train_windows"), one.cfg.train
    batches = train.accumulate if windows is None else windows // (train.batch * ranks.count())
    if batches < train.accumulate:
        one.say(
            f"train.accumulate={train.accumulate}: an epoch has {batches} batches, and a step ends where its epoch "
            f"ends, so every step has {batches}"
        )


def _say_schedule(one: _Session, checkpoint: Path) -> None:
    """Say what another number of steps does to the learning rate."""
    from plsh_cli.training import checkpoints

    train, before = one.cfg.train, (rundir.read_json(checkpoint / "trainer_state.json") or {}).get("max_steps")
    if train.steps is None or before in (None, train.steps):
        return
    if (step := checkpoints.step_of(checkpoint)) >= train.steps:
        one.say(f"no step is left of {train.steps}: the model is that of step {step}, or the best before it")
        return
    one.say(
        f"the {train.schedule} schedule is laid over {train.steps} steps instead of {before}, with its warm-up: from "
        f"here on the learning rate is that of a run of {train.steps} steps"
    )


def _summary(one: _Session, data: train_data.Prepared, biased: Biased, state: Any) -> dict[str, object]:
    """What was trained, on what, and how far."""
    cfg = one.cfg
    losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
    return {
        **one.subject.facts(),
        "bias": cfg.bias.name,
        "num_samples": getattr(cfg.bias, "num_samples", None),
        "sampler": getattr(cfg.bias, "sampler", None),
        "kernel": getattr(cfg.bias, "kernel", None),
        "merge": getattr(cfg.bias, "merge", None),
        "rope": cfg.rope,
        "context": cfg.train.context,
        "parameters": sum(weight.numel() for weight in biased.model.parameters()),
        "steps": state.global_step,
        "tokens": state.num_input_tokens_seen,
        "held_out_loss_last": losses[-1] if losses else None,
        "held_out_loss_best": min(losses) if losses else None,
        "model_kept": f"the best, step {state.best_global_step}" if state.best_model_checkpoint else "the last",
        "exact_heads": list(biased.replaced_heads),
        "attention_backend": biased.handle.backend if biased.handle else "the model's own",
        "attention_calls_this_session": biased.handle.calls if biased.handle else None,
        "device": one.device,
        "data": data.facts,
    }


def _median(values: list[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


def _silent(text: str) -> None:
    """Processes other than the main one print nothing."""
