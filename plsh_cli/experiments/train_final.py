"""The evaluation at the end of a training run: the same held-out tokens at every length, under each bias.

A row is one bias at one length. Its fields are those of `Variant.fields` (bias, own, num_samples, sampler, pitch) and
of scored.py (n, tokens, nats_per_token, bits_per_byte, perplexity, top1 .. entropy, with intervals over texts), and
seeds (sets of draws; null without draws). A model trained under plsh is also scored under exact ALiBi. The numbers are
those of `plsh eval RUN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config.schema.biases import AlibiBias, OriginalBias, PlshBias
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import PlshError, UserError
from plsh_cli.experiments import scored
from plsh_cli.experiments.eval_biases import Variant, build

if TYPE_CHECKING:
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


def held(cfg: TrainCommand, data: Prepared) -> Held:
    """What will be scored. Raises UserError where the held-out text is too short for the longest length."""
    from plsh_cli.evaluation.texts import start_id, text_of

    documents = [(document.name, document.text) for document in data.texts]
    if cfg.final.windows == "paper":
        documents = [("held out", " ".join(text for _, text in documents))]
    texts = [text_of(data.tokenizer, name, text) for name, text in documents]
    return Held(texts, windows_of(cfg, [len(text) for text in texts]), start_id(data.tokenizer))


def evaluate(cfg: TrainCommand, run: Run, held: Held, biased: Biased, device: str) -> list[dict[str, object]]:
    """The rows."""
    windows = held.windows
    biased.model.to(device)
    chosen = variants(cfg)
    total = sum(_sets(cfg, one) * len(part) for one in chosen for part in windows.values())
    rows = []
    with run.progress(total, "evaluation (windows)") as bar:
        for one in chosen:
            for length, part in windows.items():
                scores = _score(cfg, held, biased, one, part, bar.advance)
                rows.append(_row(cfg, one, length, scores))
    return rows


def variants(cfg: TrainCommand) -> list[Variant]:
    """The biases that the model is scored under: its own, and exact ALiBi in place of draws that stand for it."""
    own = None if isinstance(cfg.bias, OriginalBias) else cfg.bias
    found = [Variant(cfg.bias.name, own, True)]
    if cfg.final.exact and isinstance(cfg.bias, PlshBias) and cfg.bias.kernel == "alibi":
        exact = AlibiBias(name="alibi", sigma=cfg.bias.sigma, rope=cfg.bias.rope)
        found.append(Variant("alibi", exact, False))
    return found


def windows_of(cfg: TrainCommand, sizes: Sequence[int]) -> dict[int, Windows]:
    """The windows of every length over texts of these sizes in tokens; UserError where they are too short."""
    from plsh_cli.evaluation.windows import matched, paper

    try:
        if cfg.final.windows == "paper":
            return paper(sizes, cfg.lengths, cfg.train.context, cfg.final.max_tokens)
        return matched(sizes, cfg.lengths, None, cfg.final.max_tokens)
    except ValueError as error:
        allowed = f"the held-out text does not do for it ({error}); use shorter ones, or a larger train.heldout"
        raise UserError("final.lengths", cfg.lengths, allowed, "final.lengths=[...]") from None


def _score(cfg: TrainCommand, held: Held, biased: Biased, variant: Variant, windows: Windows, done: Any) -> Scores:
    """The scores under a bias, each token's measures averaged over the sets of draws."""
    from plsh_cli.evaluation.score import mean_scores, score
    from plsh_cli.experiments.train_model import description

    capacity = cfg.lengths[-1]
    several = []
    for seed in range(cfg.seed, cfg.seed + _sets(cfg, variant)):
        made = build(variant, biased.model, capacity, seed, "eval")
        if made is not None:
            # Measured under these, saved as what it was trained under.
            biased.handle.set(made, spec=description(cfg))
        try:
            options = {"batch": cfg.final.batch, "start": held.start, "done": done}
            several.append(score(biased.model, held.texts, windows, **options))
        except ValueError as error:
            raise PlshError(f"evaluation under {variant.name} at {windows.length} tokens: {error}") from error
    return mean_scores(several)


def _row(cfg: TrainCommand, variant: Variant, length: int, scores: Scores) -> dict[str, object]:
    seeds = _sets(cfg, variant) if variant.random else None
    return {**variant.fields(), "n": length, "seeds": seeds, **scored.summary(scores)}


def _sets(cfg: TrainCommand, variant: Variant) -> int:
    return cfg.final.draws if variant.random else 1
