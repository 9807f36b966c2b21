"""Which biases `plsh eval` scores a model under, and the model under one of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config import compose
from plsh_cli.config.schema.biases import ModelBias, OriginalBias, PlshBias
from plsh_cli.config.schema.models import EvalCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import biases
from plsh_cli.models.saved import FIELD

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plsh_cli.attention.bias import Bias
    from plsh_cli.models.spec import BiasSpec


@dataclass(frozen=True)
class Variant:
    """A bias to score under. section: None for the model's own attention; own: what a run's model was trained with."""

    name: str
    section: ModelBias | None
    own: bool

    @property
    def random(self) -> bool:
        """Whether it has draws."""
        return isinstance(self.section, PlshBias)

    @property
    def rope(self) -> str:
        """What happens to the model's RoPE; keep leaves the model as it was saved, dropped RoPE included."""
        return getattr(self.section, "rope", None) or "keep"

    @property
    def label(self) -> str:
        """For messages, such as "plsh s=10 (as trained)"."""
        drawn = f" s={self.section.num_samples}" if isinstance(self.section, PlshBias) else ""
        return f"{self.name}{drawn}{' (as trained)' if self.own and self.section is not None else ''}"

    def fields(self) -> dict[str, object]:
        """What tells it from others in a row."""
        drawn = self.section if isinstance(self.section, PlshBias) else None
        return {
            "bias": self.name,
            "own": self.own,
            "num_samples": drawn.num_samples if drawn else None,
            "sampler": drawn.sampler if drawn else None,
            "pitch": drawn.pitch if drawn else None,
            "kernel": drawn.kernel if drawn else None,
            "merge": drawn.merge if drawn else None,
        }


def variants(cfg: EvalCommand, own: ModelBias | None, sigma: list[float] | None = None) -> list[Variant]:
    """The biases asked for, each once.

    own, sigma: the bias that the model of a run was trained under, and the usual sigma of its recipe. `original` stands
    for `own`. Other sections are those of conf/bias, but for the configured one and, of plsh, the run's; eval.sigma is
    that of all of them; without it, a sigma that they do not give is that of the `bias` section, else the run's. Raises
    UserError for numbers of draws where no bias has draws, and for a sigma that no bias takes.
    """
    own = None if isinstance(own, OriginalBias) else own
    found: list[Variant] = []
    for name in cfg.eval.biases or [cfg.bias.name]:
        if name == "original":
            made = _with_samples(cfg, own)
            mine = [section == own for section in made]
        else:
            made = _with_samples(cfg, _section(cfg, name, own, sigma))
            mine = [False] * len(made)
        for section, is_own in zip(made, mine, strict=True):
            if section not in [one.section for one in found]:
                found.append(Variant(section.name if section else "original", section, is_own))
    if cfg.eval.num_samples is not None and not any(one.random for one in found):
        allowed = "belongs to bias plsh, which is not among the biases; add it (--biases original,plsh)"
        raise UserError("eval.num_samples", cfg.eval.num_samples, allowed, "--s")
    if cfg.eval.sigma is not None and not any(getattr(one.section, "sigma", None) == cfg.eval.sigma for one in found):
        allowed = "no bias among those asked for takes it; add one that does (--biases original,alibi)"
        raise UserError("eval.sigma", cfg.eval.sigma, allowed, "--sigma")
    return found


def build(
    variant: Variant, model: PreTrainedModel, capacity: int, seed: int, *key: str | int, first: bool = False
) -> list[Bias] | None:
    """The bias of every layer over so many positions or more, one object where layers share it; None: the model's own.

    first: whether it is the first set of draws of a variant, which is that of the model's training where it was trained
    under one set (bias.resample=once) and this is its bias; other sets, and other biases, are of the stream `key`.
    Raises UserError for parameters that do not fit the model's heads.
    """
    from plsh_cli.attention.cheaper import exact_when_cheaper

    section = variant.section
    if section is None:
        return None
    config = model.config.get_text_config()
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    spec = biases.bias_spec(section, heads, capacity, seed, *key)
    assert spec is not None
    trained = _trained_under(section, model) if first else None
    drawn_for = capacity
    if trained is not None:
        spec, drawn_for = trained, max(capacity, trained.capacity or 0)
    made = spec.layers(heads, drawn_for, layers)
    if isinstance(section, PlshBias) and section.exact_when_cheaper:
        sigmas = biases.head_sigmas(section, heads)
        swapped = {id(one): exact_when_cheaper(one, sigmas, capacity, True)[0] for one in made}
        made = [swapped[id(one)] for one in made]
    return made


def _trained_under(section: ModelBias, model: PreTrainedModel) -> BiasSpec | None:
    """The one set of draws that a model says it was trained under, where the section means this very bias."""
    from plsh_cli.models.spec import BiasSpec
    from plsh_cli.training.draws import ONCE

    config = model.config.get_text_config()
    described = getattr(config, FIELD, None) or {}
    if not isinstance(section, PlshBias) or described.get("key") != [ONCE]:
        return None
    spec = BiasSpec.from_dict(described)
    same = biases.bias_spec(section, config.num_attention_heads, spec.capacity or 1, spec.seed, ONCE)
    return spec if same == spec else None


def exact_heads(made: Sequence[Bias] | None) -> list[int]:
    """The heads that `build` gave exact ALiBi because their draws were not cheaper, in any layer."""
    from plsh_cli.attention.bias import Alibi, Mixed

    heads: set[int] = set()
    for one in made or []:
        groups = (
            one.groups if isinstance(one, Mixed) else ((range(len(one.sigma)), one),) if isinstance(one, Alibi) else ()
        )
        heads.update(head for mine, bias in groups if isinstance(bias, Alibi) for head in mine)
    return sorted(heads)


def under(
    variant: Variant, model: PreTrainedModel, made: Sequence[Bias] | None, backend: str
) -> AbstractContextManager[Any]:
    """A context in which the model runs under what `build` made; it gives use_bias's handle, None without a bias."""
    from plsh_cli.models import use_bias

    if made is None:
        return nullcontext()
    one = made[0] if len(set(map(id, made))) == 1 else list(made)
    return use_bias(model, one, rope="drop" if variant.rope == "drop" else "keep", backend=backend)


def _section(cfg: EvalCommand, name: str, own: ModelBias | None, usual: list[float] | None) -> ModelBias:
    if name == cfg.bias.name:
        section = cfg.bias
    elif name == "plsh" and isinstance(own, PlshBias):
        section = own
    else:
        made = compose.compose("eval", [f"bias={name}"])
        assert isinstance(made, EvalCommand)
        section = made.bias
    changes: dict[str, object] = {}
    if "sigma" in type(section).model_fields:
        given = [cfg.eval.sigma, *(getattr(one, "sigma", None) for one in (section, cfg.bias, own)), usual]
        changes["sigma"] = next((sigma for sigma in given if sigma), None)
    if getattr(section, "rope", None) is None:
        changes["rope"] = getattr(cfg.bias, "rope", None)
    if getattr(section, "kernel", "alibi") != "alibi":
        changes.pop("sigma", None)
    return section.model_copy(update=changes)


def _with_samples(cfg: EvalCommand, section: ModelBias | None) -> list[ModelBias | None]:
    if not isinstance(section, PlshBias) or cfg.eval.num_samples is None:
        return [section]
    return [section.model_copy(update={"num_samples": count}) for count in sorted(cfg.eval.num_samples)]
