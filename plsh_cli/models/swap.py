"""Running a causal language model of transformers under any bias of `plsh_cli.attention`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from plsh_cli.attention import BACKENDS
from plsh_cli.attention.bias import Bias
from plsh_cli.errors import MessageError
from plsh_cli.models import interface, saved
from plsh_cli.models.lengths import Lengths, check_heads
from plsh_cli.models.rope import drop_rope
from plsh_cli.models.running import State
from plsh_cli.models.saved import FIELD, UNDESCRIBED
from plsh_cli.models.spec import NAMES, BiasSpec, describe_layers
from plsh_cli.models.states import find_state, set_state, state_of

if TYPE_CHECKING:
    from types import TracebackType

    from transformers import PreTrainedConfig, PreTrainedModel

# Logits of earlier tokens may differ by rounding only, relative to the largest one.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}
_LOW_PRECISION_ROUNDING = 1e-2


class BiasHandle:
    """A model under a bias: `set` changes it, `remove` (or leaving a `with` block) brings back what was there before.

    backend: the backends that have computed so far ("fused", "blocks", ..), joined by "+", None before the first call.
    calls: how many times; at least one per layer and forward pass, so 0 means that the attention was never asked.
    """

    def __init__(self, model: PreTrainedModel, state: State) -> None:
        self.model = model
        #: What `remove` does, last first.
        self.undo: list[Callable[[], None]] = []
        self._state = state

    @property
    def bias(self) -> tuple[Bias, ...]:
        """The bias of each layer, or one for all."""
        return self._state.biases

    @property
    def calls(self) -> int:
        return self._state.backends.total()

    @property
    def backend(self) -> str | None:
        return "+".join(sorted(self._state.backends)) or None

    def set(self, bias: Bias | Sequence[Bias] | BiasSpec, *, spec: BiasSpec | None = None) -> None:
        """Take another bias from the next forward pass on, such as new draws for the next step.

        bias, spec: as for `use_bias`; what the configuration says of the bias changes with it, so draws set without
        `spec` have no description and do not come back when the model is saved. A pass that is already done, and whose
        activations are computed again in its backward pass, keeps its own bias.
        """
        biases, growing, described = _resolved(self.model, bias, spec)
        self._state.biases = biases
        self._state.lengths.clear()
        self._state.lengths.grow(growing)
        config = self.model.config.get_text_config()
        # After `remove` the configuration is the model's own again.
        if find_state(config) is self._state:
            _write_description(config, described)

    def remove(self) -> None:
        """Bring back the model's own attention, RoPE and configuration; a second time it does nothing."""
        while self.undo:
            self.undo.pop()()

    def __enter__(self) -> BiasHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def use_bias(
    model: PreTrainedModel,
    bias: Bias | Sequence[Bias] | BiasSpec,
    rope: Literal["keep", "drop"] = "keep",
    backend: str = "auto",
    *,
    spec: BiasSpec | None = None,
) -> BiasHandle:
    """Run the model under a bias, in place, until the handle is removed: forward, training, generation with a cache.

    bias: one for all layers, one per layer, or a BiasSpec, whose draws are made for its capacity (None: as many
    positions as the model takes). Draws for more positions than a call has are cut; for fewer, the call is a
    ValueError, unless a BiasSpec made them with real widths, i.i.d. or stratified: those serve any length. rope: "drop"
    takes out the model's RoPE, "keep" leaves its positions as they are. spec: what stands in the saved configuration
    for draws given as such; `save_pretrained` keeps RoPE and description, and `from_pretrained` brings both back where
    plsh_cli is imported, and fails where it is not.

    Packed documents, position_ids that begin anew for each, need use_cache=False: with a cache, transformers does not
    look at them and later documents see earlier ones. The blocks of plsh and fixed_blocks are counted through a packed
    row, so a document in it gets other blocks (of the same law) than alone; padding on the left is not counted.

    Raises MessageError for a model whose attention cannot be replaced (one that does not use transformers' attention
    interface, encoders and encoder-decoders), ValueError for a bias that does not fit and a model that has one already.
    """
    config = model.config.get_text_config()
    if rope not in ("keep", "drop"):
        raise ValueError(f'rope = {rope!r}: must be "keep" or "drop"')
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend = {backend!r}: must be auto or one of {', '.join(BACKENDS)}")
    _check_model(model)
    if (old := find_state(config)) is not None and old.modules:
        raise ValueError(
            "model: it, or another model with the same configuration object, has a bias already; "
            "use that handle's set, or remove it first"
        )
    biases, growing, described = _resolved(model, bias, spec)
    state = State(biases, backend, weakref.WeakSet(model.modules()), lengths=Lengths(growing))
    handle = BiasHandle(model, state)
    try:
        if rope == "drop":
            handle.undo.append(drop_rope(model))
        handle.undo.append(_enter_configuration(model, described))
        set_state(config, state)
        handle.undo.append(lambda: set_state(config, old))
        handle.undo.append(_switch(model))
    except BaseException:
        handle.remove()
        raise
    return handle


def handle_of(model: PreTrainedModel) -> BiasHandle:
    """Return a handle of a model that was loaded with attn_implementation="plsh"; its `remove` does nothing.

    Raises ValueError for a model under another implementation.
    """
    config = model.config.get_text_config()
    if config._attn_implementation != interface.NAME:
        raise ValueError(f"model: its attention is {config._attn_implementation}, not {interface.NAME}")
    return BiasHandle(model, state_of(config))


def check_causal(model: PreTrainedModel, length: int = 33) -> None:
    """Raise MessageError unless logits are finite and the last of `length` tokens leaves all earlier ones unmoved.

    Two forward passes without a cache, on the model's device; run it before measuring anything.
    """
    training = model.training
    ids = torch.arange(length, device=model.device)[None] % max(2, model.config.get_text_config().vocab_size - 1)
    other = ids.clone()
    other[0, -1] = ids[0, -1] + 1
    try:
        model.eval()
        with torch.inference_mode():
            one, two = (model(input_ids=x, use_cache=False).logits[0] for x in (ids, other))
    finally:
        model.train(training)
    name = type(model).__name__
    if not bool(one.isfinite().all() and two.isfinite().all()):
        raise MessageError(
            f"{name}: its logits are not finite (NaN or infinity): its weights are damaged, or overflow in {one.dtype}"
        )
    moved = (one - two).abs().float().amax(dim=-1)
    allowed = _ROUNDING.get(one.dtype, _LOW_PRECISION_ROUNDING) * float(one.abs().max())
    if not bool((moved[:-1] <= allowed).all()):
        raise MessageError(
            f"{name} is not causal: another last token moves the logits of earlier ones by up to "
            f"{float(moved[:-1].max()):.3g}"
        )
    if float(moved[-1]) == 0.0:
        raise MessageError(f"{name} gives the same logits whatever its last token is: nothing can be measured on it")


def _check_model(model: PreTrainedModel) -> None:
    name, config = type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False) or getattr(config.get_text_config(), "is_causal", True) is False:
        raise MessageError(f"{name} is not a causal language model: its attention cannot be replaced")
    if _is_encoder(model):
        raise MessageError(f"{name} is an encoder, not a causal language model: its attention cannot be replaced")
    can = getattr(model, "_can_set_attn_implementation", None)
    if can is not None and not can():
        raise MessageError(
            f"{name} has an attention of its own that does not go through transformers' attention interface "
            f"(as BLOOM, MPT and Falcon do): it cannot be replaced"
        )
    if getattr(config, "alibi", False):
        raise MessageError(f"{name} adds an ALiBi of its own to the attention mask: its attention cannot be replaced")


def _is_encoder(model: PreTrainedModel) -> bool:
    """Whether all attention of the language model, as far as it says so, sees later tokens; vision towers may."""
    config = model.config.get_text_config()
    mine = (one for one in model.modules() if getattr(one, "config", None) is config)
    causal = [one.is_causal for one in mine if isinstance(getattr(one, "is_causal", None), bool)]
    return bool(causal) and not any(causal)


def _resolved(
    model: PreTrainedModel, bias: Bias | Sequence[Bias] | BiasSpec, spec: BiasSpec | None
) -> tuple[tuple[Bias, ...], tuple[Bias, ...], BiasSpec | None]:
    """Return one bias or one per layer, those whose draws serve any length, and the description, None without one."""
    if isinstance(bias, BiasSpec):
        biases = _checked(model, _built(model, bias))
        return biases, biases if bias.serves_any_length else (), bias
    biases = _checked(model, bias)
    return biases, (), spec or describe_layers(biases)


def _built(model: PreTrainedModel, spec: BiasSpec) -> list[Bias]:
    config = model.config.get_text_config()
    capacity = spec.capacity or getattr(config, "max_position_embeddings", None)
    if capacity is None:
        raise ValueError("spec: the model names no number of positions, give it a capacity")
    return spec.layers(config.num_attention_heads, capacity, config.num_hidden_layers)


def _checked(model: PreTrainedModel, bias: Bias | Sequence[Bias]) -> tuple[Bias, ...]:
    """Return one bias, or one per layer; ValueError for another number of layers or heads."""
    config = model.config.get_text_config()
    if isinstance(bias, str):
        named = f'BiasSpec("{bias}")' if bias in NAMES else "a BiasSpec"
        raise ValueError(f"bias = {bias!r}: must be a bias of plsh_cli.attention, one per layer, or {named}")
    biases = (bias,) if isinstance(bias, Bias) else tuple(bias)
    wrong = [one for one in biases if not isinstance(one, Bias)]
    if wrong:
        raise ValueError(f"bias = {wrong[0]!r}: must be a bias of plsh_cli.attention, one per layer, or a BiasSpec")
    if len(biases) not in (1, config.num_hidden_layers):
        raise ValueError(f"bias: {len(biases)} given, must be one for all or {config.num_hidden_layers}, one per layer")
    for one in biases:
        check_heads(one, config.num_attention_heads)
    return biases


def _switch(model: PreTrainedModel) -> Callable[[], None]:
    """Turn the language model's attention to ours; return what turns it back."""
    interface.register()
    saved.register()
    config, text = model.config, model.config.get_text_config()
    before = text._attn_implementation
    # In a model with several parts, the others (vision towers) keep theirs.
    part = next((name for name in config.sub_configs if getattr(config, name, None) is text), None)

    def turn(name: str) -> None:
        model.set_attn_implementation(name if part is None else {part: name})

    turn(interface.NAME)
    if text._attn_implementation != interface.NAME:
        raise MessageError(f"{type(model).__name__} does not let its attention be replaced")
    return lambda: turn(before)


def _enter_configuration(model: PreTrainedModel, spec: BiasSpec | None) -> Callable[[], None]:
    """Write down what the saved configuration needs to bring the bias back; return what takes it out again."""
    config = model.config.get_text_config()
    before = {FIELD: vars(config)[FIELD]} if FIELD in vars(config) else {}
    _write_description(config, spec)

    def undo() -> None:
        vars(config).pop(FIELD, None)
        vars(config).update(before)

    return undo


def _write_description(config: PreTrainedConfig, spec: BiasSpec | None) -> None:
    vars(config)[FIELD] = UNDESCRIBED if spec is None else spec.to_dict()
