"""transformers' Trainer and what belongs to it, imported without a word.

With WANDB_MODE=offline the import itself prints a line about W&B, also where W&B is switched off.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout

with redirect_stdout(io.StringIO()):
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import rotate_checkpoints

__all__ = [
    "PrinterCallback",
    "ProgressCallback",
    "Trainer",
    "TrainerCallback",
    "TrainingArguments",
    "rotate_checkpoints",
]
