"""What is due at the end of an epoch, done as part of the epoch's last step."""

from __future__ import annotations

from typing import Any

from plsh_cli.training.hf_trainer import TrainerCallback


class EpochEnds(TrainerCallback):
    """Moves what is due after every epoch to the end of the epoch's last step, and of the very last step.

    transformers does it after the step is over and, where checkpoints are due at that step too, saved: a held-out loss
    would come after the step's record and be missing in its checkpoint. Add it after transformers' own callbacks.
    """

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # k + steps / steps is a whole number in floating point too, and no other fraction gives one.
        if state.epoch != int(state.epoch) and state.global_step < state.max_steps:
            return
        control.should_evaluate = control.should_evaluate or args.eval_strategy == "epoch"
        control.should_save = control.should_save or args.save_strategy == "epoch"

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate = control.should_save = False
