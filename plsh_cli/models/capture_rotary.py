"""Queries and keys as they were before RoPE: what the model's own rotating function was given.

Whoever asks for them gets what that function got only if attention then works on what it gave back, to the bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plsh_cli.errors import MessageError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

#: The name that transformers' models give it.
_FUNCTION = "apply_rotary_pos_emb"


class Turned:
    """The last call of the rotating function: what it got and what it gave, queries and keys."""

    def __init__(self) -> None:
        self._last: tuple[torch.Tensor, ...] | None = None
        self._calls = 0

    def note(self, q: Any, k: Any, result: Any) -> None:
        """Remember a call."""
        self._calls += 1
        self._last = (q, k, *result) if isinstance(result, tuple) and len(result) == 2 else ()

    def forget(self) -> None:
        """Forget the call: the next layer may have no RoPE."""
        self._last = None

    @property
    def result(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What the call gave back, None where there was none."""
        return self._last[2:] if self._last else None

    def undone(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (b, h, n, d) queries and (b, g, n, d) keys before RoPE, given those after it.

        Where the function turns the first dims of a head only, the others are those of query and key. Without a call
        they come back as they are. Raises MessageError where the call was about other tensors.
        """
        import torch

        if self._last is None:
            return query, key
        before = []
        for place, now in enumerate((query, key)):
            was, became = self._last[place::2] if self._last else (now, None)
            turned = was.shape[-1]
            if became is None or became.shape[:-1] != now.shape[:-1] or not torch.equal(became, now[..., :turned]):
                _refuse()
            before.append(torch.cat([was, now[..., turned:]], dim=-1))
        return before[0], before[1]

    def check_called(self, model: PreTrainedModel) -> None:
        """Raise MessageError where the model has RoPE but no layer used the function."""
        buffers = (name for name, _ in model.named_buffers())
        if not self._calls and any(name.endswith("inv_freq") for name in buffers) and not _unused(model):
            _refuse()


@contextmanager
def watch_rotary(model: PreTrainedModel) -> Iterator[Turned]:
    """Within the body, every call of the rotating function beside the model's classes is noted."""
    turned = Turned()
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    own = {module: getattr(module, _FUNCTION) for module in modules if hasattr(module, _FUNCTION)}

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(q: Any, k: Any, *rest: Any, **options: Any) -> Any:
            result = function(q, k, *rest, **options)
            turned.note(q, k, result)
            return result

        return call

    try:
        for module, function in own.items():
            setattr(module, _FUNCTION, watched(function))
        yield turned
    finally:
        for module, function in own.items():
            setattr(module, _FUNCTION, function)
        turned.forget()


def _unused(model: PreTrainedModel) -> bool:
    """Whether the model has RoPE's frequencies without using them, as Falcon with ALiBi."""
    return bool(getattr(model.config.get_text_config(), "alibi", False))


def _refuse() -> None:
    raise MessageError(
        "queries and keys before RoPE cannot be told from those after it in this model: its RoPE is not of the kind "
        "that is known"
    )
