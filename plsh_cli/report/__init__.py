"""Figures and tables of runs: reads run folders only, never recomputes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


def draw(run_path: Path) -> list[Path]:
    """Draw the figures of a finished run into its figures/ folder, each as PNG and SVG; the files, in order.

    Reads result.json and the run's arrays; otherwise as `draw_result`.
    """
    result = json.loads((run_path / "result.json").read_text(encoding="utf-8"))
    return draw_result(run_path, result, run_path / "figures")


def draw_result(run_path: Path, result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the figures of a result into `folder`, each as PNG and SVG; the files, in order.

    A command without figures gives an empty list. A figure that cannot be drawn does not lose the run: its traceback
    is in failed.txt beside the others. Only trouble with the files themselves, such as a full disk, is raised
    (OSError).
    """
    from plsh_cli.report import style

    files: list[Path] = []
    failures: list[str] = []
    with style.look():
        for name, make in _figures(run_path, result).items():
            try:
                files += style.save(make(), folder, name)
            except OSError:
                raise
            except Exception:
                failures.append(f"{name}\n{traceback.format_exc()}")
    note = folder / "failed.txt"
    if failures:
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text("\n".join(failures), encoding="utf-8")
    else:
        note.unlink(missing_ok=True)
    return files


def tables(result: Mapping[str, Any]) -> list[RenderableType]:
    """The tables of a result (the content of result.json) for the terminal; they adapt to its width up to 100."""
    maker = _maker(result["command"], "tables")
    return [] if maker is None else list(maker.tables(result))


def _figures(run_path: Path, result: Mapping[str, Any]) -> Mapping[str, Callable[[], Figure]]:
    maker = _maker(result["command"], "figures")
    return {} if maker is None else maker.figures(run_path, result)


def _maker(command: str, what: str) -> ModuleType | None:
    """The module with a command's tables or figures, None where it has none."""
    name = f"plsh_cli.report.{command}_{what}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
