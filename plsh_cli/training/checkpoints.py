"""Which checkpoints are whole: a list of its files with their sizes is the last thing that a checkpoint gets."""

from __future__ import annotations

import json
import os
from pathlib import Path

MARKER = "complete.json"
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
    try:
        sizes = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
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


def latest(parent: Path) -> tuple[Path | None, list[str]]:
    """The latest whole checkpoint in a folder, None without one, and a sentence for each later one that is not."""
    skipped = []
    for folder in every(parent):
        reason = trouble(folder)
        if not reason:
            return folder, skipped
        skipped.append(f"{folder.name} is skipped: {reason}")
    return None, skipped
