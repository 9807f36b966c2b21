"""The evaluation of a training run: the same held-out tokens at every length, under each bias.

A row is one bias at one length. Its fields are those of `Variant.fields` (bias, own, num_samples, sampler, pitch) and
of scored.py (n, tokens, nats_per_token, bits_per_byte, perplexity, top1 .. entropy, with intervals over texts), and
seeds (sets of draws; null without draws; with bias.resample=once the first is the one that was trained under). A model
that plsh train trained under plsh is also scored under exact ALiBi; for plsh finetune see finetune_final.py. The
numbers are those of `plsh eval RUN`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config.schema.biases import AlibiBias, OriginalBias, PlshBias
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.errors import PlshError, UserError
from plsh_cli.experiments import scored
from plsh_cli.experiments.eval_biases import Variant, build

if TYPE_CHECKING:
    from plsh_cli.attention.bias import Bias
    from plsh_cli.evaluation.score import Scores
    from plsh_cli.evaluation.texts import Text
    from plsh_cli.evaluation.windows import Windows
    from plsh_cli.experiments.harness import Run
    from plsh_cli.experiments.train_data import Prepared
    from plsh_cli.experiments.train_model import Biased


@dataclass(frozen=True)
class Held:
    """The held-out texts, and their windows of each length in tokens."""

    texts: list[Text]
    windows: dict[int, Windows]
    start: int | None


def held(cfg: TrainingCommand, data: Prepared) -> Held:
    """What will be scored. Raises UserError where the held-out text is too short for the longest length."""
    from plsh_cli.evaluation.texts import start_id, text_of

    documents = [(document.name, document.text) for document in data.texts]
    if cfg.final.windows == "paper":
        documents = [("held out", " ".join(text for _, text in documents))]
    texts = [text_of(data.tokenizer, name, text) for name, text in documents]
    return Held(texts, windows_of(cfg, [len(text) for text in texts]), start_id(data.tokenizer))


def evaluate(
    cfg: TrainingCommand, run: Run, held: Held, biased: Biased, variants: Sequence[Variant], title: str
) -> list[dict[str, object]]:
    """The rows of the model, where it is, under each of the variants; the model's own saved description stays."""
    total = sum(_sets(cfg, one) * len(part) for one in variants for part in held.windows.values())
    rows = []
    with run.progress(total, f"{title} (windows)") as bar:
        for one in variants:
            for length, part in held.windows.items():
                sets = _score(cfg, held, biased, one, part, bar.advance)
                rows.append(_row(one, length, sets))
    return rows


def own_variant(cfg: TrainingCommand) -> Variant:
    """The bias that the model is trained under."""
    return Variant(cfg.bias.name, None if isinstance(cfg.bias, OriginalBias) else cfg.bias, True)


def exact_variant(cfg: TrainingCommand) -> list[Variant]:
    """Exact ALiBi in place of draws that stand for it, if there are any."""
    if not (isinstance(cfg.bias, PlshBias) and cfg.bias.kernel == "alibi"):
        return []
    return [Variant("alibi", AlibiBias(name="alibi", sigma=cfg.bias.sigma, rope=cfg.bias.rope), False)]


def windows_of(cfg: TrainingCommand, sizes: Sequence[int]) -> dict[int, Windows]:
    """The windows of every length over texts of these sizes in tokens; UserError where they are too short."""
    from plsh_cli.evaluation.windows import matched, paper

    try:
        if cfg.final.windows == "paper":
            return paper(sizes, cfg.lengths, cfg.train.context, cfg.final.max_tokens)
        return matched(sizes, cfg.lengths, None, cfg.final.max_tokens)
    except ValueError as error:
        allowed = f"the held-out text does not do for it ({error}); use shorter ones, or a larger train.heldout"
        raise UserError("final.lengths", cfg.lengths, allowed, "final.lengths=[...]") from None


def _score(
    cfg: TrainingCommand, held: Held, biased: Biased, variant: Variant, windows: Windows, done: Any
) -> list[Scores]:
    """The scores under a bias, for each of its sets of draws."""
    from plsh_cli.evaluation.score import score

    capacity = cfg.lengths[-1]
    several = []
    for seed in range(cfg.seed, cfg.seed + _sets(cfg, variant)):
        made = build(variant, biased.model, capacity, seed, "eval", first=seed == cfg.seed)
        with _placed(cfg, biased, made):
            try:
                options = {"batch": cfg.final.batch, "start": held.start, "done": done}
                several.append(score(biased.model, held.texts, windows, **options))
            except ValueError as error:
                raise PlshError(f"evaluation under {variant.name} at {windows.length} tokens: {error}") from error
    return several


@contextmanager
def _placed(cfg: TrainingCommand, biased: Biased, made: list[Bias] | None) -> Iterator[None]:
    """Within the body the model runs under what `build` made."""
    from plsh_cli.experiments.train_model import description
    from plsh_cli.models import use_bias

    if made is None:
        yield
    elif biased.handle is not None:
        # Measured under these, saved as what it was trained under.
        biased.handle.set(made, spec=description(cfg, biased.model.config))
        yield
    else:
        with use_bias(biased.model, made, rope=cfg.rope):
            yield


def _row(variant: Variant, length: int, sets: list[Scores]) -> dict[str, object]:
    """Each token's measures are averaged over the sets of draws; intervals have the noise of draws in them."""
    from plsh_cli.evaluation.score import mean_scores

    seeds = len(sets) if variant.random else None
    return {**variant.fields(), "n": length, "seeds": seeds, **scored.summary(mean_scores(sets), sets)}


def _sets(cfg: TrainingCommand, variant: Variant) -> int:
    return cfg.final.draws if variant.random else 1
