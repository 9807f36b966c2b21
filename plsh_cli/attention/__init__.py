"""Attention under a positional bias, with one signature for every bias and backend: see `attention`."""

from __future__ import annotations

from plsh_cli.attention.api import BACKENDS, attention, choose_backend
from plsh_cli.attention.bias import Alibi, FixedBlocks, NoBias, Plsh, Window

__all__ = ["BACKENDS", "Alibi", "FixedBlocks", "NoBias", "Plsh", "Window", "attention", "choose_backend"]
