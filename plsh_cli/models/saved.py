"""What a saved configuration says of a bias, written by every save of a model that runs under one.

transformers takes `attn_implementation` out of a configuration that it loads and leaves it out of one that it saves; a
model that was loaded under its bias and saved again would come back without it.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: The attention implementation, as transformers and saved configurations name it.
NAME = "plsh"
#: The field of a model's configuration that describes its bias, and what stands there for draws without a description.
FIELD = "plsh"
UNDESCRIBED = {"name": "undescribed"}

_MARK = "plsh_writes_attention"
# By identity: configurations are not hashable.
_WARNED: dict[int, weakref.ref] = {}


def register() -> None:
    """Have every configuration whose attention is ours say so when it is saved; a second time it changes nothing."""
    from transformers import PreTrainedConfig

    plain = PreTrainedConfig.to_dict
    if hasattr(plain, _MARK):
        return

    @functools.wraps(plain)
    def to_dict(self: PreTrainedConfig) -> dict[str, Any]:
        values = plain(self)
        parts = [part for part in getattr(self, "sub_configs", ()) if _runs_ours(getattr(self, part, None))]
        for part in parts:
            # Only the whole model's is read when it is loaded.
            values[part].pop("attn_implementation", None)
        if _runs_ours(self):
            values["attn_implementation"] = NAME
        elif parts:
            values["attn_implementation"] = dict.fromkeys(parts, NAME)
        return values

    setattr(to_dict, _MARK, True)
    PreTrainedConfig.to_dict = to_dict


def _runs_ours(config: PreTrainedConfig | None) -> bool:
    return getattr(config, "_attn_implementation", None) == NAME


def warn_if_left_out(config: PreTrainedConfig) -> None:
    """Warn, once per configuration, where a model has a bias instead of its RoPE but another attention was asked for.

    It would run without any positions; NoBias needs no warning.
    """
    described = getattr(config, FIELD, None)
    asked = getattr(config, "_attn_implementation", None)
    if described is None or described.get("name") == "none" or asked == NAME or id(config) in _WARNED:
        return
    key = id(config)
    _WARNED[key] = weakref.ref(config, lambda _: _WARNED.pop(key, None))
    warnings.warn(
        f"this model was saved under the bias {described['name']} with its RoPE dropped, and "
        f'attn_implementation="{asked}" leaves the bias out: it runs without any positions; load it with '
        f'attn_implementation="{NAME}", or give it a bias with plsh_cli.models.use_bias',
        RuntimeWarning,
        stacklevel=2,
    )
