"""Figures and tables of runs: reads run folders only, never recomputes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def draw(run_path: Path) -> list[Path]:
    """Draw the figures of a finished run into its figures/ folder, each as PNG and SVG; the files, in order.

    Reads result.json and the run's arrays. A command without figures gives an empty list.
    """
    result = json.loads((run_path / "result.json").read_text(encoding="utf-8"))
    return _figures(result["command"], run_path, result)


def tables(result: Mapping[str, Any]) -> list[Table]:
    """The tables of a result (the content of result.json) for the terminal, readable at 100 columns."""
    from plsh_cli.report import approx_tables, attn_error_tables, bench_matrix_tables

    makers = {
        "approx": approx_tables.tables,
        "attn_error": attn_error_tables.tables,
        "bench_matrix": bench_matrix_tables.tables,
    }
    return makers[result["command"]](result) if result["command"] in makers else []


def _figures(command: str, run_path: Path, result: Mapping[str, Any]) -> list[Path]:
    from plsh_cli.report import approx_figures, attn_error_figures, bench_matrix_figures

    makers = {
        "approx": approx_figures.draw,
        "attn_error": attn_error_figures.draw,
        "bench_matrix": bench_matrix_figures.draw,
    }
    return makers[command](run_path, result) if command in makers else []
