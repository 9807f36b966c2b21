"""Which checkpoints are whole: a list of its files with their sizes is the last thing that a checkpoint gets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MARKER = "complete.json"
#: What transformers writes into every checkpoint about how far training has come.
STATE = "trainer_state.json"
PREFIX = "checkpoint-"


def mark(folder: Path) -> None:
    """Say that a checkpoint is complete, when all of its files are on the disk."""
    sizes = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARKER):
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
        sizes[file.relative_to(folder).as_posix()] = file.stat().st_size
    temporary = folder / f".{MARKER}"
    with open(temporary, "w", encoding="utf-8") as handle:
        json.dump(sizes, handle)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(folder / MARKER)


def trouble(folder: Path) -> str:
    """Why a checkpoint cannot be resumed from; "" where it is whole."""
    if not folder.is_dir():
        return "it is gone"
    sizes = _read_object(folder / MARKER)
    if not sizes or not all(isinstance(size, int) for size in sizes.values()):
        return "it was not finished"
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes in place of {size}"
    return ""


def step_of(folder: Path) -> int:
    """The optimiser steps behind a checkpoint, from its name."""
    return int(folder.name.removeprefix(PREFIX))


def every(parent: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, the latest first."""
    found = [path for path in parent.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=step_of, reverse=True)


def best(checkpoint: Path) -> tuple[Path | None, str]:
    """The checkpoint of the smallest held-out loss so far as `checkpoint` has it on record, and "".

    It is looked for beside `checkpoint`. Where it is damaged: the best of the whole ones, None without one, and a
    sentence that says so. None and "" where none is on record.
    """
    step = _read_object(checkpoint / STATE).get("best_global_step")
    if not step:
        return None, ""
    folder = checkpoint.parent / f"{PREFIX}{step}"
    reason = trouble(folder)
    if not reason:
        return folder, ""
    losses = held_out_losses(checkpoint)
    whole = [one for one in every(checkpoint.parent) if step_of(one) in losses and not trouble(one)]
    found = min(whole, key=lambda one: losses[step_of(one)], default=None)
    instead = f"{found.name} takes its place" if found else "the best is looked for from here on"
    return found, f"{folder.name}, the best so far, cannot be used: {reason}; {instead}"


def held_out_losses(checkpoint: Path) -> dict[int, float]:
    """The held-out losses that a checkpoint has on record, by step."""
    history = _read_object(checkpoint / STATE).get("log_history", [])
    return {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}


def latest(parent: Path) -> tuple[Path | None, list[str]]:
    """The latest whole checkpoint in a folder, None without one, and a sentence for each later one that is not."""
    skipped = []
    for folder in every(parent):
        reason = trouble(folder)
        if not reason:
            return folder, skipped
        skipped.append(f"{folder.name} is skipped: {reason}")
    return None, skipped


def _read_object(file: Path) -> dict[str, Any]:
    """What a JSON file holds; empty where it cannot be read or holds something else than an object."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
