"""A plain description of a bias: numbers and names that a file can hold, and the bias made from them.

What is random is made again from seed and key, so a description is enough to repeat the draws anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any

from plsh_cli.positional import kernels as families
from plsh_cli.positional.kernels import Kernel, alibi_slopes
from plsh_cli.positional.partitions import PITCHES
from plsh_cli.positional.samplers import SAMPLERS
from plsh_cli.positional.streams import generator

if TYPE_CHECKING:
    from plsh_cli.attention.bias import Bias

_OWN = {
    "none": (),
    "alibi": ("parameters",),
    "window": ("parameters", "eps"),
    "fixed_blocks": ("parameters",),
    "plsh": (
        *("kernel", "parameters", "table", "table_name", "num_samples", "sampler", "pitch", "merge"),
        *("seed", "key", "share_layers", "capacity"),
    ),
}
#: The names of biases.
NAMES = tuple(_OWN)
_SIZES = {"alibi": 1, "log": 2, "power": 2, "table": 0}


@dataclass(frozen=True)
class BiasSpec:
    """A bias by name, with what makes it; fields that do not belong to the name are ignored and not stored.

    name: none, alibi, window, fixed_blocks or plsh. parameters: a tuple of numbers per head, or one for all: (sigma,)
    in tokens, for kernel log (a, b), for power (a, p); empty: the ALiBi slopes of the heads. eps: of window. The rest
    is plsh's: kernel (alibi, log, power, table), table (phi(0), phi(1), ..) and its name, num_samples, sampler, pitch,
    merge, the stream of draws (seed, key), whether all layers share them, and the positions they are drawn for (None:
    as many as the model takes). Raises ValueError for a name or numbers of another kind.
    """

    name: str
    kernel: str = "alibi"
    parameters: tuple[tuple[float, ...], ...] = ()
    table: tuple[float, ...] = ()
    table_name: str = "table"
    eps: float = 1e-3
    num_samples: int = 10
    sampler: str = "iid"
    pitch: str = "real"
    merge: str = "lse"
    seed: int = 0
    key: tuple[str | int, ...] = ()
    share_layers: bool = True
    capacity: int | None = None

    def __post_init__(self) -> None:
        if self.name not in _OWN:
            raise ValueError(f"name = {self.name!r}: must be one of {', '.join(_OWN)}")
        if self.kernel not in _SIZES:
            raise ValueError(f"kernel = {self.kernel!r}: must be one of {', '.join(_SIZES)}")
        size = _SIZES[self.kernel] if self.name == "plsh" else 1
        if any(len(one) != size for one in self.parameters):
            raise ValueError(f"parameters = {self.parameters!r}: must be {size} number(s) per head")
        if self.name == "window" and not 0.0 < self.eps <= 1.0:
            raise ValueError(f"eps = {self.eps!r}: must be above 0 and at most 1")
        if self.name == "plsh":
            self._check_draws()

    @property
    def serves_any_length(self) -> bool:
        """Whether the draws are the same for any capacity, so that they serve more positions than it too."""
        return self.name == "plsh" and self.pitch == "real" and self.sampler in ("iid", "stratified")

    def build(self, heads: int, capacity: int, *key: str | int) -> Bias:
        """Return the bias for so many query heads; draws cover `capacity` positions.

        Head i of plsh is drawn in the stream (seed, "draws", *self.key, *key, i). Raises ValueError where the
        parameters are for another number of heads, or no kernel on so many positions.
        """
        from plsh_cli import attention
        from plsh_cli.positional.partitions import stack
        from plsh_cli.positional.samplers import draw

        if self.name == "none":
            return attention.NoBias()
        if self.name == "plsh":
            drawn = [
                draw(kernel, capacity, self.num_samples, generator(*self._stream(key, head)), self.sampler, self.pitch)
                for head, kernel in enumerate(self.kernels(heads))
            ]
            return attention.Plsh(stack(drawn), self.merge)
        sigmas = [sigma for (sigma,) in self._per_head(heads)]
        if self.name == "window":
            return attention.Window(sigmas, self.eps)
        return attention.Alibi(sigmas) if self.name == "alibi" else attention.FixedBlocks(sigmas)

    def layers(self, heads: int, capacity: int, count: int, *key: str | int) -> list[Bias]:
        """Return the bias of each of `count` layers: one object for all, or draws keyed by (*key, layer)."""
        if self.name != "plsh" or self.share_layers:
            return [self.build(heads, capacity, *key)] * count
        return [self.build(heads, capacity, *key, layer) for layer in range(count)]

    def kernels(self, heads: int) -> list[Kernel]:
        """Return the kernel of each head."""
        if self.kernel == "table":
            return [families.table(self.table, self.table_name)] * heads
        make = {"alibi": families.alibi, "log": families.log, "power": families.power}[self.kernel]
        return [make(*numbers) for numbers in self._per_head(heads)]

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON has it: the name and the fields that belong to it."""
        return {"name": self.name} | {
            name: _plain(value) for name in _OWN[self.name] if (value := getattr(self, name)) not in ((), None)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BiasSpec:
        """Return the description that `to_dict` gave; ValueError for keys that it does not know."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown or "name" not in values:
            raise ValueError(f"description {dict(values)!r}: must have a name; unknown keys: {unknown}")
        kept = dict(values)
        for name in ("table", "key"):
            kept |= {name: tuple(kept[name])} if name in kept else {}
        if "parameters" in kept:
            kept["parameters"] = tuple(tuple(float(x) for x in one) for one in kept["parameters"])
        return cls(**kept)

    def _check_draws(self) -> None:
        from plsh_cli.attention.bias import MERGES

        choices = {"sampler": SAMPLERS, "pitch": PITCHES, "merge": MERGES}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be one of {', '.join(allowed)}")
        for name in ("num_samples", "capacity"):
            value = getattr(self, name)
            if not (name == "capacity" and value is None) and not (isinstance(value, Integral) and value >= 1):
                raise ValueError(f"{name} = {value!r}: must be a whole number, at least 1")
        if self.kernel == "table" and self.pitch == "real":
            raise ValueError("pitch = 'real': a table kernel has integer widths only, set pitch to integer")

    def _stream(self, key: tuple[str | int, ...], head: int) -> tuple[str | int, ...]:
        return (self.seed, "draws", *self.key, *key, head)

    def _per_head(self, heads: int) -> list[tuple[float, ...]]:
        if not self.parameters and _SIZES[self.kernel] != 1:
            raise ValueError(f"parameters: kernel {self.kernel} needs its two numbers")
        given = list(self.parameters) or [(1.0 / slope,) for slope in alibi_slopes(heads).tolist()]
        if len(given) not in (1, heads):
            raise ValueError(f"parameters: for {len(given)} heads, the model has {heads}; give one for all or {heads}")
        return given * heads if len(given) == 1 else given


def describe(bias: Bias) -> BiasSpec | None:
    """Return the description of a bias without draws; None for draws, which only their maker can describe."""
    from plsh_cli.attention.bias import Alibi, FixedBlocks, NoBias, Window

    if isinstance(bias, NoBias):
        return BiasSpec("none")
    if not isinstance(bias, Alibi | Window | FixedBlocks):
        return None
    sigmas = [bias.sigma] if isinstance(bias.sigma, int | float) else bias.sigma
    parameters = tuple((float(sigma),) for sigma in sigmas)
    if isinstance(bias, Window):
        return BiasSpec("window", parameters=parameters, eps=bias.eps)
    return BiasSpec("alibi" if isinstance(bias, Alibi) else "fixed_blocks", parameters=parameters)


def describe_layers(biases: Sequence[Bias]) -> BiasSpec | None:
    """Return the one description of the biases of all layers; None for draws and for layers that differ."""
    first, *others = map(describe, biases)
    return first if all(one == first for one in others) else None


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
