"""Which state belongs to which configuration: transformers gives its mask functions nothing else to tell models apart.

A configuration without one, but with attn_implementation="plsh", gets the bias that it describes in its field `plsh`:
that is how a saved model comes back.
"""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING

from plsh_cli.errors import MessageError
from plsh_cli.models.lengths import Lengths
from plsh_cli.models.running import State
from plsh_cli.models.saved import FIELD, UNDESCRIBED
from plsh_cli.models.spec import BiasSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# By identity: configurations are not hashable. Entries go with their configuration.
_STATES: dict[int, tuple[weakref.ref, State]] = {}


def find_state(config: PreTrainedConfig) -> State | None:
    """Return the state of the configuration, None if it has none yet."""
    return _STATES.get(id(config), (None, None))[1]


def set_state(config: PreTrainedConfig, state: State | None) -> None:
    """Give the configuration a state; None takes it away."""
    key = id(config)
    if state is None:
        _STATES.pop(key, None)
        return
    _STATES[key] = (weakref.ref(config, lambda _: _STATES.pop(key, None)), state)


def state_of(config: PreTrainedConfig) -> State:
    """Return the state of the configuration, made from its description where there is none yet.

    Without a description: positional LSH with the defaults of `BiasSpec` (10 draws per head, seed 0, ALiBi's slopes),
    and a warning that says so. Raises MessageError for draws that were saved without a description.
    """
    state = find_state(config)
    if state is None:
        state = _described(config)
        set_state(config, state)
    return state


def _described(config: PreTrainedConfig) -> State:
    values = getattr(config, FIELD, None)
    if values == UNDESCRIBED:
        raise MessageError(
            "this model ran under draws, or layers with different biases, that nobody described, "
            "so they cannot be made again: call plsh_cli.models.use_bias, with a BiasSpec if it is to be saved"
        )
    if values is None:
        spec = BiasSpec("plsh")
        warnings.warn(
            f'attn_implementation="plsh" without a bias: positional LSH with {spec.num_samples} draws per head '
            f"(seed {spec.seed}) and ALiBi's slopes, beside the model's own positions; choose one with "
            f"plsh_cli.models.use_bias",
            RuntimeWarning,
            stacklevel=2,
        )
    else:
        spec = BiasSpec.from_dict(values)
    capacity = spec.capacity or getattr(config, "max_position_embeddings", None)
    if capacity is None:
        raise MessageError("the number of positions to draw for is unknown: give BiasSpec a capacity")
    # Saved again, the model keeps its bias.
    vars(config).setdefault(FIELD, spec.to_dict())
    biases = tuple(spec.layers(config.num_attention_heads, capacity, config.num_hidden_layers))
    return State(biases, lengths=Lengths(biases if spec.serves_any_length else ()))
