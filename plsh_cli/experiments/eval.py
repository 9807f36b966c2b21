"""`plsh eval`: how well a model predicts text under each bias, at several lengths, on the same tokens.

For every bias, number of draws s and length there is a row; its fields are those of `Variant.fields` and of scored.py,
and seeds, seed_first (sets of draws; null without draws; where a run trained under one set, bias.resample=once, the
first set of its own bias is that one), nats_draws_sd (standard deviation of nats per token over
them), backend (which attention ran), exact_heads (those that bias.exact_when_cheaper gave exact ALiBi in any set of
draws; null: none). Measures of plsh are means over its sets of draws; intervals have
the noise of draws in them from two sets on (formula: head of scored.py). nats_difference is to the first
bias. timing has the seconds of every row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from plsh_cli.config.schema.models import EvalCommand
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import MessageError, PlshError, UserError
from plsh_cli.experiments import eval_tasks, scored
from plsh_cli.experiments.devices import chosen_device
from plsh_cli.experiments.eval_biases import Variant, build, exact_heads, under, variants
from plsh_cli.experiments.eval_source import Opened, Source, check_text, open_source, source_of
from plsh_cli.experiments.memory import gibibytes
from plsh_cli.experiments.result import Result

if TYPE_CHECKING:
    from plsh_cli.evaluation.score import Scores
    from plsh_cli.evaluation.windows import Windows

#: Tokens scored per length where the configuration does not say: about a minute of SmolLM2-135M, or of a tiny model.
PRETRAINED_TOKENS, RUN_TOKENS = 1536, 32768
#: Measured: the program itself, beside the weights and the pieces of logits with their copies.
_PROGRAM_BYTES, _LOGITS_BYTES = 0.9 * 2**30, 4 * 2**27


def plan(cfg: EvalCommand) -> dict[str, object]:
    """What a run would do, without loading anything. Raises UserError or MessageError for what cannot run."""
    source = source_of(cfg)
    check_text(cfg, source)
    chosen = variants(cfg, source.own, source.sigma)
    if cfg.device not in ("auto", "cpu"):
        _device(cfg)
    if cfg.eval.tasks is not None:
        eval_tasks.check(cfg)
    return {
        "model": f"run {source.name}" if source.saved else cfg.model.path or cfg.model.name,
        "text": "its held-out documents" if source.saved and cfg.eval.held_out else cfg.data.name,
        "biases": [one.label for one in chosen],
        "lengths": source.lengths,
        "windows": cfg.eval.windows,
        "seeds": _seeds(cfg),
        "tasks": cfg.eval.tasks,
        "estimated_peak_memory": _memory(cfg, source),
    }


def run(cfg: EvalCommand, run: Any) -> Result:
    """Load, score, compare. `run` gives progress, metrics and plain lines (see `experiments.harness.Run`)."""
    begin = time.perf_counter()
    source = source_of(cfg)
    chosen = variants(cfg, source.own, source.sigma)
    opened = open_source(cfg, source, _device(cfg), run.say)
    windows = _windows(cfg, source, opened)
    counts = {length: one.tokens for length, one in windows.items()}
    same = f"{counts[source.lengths[0]]:,} tokens scored at every length"
    told = same if cfg.eval.windows == "matched" else f"tokens scored: {counts}"
    run.say(f"{opened.label} on {opened.text_label}: {told}")
    ready = time.perf_counter()
    # First, since a task that is not there is found out here.
    tasks = eval_tasks.score(cfg, opened, chosen, run) if cfg.eval.tasks else []
    results = _score_all(cfg, source, opened, chosen, windows, run)
    rows = [row for one in results for row in _rows(cfg, one, results[0], windows)]
    for row in rows:
        run.log({key: value for key, value in row.items() if value is not None})
    run.save_arrays("tokens", **_arrays(results, windows))
    summary = _summary(cfg, source, opened, results, counts) | {"tasks": tasks}
    timing = {
        "load_seconds": ready - begin,
        "score_seconds": [
            {**one.variant.fields(), "n": length, "seconds": one.seconds[length]}
            for one in results
            for length in windows
        ],
    }
    return Result(rows, summary, timing)


@dataclass
class _Scored:
    """A bias with its scores per length: of each set of draws, and their mean; seconds of all sets together."""

    variant: Variant
    seeds: list[int]
    sets: dict[int, list[Scores]] = field(default_factory=dict)
    mean: dict[int, Scores] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    backend: dict[int, str] = field(default_factory=dict)
    exact_heads: set[int] = field(default_factory=set)


def _score_all(
    cfg: EvalCommand, source: Source, opened: Opened, chosen: list[Variant], windows: dict[int, Windows], run: Any
) -> list[_Scored]:
    from plsh_cli.evaluation.score import mean_scores

    results = [_Scored(one, _seeds(cfg) if one.random else [cfg.seed]) for one in chosen]
    total = sum(len(one.seeds) for one in results) * sum(map(len, windows.values()))
    with run.progress(total, "plsh eval") as bar:
        for one in results:
            for number, seed in enumerate(one.seeds):
                made = build(one.variant, opened.model, max(source.lengths), seed, "eval", first=number == 0)
                one.exact_heads.update(exact_heads(made) if one.variant.random else [])
                if number == 0:
                    _check(cfg, one.variant, opened, made, max(source.lengths))
                for length in source.lengths:
                    _score_one(cfg, one, opened, made, windows[length], bar.advance)
            for length, sets in one.sets.items():
                one.mean[length] = mean_scores(sets)
    return results


def _check(cfg: EvalCommand, variant: Variant, opened: Opened, made: Any, longest: int) -> None:
    """Nothing is measured on a model whose tokens see later ones."""
    from plsh_cli.models import check_causal

    try:
        with under(variant, opened.model, made, cfg.eval.backend):
            # Draws are for no more than the longest window.
            check_causal(opened.model, min(33, longest))
    except ValueError as error:
        if cfg.eval.backend == "auto" or isinstance(error, PlshError):
            raise
        raise UserError("eval.backend", cfg.eval.backend, f"cannot run {variant.name}: {error}") from None


def _score_one(cfg: EvalCommand, one: _Scored, opened: Opened, made: Any, windows: Windows, advance: Any) -> None:
    from plsh_cli.evaluation.score import score
    from plsh_cli.evaluation.texts import start_id

    begin, length = time.perf_counter(), windows.length
    with under(one.variant, opened.model, made, cfg.eval.backend) as handle:
        try:
            start = start_id(opened.tokenizer)
            scores = score(opened.model, opened.texts, windows, batch=cfg.eval.batch, start=start, done=advance)
        except ValueError as error:
            kind = MessageError if isinstance(error, MessageError) else PlshError
            raise kind(f"{opened.label} under {one.variant.label} at {length} tokens: {error}") from error
        if handle is not None and not handle.calls:
            raise PlshError(f"{opened.label}: its attention was never asked, so nothing was measured of the bias")
        stock = getattr(opened.model.config, "_attn_implementation", "unknown")
        one.backend[length] = handle.backend if handle is not None else f"the model's own ({stock})"
    one.sets.setdefault(length, []).append(scores)
    one.seconds[length] = one.seconds.get(length, 0.0) + time.perf_counter() - begin


def _windows(cfg: EvalCommand, source: Source, opened: Opened) -> dict[int, Windows]:
    from plsh_cli.evaluation.windows import matched, paper

    sizes = [len(text) for text in opened.texts]
    most = cfg.eval.max_tokens or _usual_tokens(source)
    most = None if most == "all" else most
    try:
        if cfg.eval.windows == "paper":
            return paper(sizes, source.lengths, source.train_length, most)
        return matched(sizes, source.lengths, cfg.eval.stride, most)
    except ValueError as error:
        name, _, rest = str(error).partition(" = ")
        value, _, allowed = rest.partition(": ")
        flag = {"lengths": "--lengths"}.get(name, f"eval.{name}=...")
        raise UserError(f"eval.{name}", value, allowed, flag) from None


def _usual_tokens(source: Source) -> int | Literal["all"]:
    """Tokens per length where none are given; of a fine-tuned model as many as in its run's own table."""
    if source.trained is None:
        return PRETRAINED_TOKENS
    return RUN_TOKENS if isinstance(source.trained, TrainCommand) else source.trained.final.max_tokens or "all"


def _rows(cfg: EvalCommand, one: _Scored, base: _Scored, windows: dict[int, Windows]) -> list[dict[str, object]]:
    rows = []
    for length in windows:
        each = [float(scores.nats.mean()) for scores in one.sets[length]]
        rows.append(
            {
                **one.variant.fields(),
                "n": length,
                "seeds": len(one.seeds) if one.variant.random else None,
                "seed_first": cfg.seed if one.variant.random else None,
                **scored.summary(one.mean[length], one.sets[length]),
                "nats_draws_sd": float(np.std(each, ddof=1)) if len(each) > 1 else None,
                **(
                    {}
                    if one is base
                    else scored.difference(one.mean[length], base.mean[length], one.sets[length], base.sets[length])
                ),
                "backend": one.backend[length],
                "exact_heads": " ".join(map(str, sorted(one.exact_heads))) or None,
            }
        )
    return rows


def _summary(
    cfg: EvalCommand, source: Source, opened: Opened, results: list[_Scored], counts: dict[int, int]
) -> dict[str, object]:
    first = next(iter(results[0].mean.values()))
    positions = [
        {**one.variant.fields(), "n": length, **bin_}
        for one in results
        for length, scores in one.mean.items()
        for bin_ in scored.by_position(scores)
    ]
    return {
        "model": opened.label,
        "model_details": opened.details,
        "text": opened.text_label,
        "text_details": opened.text_details,
        "lengths": source.lengths,
        "windows": cfg.eval.windows,
        "stride": (cfg.eval.stride or min(source.lengths)) if cfg.eval.windows == "matched" else source.train_length,
        "scored_tokens": {str(length): count for length, count in counts.items()},
        "interval_over": scored.clusters_of(first)[1],
        "clusters": len(np.unique(scored.clusters_of(first)[0])),
        "biases": [
            {**one.variant.fields(), "rope": _rope(one.variant, source), "section": _section(one.variant)}
            for one in results
        ],
        "positions": positions,
    }


def _arrays(results: list[_Scored], windows: dict[int, Windows]) -> dict[str, np.ndarray]:
    """Per length the nats of every scored token (biases in the rows' order, tokens), and where each token stands."""
    arrays: dict[str, np.ndarray] = {}
    for length in windows:
        first = results[0].mean[length]
        arrays[f"nats_{length}"] = np.stack([one.mean[length].nats for one in results]).astype(np.float32)
        arrays[f"text_{length}"], arrays[f"place_{length}"] = first.text, first.place
        arrays[f"left_{length}"], arrays[f"bytes_{length}"] = first.left, first.sizes
    return arrays


def _rope(variant: Variant, source: Source) -> str:
    """keep or drop; a model trained without RoPE has none to keep."""
    dropped = source.trained is not None and source.trained.rope == "drop"
    return "drop" if dropped else variant.rope


def _section(variant: Variant) -> dict[str, Any] | None:
    return None if variant.section is None else variant.section.model_dump(mode="json")


def _seeds(cfg: EvalCommand) -> list[int]:
    return list(range(cfg.seed, cfg.seed + cfg.eval.draws))


def _device(cfg: EvalCommand) -> str:
    return chosen_device(cfg.device)


def _memory(cfg: EvalCommand, source: Source) -> str:
    parameters = source.shape.parameters
    if parameters is None:
        return "known after loading"
    dtype = cfg.model.dtype if source.saved is None else cfg.eval.dtype or source.saved.dtype
    weight = 4 if dtype == "float32" else 2
    return gibibytes(_PROGRAM_BYTES + _LOGITS_BYTES + weight * parameters)
