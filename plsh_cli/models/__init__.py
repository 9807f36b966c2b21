"""Models of transformers: loading them, running them under another bias, and taking out their Q, K and V."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_FROM = {
    "BiasHandle": "plsh_cli.models.swap",
    "BiasSpec": "plsh_cli.models.spec",
    "Captured": "plsh_cli.models.capture",
    "capture_qkv": "plsh_cli.models.capture",
    "check_causal": "plsh_cli.models.swap",
    "handle_of": "plsh_cli.models.swap",
    "load": "plsh_cli.models.restore",
    "use_bias": "plsh_cli.models.swap",
}

__all__ = sorted(_FROM)


def __getattr__(name: str) -> Any:
    """Imports torch only for those who ask."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM})
