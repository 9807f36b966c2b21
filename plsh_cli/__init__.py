"""plsh: a command-line laboratory for Positional LSH (Wolfson & Wagner 2026, arXiv 2605.09472)."""

from __future__ import annotations

__version__ = "0.1.0"
