"""transformers' Trainer with a keyed order of the data, draws of its own for held-out losses, and whole checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from plsh_cli import disk
from plsh_cli.errors import PlshError
from plsh_cli.training import checkpoints
from plsh_cli.training.draws import Draws, RenewDraws
from plsh_cli.training.epochs import EpochEnds
from plsh_cli.training.held_out import HeldOut, window_losses
from plsh_cli.training.hf_trainer import PrinterCallback, ProgressCallback, Trainer, rotate_checkpoints
from plsh_cli.training.order import KeyedOrder
from plsh_cli.training.watch import Diverged, Watch

#: What the optimiser does that is not its state.
_SETTINGS = ("initial_lr", "betas", "eps", "weight_decay")


class SaveFailed(PlshError):
    """A checkpoint could not be written; the one before it is whole."""


class PlshTrainer(Trainer):
    """A Trainer for a model whose bias `draws` renews (None: the bias never changes).

    seed: of the order of the data. keep: how many checkpoints stay beside the best one. report: gets the record of
    every step (see `Watch`), on the main process only. Only the main process writes.
    """

    def __init__(
        self,
        model: Any,
        args: Any,
        *,
        train: Dataset,
        held_out: Dataset | None,
        collate: Callable[[list[Any]], dict[str, torch.Tensor]],
        tokenizer: Any,
        seed: int,
        keep: int,
        draws: Draws | None,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=held_out,
            data_collator=collate,
            processing_class=tokenizer,
        )
        for unwanted in (PrinterCallback, ProgressCallback):
            self.remove_callback(unwanted)
        self._order_seed, self._keep, self._draws = seed, keep, draws
        self._watch = Watch(report if args.process_index == 0 else _nothing)
        self._held_out = HeldOut()
        self.add_callback(EpochEnds())
        self.add_callback(self._watch)
        if draws is not None:
            self.add_callback(RenewDraws(draws))

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int]:
        batch = self.args.train_batch_size * self.args.world_size
        return KeyedOrder(len(self.train_dataset), self._order_seed, batch)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; a Diverged that comes out of it names the last whole checkpoint.

        Resumed after all of its steps it trains nothing, and only takes the best checkpoint where that is asked for.
        """
        try:
            result = super().train(*args, **kwargs)
            self._check_weights()
            return result
        except Diverged as error:
            raise Diverged(f"{error}; {_kept(Path(self.args.output_dir))}") from error

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The held-out loss, under the same draws every time."""
        if self._draws is not None:
            self._draws.held_out()
        return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """As transformers does it, with the mean over all labels in place of one over batches."""
        self._held_out = HeldOut()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics[f"{metric_key_prefix}_loss"] = self._held_out.loss
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        """The loss of a batch; its windows are added to the held-out loss, those that only fill a batch up are not."""
        inputs = dict(self._prepare_inputs(inputs))
        labels = inputs.pop("shift_labels")
        inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            nats, counts = window_losses(model(**inputs).logits, labels)
        self._held_out.add(*self.accelerator.gather_for_metrics((nats, counts)))
        return nats.sum() / counts.sum().clamp(min=1), None, None

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train for an epoch; nothing is left to do where a resumed run has all of its steps already."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Take up the state of a checkpoint; the best one is looked for where the run is now, and has to be whole."""
        found = super()._init_training_state(*args, **kwargs)
        checkpoint = args[3] if len(args) > 3 else kwargs.get("resume_from_checkpoint")
        if checkpoint is not None and self.state.best_global_step:
            best, damage = checkpoints.best(Path(checkpoint))
            self.state.best_model_checkpoint = None if best is None else str(best)
            if damage:
                losses = checkpoints.held_out_losses(Path(checkpoint))
                self.state.best_global_step = None if best is None else checkpoints.step_of(best)
                self.state.best_metric = None if best is None else losses[checkpoints.step_of(best)]
        return found

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Count the tokens of a micro-batch of all processes, which are as many in each; checkpoints keep the sum."""
        self.state.num_input_tokens_seen += inputs["input_ids"].numel() * self.args.world_size

    def _check_weights(self) -> None:
        """Raise Diverged, in all processes, where a weight is not finite."""
        mine = (getattr(weight, "_local_tensor", weight) for weight in self.model.parameters())
        bad = torch.tensor(int(any(not bool(weight.isfinite().all()) for weight in mine)), device=self.args.device)
        if self.args.world_size > 1:
            torch.distributed.all_reduce(bad)
        if int(bad):
            raise Diverged(f"there are weights that are not finite after step {self.state.global_step}")

    def leave_autocast(self) -> None:
        """Take the trainer's autocast (bf16) off the model's forward pass, once training is over."""
        from accelerate.utils import extract_model_from_parallel

        extract_model_from_parallel(self.model, keep_fp32_wrapper=False)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, note that the checkpoint is complete, and only then delete older ones.

        Raises SaveFailed where it cannot be written; what was written of it is deleted. Raises Diverged, and saves
        nothing, where weights are not finite.
        """
        parent = Path(self._get_output_dir(trial=trial))
        folder = parent / f"{checkpoints.PREFIX}{self.state.global_step}"
        self._check_weights()
        self._watch.flush()
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                checkpoints.mark(folder)
        except Exception as error:
            reason = disk.reason(error, parent)
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)
            raise SaveFailed(f"{folder.name} could not be written ({reason}); {_kept(parent)}") from error
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(parent), save_total_limit=self._keep, best_model_checkpoint=best, use_mtime=False)
        self.accelerator.wait_for_everyone()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both, but keep what the configuration says now: a checkpoint brings back its own settings as well."""
        settings = [{key: group[key] for key in _SETTINGS if key in group} for group in self.optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        scheduler = self.lr_scheduler
        if checkpoint is None or not hasattr(scheduler, "lr_lambdas"):
            return
        scheduler.base_lrs = [float(group["initial_lr"]) for group in settings]
        rates = [
            base * f(scheduler.last_epoch) for base, f in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, own, rate in zip(self.optimizer.param_groups, settings, rates, strict=True):
            group.update(own, lr=rate)
        scheduler._last_lr = rates

    def _save_rng_state(self, output_dir: str) -> None:
        """Save the state of torch's generators of all processes from the main one."""
        state = {"cpu": torch.random.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = (
                torch.cuda.random.get_rng_state_all() if self.args.world_size > 1 else torch.cuda.get_rng_state()
            )
        states = [state]
        if self.args.world_size > 1:
            states = [None] * self.args.world_size
            torch.distributed.all_gather_object(states, state)
        if not self.args.should_save:
            return
        import random

        import numpy as np

        for rank, one in enumerate(states):
            # Nothing in a run draws from Python's or NumPy's global generators; Trainer wants to restore them.
            whole = {"python": random.getstate(), "numpy": np.random.get_state(), **one}
            name = "rng_state.pth" if self.args.world_size <= 1 else f"rng_state_{rank}.pth"
            torch.save(whole, Path(output_dir) / name)


def _kept(parent: Path) -> str:
    found, _ = checkpoints.latest(parent)
    return f"the last whole checkpoint is {found}" if found else "there is no checkpoint before it"


def _nothing(record: dict[str, Any]) -> None:
    """Processes other than the main one report nothing."""
