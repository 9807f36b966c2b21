"""Figures and tables of runs: reads run folders only, never recomputes."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


def draw(run_path: Path) -> list[Path]:
    """Draw the figures of a finished run into its figures/ folder, each as PNG and SVG; the files, in order.

    Reads result.json and the run's arrays. A command without figures gives an empty list. A figure that cannot be
    drawn does not lose the run: its traceback is in figures/failed.txt. Only trouble with the files themselves, such
    as a full disk, is raised (OSError).
    """
    from plsh_cli.report import style

    result = json.loads((run_path / "result.json").read_text(encoding="utf-8"))
    folder = run_path / "figures"
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
    from plsh_cli.report import approx_tables, attn_error_tables, bench_matrix_tables

    makers = {
        "approx": approx_tables.tables,
        "attn_error": attn_error_tables.tables,
        "bench_matrix": bench_matrix_tables.tables,
    }
    return list(makers[result["command"]](result)) if result["command"] in makers else []


def _figures(run_path: Path, result: Mapping[str, Any]) -> Mapping[str, Callable[[], Figure]]:
    from plsh_cli.report import approx_figures, attn_error_figures, bench_matrix_figures

    makers = {
        "approx": approx_figures.figures,
        "attn_error": attn_error_figures.figures,
        "bench_matrix": bench_matrix_figures.figures,
    }
    return makers[result["command"]](run_path, result) if result["command"] in makers else {}
