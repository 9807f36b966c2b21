"""A fine-tuning run of seconds: a random model of 113 thousand parameters in a folder, on the toy text."""

from __future__ import annotations

from pathlib import Path

from adapter_cases import save_base
from training_toy import TRAIN

SETTINGS = [
    *(text for text in TRAIN if not text.startswith("final.lengths")),
    *("train.bf16=false", "final.biases=[alibi]"),
]


def base(folder: Path, name: str = "llama", **changes) -> Path:
    """A model that reads bytes, with nine query over three key heads and 128 positions."""
    return save_base(folder, name, **changes)


def words(model: Path, texts: Path, steps: int, *more: str) -> list[str]:
    """The words of a toy run's command line after `plsh`; `more` takes the place of settings with the same key."""
    given = {text.partition("=")[0] for text in more}
    settings = [*SETTINGS, f"model.path={model}", "data=text", f"data.path={texts}", "logger.mode=disabled"]
    settings.append(f"train.steps={steps}")
    return ["finetune", *(text for text in settings if text.partition("=")[0] not in given), *more]
