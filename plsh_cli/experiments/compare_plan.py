"""What a comparison is about before anything is measured: what is refused, heads with their sigma, matched knobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plsh_cli import assets
from plsh_cli.config import check
from plsh_cli.config.schema.compare import CompareCommand
from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import compare_match
from plsh_cli.experiments.attn_error_inputs import check_inputs, chosen_device
from plsh_cli.experiments.compare_costs import Counted, Draws
from plsh_cli.experiments.compare_match import ByCount, Matcher, Pair
from plsh_cli.experiments.compare_settings import Setting, own
from plsh_cli.experiments.memory import available_bytes, gibibytes
from plsh_cli.experiments.texts import check_corpus
from plsh_cli.positional.kernels import Kernel, alibi, alibi_slopes

MATRIX_SIGMA = 16.0
#: Sets of draws behind the expected cost of draws that are renewed at every training step.
_COST_SETS = 24
#: Bytes of a draw with what is alive while it is drawn and counted; numbers of 8 bytes alive per number of Q.
_DRAW_BYTES, _ARRAYS = 96.0, 12.0
#: The key of attn-error that stands for one of compare, with the latter's flag.
_KEYS = {
    "attn_error.tokens": ("compare.n", "--n"),
    "attn_error.inputs": ("compare.texts", "--texts"),
    "attn_error.layers": ("compare.layers", "--layers"),
}


@dataclass(frozen=True)
class Heads:
    """The heads that are compared: a kernel each, at n tokens."""

    kernels: list[Kernel]
    n: int

    @property
    def sigmas(self) -> list[float]:
        """sigma of each head, in tokens."""
        return [float(kernel.sigma or 0.0) for kernel in self.kernels]


#: Where a key has an effect, if not everywhere: at levels, and at level attention by its inputs.
_CAPTURED, _RANDOM = "attention on captured", "attention on random"
_HEEDED = {
    "compare.inputs": (_CAPTURED, _RANDOM),
    "compare.n": ("matrix", _CAPTURED, _RANDOM),
    "compare.texts": (_CAPTURED, _RANDOM),
    "compare.layers": (_CAPTURED,),
    "compare.heads": (_RANDOM,),
    "compare.head_dim": (_RANDOM,),
    "compare.train": ("training",),
    "compare.processes": ("training",),
}


def check_settings(cfg: CompareCommand) -> None:
    """UserError for what does not go together."""
    asked, level = cfg.compare, cfg.compare.level
    if cfg.bias.kernel != "alibi":
        allowed = "must be alibi: window and fixed blocks are about ALiBi's sigma"
        raise UserError("bias.kernel", cfg.bias.kernel, allowed, "bias.kernel=...")
    if asked.cost == "time" and level != "attention":
        allowed = f"times attention calls, which level={level} does not make; use union, draws or s"
        raise UserError("compare.cost", "time", allowed, "--cost")
    if "original" in (asked.baseline, *asked.methods) and (
        level == "matrix" or (level == "attention" and asked.inputs == "random")
    ):
        where = "bias matrices" if level == "matrix" else "random inputs"
        key = "compare.baseline" if asked.baseline == "original" else "compare.methods"
        allowed = f"is a model's own attention, and {where} belong to no model; use none for attention without bias"
        raise UserError(key, "original", allowed, "--baseline" if key.endswith("baseline") else "--methods")
    _check_model(cfg)


def check_heeded(cfg: CompareCommand, given: Iterable[tuple[str, str]]) -> None:
    """Raise UserError where one of these keys, with its value, is without effect at this level."""
    level, inputs = cfg.compare.level, cfg.compare.inputs
    here = f"attention on {inputs}" if level == "attention" else level
    for key, value in given:
        where = _HEEDED.get(key, (here,))
        if here not in where:
            allowed = f"has no effect at level={here.replace(' on ', ' with compare.inputs=')}; it is for "
            raise UserError(key, value, f"{allowed}{' and '.join(where)}: leave it out", "compare.level=...")


def _check_model(cfg: CompareCommand) -> None:
    level, built = cfg.compare.level, cfg.model.architecture is not None
    unfetched = built and cfg.model.path is None and cfg.model.name not in assets.ASSETS
    if level == "training" and not built:
        allowed = "level=training builds models from scratch and needs model.architecture; use tiny, small or gpt_148m"
        raise UserError("model", cfg.model.path or cfg.model.name, allowed, "model=...")
    if level == "attention" and cfg.compare.inputs == "captured" and unfetched:
        allowed = "is built from scratch and has no trained weights to capture Q, K, V from; use smollm2_135m, "
        allowed += "model.path=... or compare.inputs=random"
        raise UserError("model", cfg.model.name, allowed, "model=...")


def as_attn_error(cfg: CompareCommand) -> AttnErrorCommand:
    """The configuration of attn-error that takes the same inputs."""
    asked, plain = cfg.compare, cfg.model_dump(mode="json")
    kept = {key: plain[key] for key in ("name", "seed", "device", "out", "logger", "bias", "model", "data")}
    settings = {
        "num_samples": [1],
        "biases": ["plsh"],
        "tokens": asked.n,
        "inputs": asked.texts,
        "texts": "documents",
        "layers": asked.layers,
        "seeds": asked.seeds,
        "method": "fused",
    }
    made = check.validate(
        "attn_error", {**kept, "command": "attn_error", "protocol": "corrected", "attn_error": settings}
    )
    assert isinstance(made, AttnErrorCommand)
    return made


def translated(error: UserError) -> UserError:
    """An error of attn-error's inputs under the key of compare."""
    field, flag = _KEYS.get(error.field, (error.field, error.flag))
    return UserError(field, error.value, error.allowed, flag)


def heads(cfg: CompareCommand) -> Heads | None:
    """The heads as far as they are known before a model is loaded; None where they are not. Raises as attn-error."""
    asked = cfg.compare
    if asked.level == "matrix":
        return Heads([alibi(sigma) for sigma in cfg.bias.sigma or [MATRIX_SIGMA]], asked.n)
    if asked.level == "training":
        from plsh_cli.experiments.compare_training import member

        config, _ = member(cfg, Setting("alibi"), cfg.seed)
        assert config.model.architecture is not None
        sigma = config.bias.sigma if config.bias.name == "alibi" else None
        return Heads(of_heads(sigma, config.model.architecture.num_attention_heads), config.train.context)
    if asked.inputs == "random":
        if cfg.device != "auto":
            chosen_device(cfg.device)
        return Heads(of_heads(cfg.bias.sigma, asked.heads), asked.n)
    try:
        shape, _ = check_inputs(as_attn_error(cfg))
        count = check_corpus(cfg.data)
        if count is not None and asked.texts > count:
            raise UserError("compare.texts", asked.texts, f"{cfg.data.name} has {count} documents", "--texts")
    except UserError as error:
        raise translated(error) from None
    return Heads(of_heads(cfg.bias.sigma, shape.heads), asked.n) if shape.heads else None


def of_heads(sigma: Sequence[float] | None, count: int) -> list[Kernel]:
    """One kernel per head; UserError unless there is no sigma, one, or one per head."""
    sigmas = (1.0 / alibi_slopes(count)).tolist() if sigma is None else list(sigma)
    if len(sigmas) not in (1, count):
        allowed = f"must have one value for all heads or {count}, one per query head; has {len(sigmas)}"
        raise UserError("bias.sigma", list(sigma or []), allowed, "--sigma")
    return [alibi(one) for one in (sigmas * count if len(sigmas) == 1 else sigmas)]


def draws_of(cfg: CompareCommand, found: Heads) -> Draws:
    """The draws of all units: seeds (matrix), or all seeds of the first text, then of the next (attention).

    Of training they are only those that the expected cost is taken from.
    """
    asked, seeds = cfg.compare, range(cfg.seed, cfg.seed + cfg.compare.seeds)
    units: list[tuple[int, tuple[str | int, ...]]] = [(seed, ()) for seed in seeds]
    if asked.level == "attention":
        units = [(seed, ("text", text)) for text in range(asked.texts) for seed in seeds]
    if asked.level == "training":
        units = [(cfg.seed, ("cost", number)) for number in range(_COST_SETS)]
    return Draws(found.kernels, found.n, units, (cfg.bias.sampler, cfg.bias.pitch))


def counted(cfg: CompareCommand, draws: Draws) -> ByCount:
    """What matches costs other than time."""
    return ByCount(Counted(cfg.compare.cost, draws))


def pairs_of(cfg: CompareCommand, found: Heads, matcher: Matcher) -> list[Pair]:
    """Every comparison with its knobs. Training runs share baselines, as each takes minutes."""
    asked = cfg.compare
    return compare_match.pairs(
        asked.methods,
        asked.baseline,
        asked.num_samples,
        asked.cost,
        matcher,
        (found.sigmas, found.n, asked.eps),
        share=compare_match.TOLERANCE if asked.level == "training" else 0.0,
    )


def reference_of(cfg: CompareCommand, found: Heads, matcher: Matcher) -> tuple[Setting, float] | None:
    """The baseline at its own eps or 2 sigma, with its cost; None where it is compared at that, and in training.

    A larger budget need not make a baseline better: this is what it would be without one.
    """
    asked = cfg.compare
    if asked.baseline not in ("window", "fixed_blocks") or asked.cost == "s" or asked.level == "training":
        return None
    setting = own(asked.baseline, found.sigmas, found.n, asked.eps)
    return setting, matcher.both(setting, setting).target_cost


def check_memory(cfg: CompareCommand, count: int, head_dim: int) -> None:
    """UserError where the draws of `count` heads, or their inputs, take more memory than there is."""
    asked, available = cfg.compare, available_bytes()
    if available is None:
        return
    units = asked.seeds * (asked.texts if asked.level == "attention" else 1)
    drawn = _DRAW_BYTES * (count * units + 4) * max(asked.num_samples)
    if drawn > available:
        allowed = f"the draws need about {gibibytes(drawn)}, {gibibytes(available)} are available; use fewer, or fewer "
        raise UserError("compare.num_samples", max(asked.num_samples), f"{allowed}seeds", "--s")
    held = 8.0 * _ARRAYS * count * asked.n * (head_dim if asked.level == "attention" else 1)
    if asked.level != "training" and held > available:
        allowed = f"needs about {gibibytes(held)}, {gibibytes(available)} are available; use fewer tokens"
        raise UserError("compare.n", asked.n, allowed, "--n")


def settings_of(pairs: Sequence[Pair]) -> list[Setting]:
    """What is to be measured, each once."""
    return list(dict.fromkeys(one.same for pair in pairs for one in (pair.method, pair.baseline)))
