"""Which draws the model runs under at which step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from plsh_cli.attention.bias import Bias
from plsh_cli.training.hf_trainer import TrainerCallback

#: The bias with the draws of a key; the same key always gives the same draws.
MakeBias = Callable[..., Bias]
#: The key of draws that are made once for a whole run.
ONCE = "once"


class Handle(Protocol):
    """What `use_bias` returns: `set` changes the bias of all layers, or takes one per layer; spec describes it."""

    def set(self, bias: Any, *, spec: Any = None) -> None: ...


class Draws:
    """The bias of every step, and the one that held-out losses are measured under.

    Training draws are keyed ("step", step[, layer]): every process and micro-batch of a step sees the same, and so does
    the backward pass where it computes activations again. Held-out losses use one set of their own, so that they differ
    between steps by the weights alone. once: one set, keyed ("once"[, layer]), is all there is: the model learns under
    it and is measured under it. `last` is the bias of the latest training step. spec: how a model that is saved under
    any of these describes them.
    """

    def __init__(
        self, handle: Handle, make: MakeBias, *, layers: int, share_layers: bool, once: bool, spec: Any = None
    ) -> None:
        self._handle, self._make, self._spec = handle, make, spec
        self._layers = None if share_layers else layers
        self._once = once
        self._held_out: Any = None
        self._training: Any = None
        self.last: Any = None

    def training(self, step: int) -> None:
        """Set the draws of a step, counted from 0."""
        if not self._once:
            self._training = self._for("step", step)
        elif self._training is None:
            self._training = self._for(ONCE)
        self.last = self._training
        self._handle.set(self._training, spec=self._spec)

    def held_out(self) -> None:
        """Set the draws of held-out losses."""
        if self._held_out is None:
            self._held_out = self._for(ONCE if self._once else "held-out")
        self._handle.set(self._held_out, spec=self._spec)

    def _for(self, *key: str | int) -> Any:
        if self._layers is None:
            return self._make(*key)
        return [self._make(*key, layer) for layer in range(self._layers)]


class RenewDraws(TrainerCallback):
    """Sets the draws at the beginning of every optimiser step."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._draws.training(state.global_step)
