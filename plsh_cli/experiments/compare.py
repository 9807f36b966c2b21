"""`plsh compare`: biases beside a baseline on the same inputs and seeds and at equal cost, with a paired test.

What is measured depends on compare.level: bias matrices, attention outputs, or models trained from scratch. The rows
are described in compare_rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config.compose import parse
from plsh_cli.config.schema.compare import CompareCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments import attn_error_inputs, compare_attention, compare_matrix, compare_plan, compare_training
from plsh_cli.experiments.attn_error_plan import as_time
from plsh_cli.experiments.compare_costs import NAMES
from plsh_cli.experiments.compare_match import Matcher, Pair
from plsh_cli.experiments.compare_plan import Heads
from plsh_cli.experiments.compare_rows import Facts, every_error, first_line, mean_error, row
from plsh_cli.experiments.compare_settings import Setting
from plsh_cli.experiments.compare_time import ByTime
from plsh_cli.experiments.result import Result

if TYPE_CHECKING:
    import numpy as np

    from plsh_cli.experiments.attn_error_inputs import Inputs
    from plsh_cli.models.capture import Captured

#: What a unit of pairing is at each level: where seeds matter, and where nothing of the pair is drawn.
UNITS = {
    "matrix": ("a seed of the draws", "the matrix: nothing is random"),
    "attention": ("a text with a seed of its draws", "a text"),
    "training": ("a seed of the training run", "a seed of the training run"),
}
#: Measured on two cores, seconds: loading, a text's forward pass per token, an attention per token, head and layer
#: (with its errors), a matrix per token and head, a training run of the default size with one thread.
_LOAD, _FORWARD, _ATTENTION, _MATRIX, _TRAINING = 15.0, 0.004, 1.1e-6, 4e-5, 200.0


@dataclass(frozen=True)
class Matched:
    """The comparisons, all settings to measure, and the baseline at its own setting with its cost."""

    pairs: list[Pair]
    settings: list[Setting]
    reference: tuple[Setting, float] | None


@dataclass(frozen=True)
class Measured:
    """What was compared; the measures with the length of each; per setting (measures, texts, seeds); summary's rest."""

    matched: Matched
    measures: list[tuple[str, int]]
    errors: Mapping[Setting, np.ndarray]
    details: dict[str, Any]


def plan(cfg: CompareCommand) -> dict[str, object]:
    """What a run would do, with the matched knobs where they can be counted. Raises UserError for what cannot run."""
    compare_plan.check_settings(cfg)
    found, asked = compare_plan.heads(cfg), cfg.compare
    planned: dict[str, object] = {"level": asked.level, "cost": f"{asked.cost}: {NAMES[asked.cost]}"}
    planned["unit of pairing"] = UNITS[asked.level][0]
    if found is None:
        return planned | {"heads": "known after loading, and with them the knobs"}
    compare_plan.check_memory(cfg, len(found.kernels), asked.head_dim)
    planned["heads"] = f"{len(found.kernels)}, sigma {', '.join(f'{sigma:.3g}' for sigma in found.sigmas)}"
    if asked.cost == "time":
        return planned | {"knobs": "measured when it runs", "estimated_time": as_time(_seconds(cfg, found, None))}
    matcher = compare_plan.counted(cfg, compare_plan.draws_of(cfg, found))
    pairs = compare_plan.pairs_of(cfg, found, matcher)
    planned["budgets"] = first_line(pairs, asked.cost)
    for pair in pairs:
        at = f" at s={pair.method.pairs_of}" if pair.method.pairs_of else ""
        planned[f"{pair.method.name()}{at}"] = f"{pair.method_cost:,.4g} against {pair.baseline.name()}, "
        planned[f"{pair.method.name()}{at}"] += f"{pair.baseline_cost:,.4g} ({100 * (pair.ratio - 1):+.2g} %)"
    settings = compare_plan.settings_of(pairs)
    if asked.level == "training":
        runs, finished = compare_training.waiting(cfg, settings)
        planned["training runs"] = f"{runs}, {asked.processes} at a time; {finished} of them are there already"
    planned["estimated_time"] = as_time(_seconds(cfg, found, settings)) + " on two CPU cores"
    return planned


def check_overrides(cfg: CompareCommand, overrides: Sequence[str]) -> None:
    """Raise UserError for an override of a setting that this level does not have."""
    compare_plan.check_heeded(cfg, [(one.key_or_group, one.get_value_element_as_str()) for one in parse(overrides)])


def run(cfg: CompareCommand, run: Any) -> Result:
    """Match, measure, compare. `run` gives progress, metrics and plain lines (see `experiments.harness.Run`)."""
    started = time.perf_counter()
    compare_plan.check_settings(cfg)
    measured = {"matrix": _matrix, "attention": _attention, "training": _training}[cfg.compare.level](cfg, run)
    facts = Facts(
        cfg.compare.level,
        cfg.compare.cost,
        UNITS[cfg.compare.level],
        cfg.compare.seeds,
        cfg.seed,
        by_seed=cfg.compare.level == "training",
    )
    table = []
    for place, (measure, n) in enumerate(measured.measures):
        for pair in measured.matched.pairs:
            errors = tuple(measured.errors[one.same][place] for one in (pair.method, pair.baseline))
            table.append(row(facts, measure, n, pair, errors))
    for one in table:
        run.log({key: value for key, value in one.items() if value is not None})
    run.save_rows("pairs", every_error(measured.measures, measured.errors, cfg.seed))
    summary = {
        "first_line": first_line(measured.matched.pairs, cfg.compare.cost),
        "level": cfg.compare.level,
        "baseline": cfg.compare.baseline,
        "methods": cfg.compare.methods,
        "cost": cfg.compare.cost,
        "cost_name": NAMES[cfg.compare.cost],
        "equal_cost": not any(pair.note for pair in measured.matched.pairs),
        "unit": UNITS[cfg.compare.level][0],
        "sampler": cfg.bias.sampler,
        "pitch": cfg.bias.pitch,
        "verdicts": {name: sum(one["verdict"] == name for one in table) for name in ("better", "worse", "undecided")},
        "reference": _reference(measured),
        **measured.details,
    }
    return Result(table, summary, {"seconds": time.perf_counter() - started})


def _matrix(cfg: CompareCommand, run: Any) -> Measured:
    found = compare_plan.heads(cfg)
    assert found is not None
    draws = compare_plan.draws_of(cfg, found)
    matched = _matched(cfg, found, run, compare_plan.counted(cfg, draws))
    with run.progress(len(matched.settings), "plsh compare") as bar:
        errors = compare_matrix.errors(matched.settings, draws, bar.advance)
    measures = [(name, found.n) for name in compare_matrix.MEASURES]
    return Measured(matched, measures, errors, {"sigma": found.sigmas, "subject": "bias matrices"})


def _attention(cfg: CompareCommand, run: Any) -> Measured:
    found, asked = compare_plan.heads(cfg), cfg.compare
    if asked.inputs == "random":
        assert found is not None
        shape = (asked.heads, found.n, asked.head_dim)
        device = attn_error_inputs.chosen_device(cfg.device)
        inputs = compare_attention.random_inputs(asked.texts, cfg.seed, shape, device)
        subject = f"{asked.texts} sets of standard normal Q, K, V, {asked.heads} heads of {asked.head_dim}"
        return _outputs(cfg, run, found, inputs, 1, {"subject": subject, "model": None, "device": device})
    prepared = _prepared(cfg, run)
    run.say(f"{prepared.opened.label} on {prepared.text}: perplexity of the first {prepared.perplexity(0):.2f}")
    inputs = (prepared.captured(text, "after") for text in range(asked.texts))
    details = {
        "subject": f"{prepared.opened.label} on {prepared.text}, {len(prepared.layers)} layers",
        "model": prepared.opened.label,
        "model_details": prepared.opened.details,
        "text_details": prepared.text_details,
        "layers": prepared.layers,
        "device": prepared.device,
    }
    known = found or Heads(compare_plan.of_heads(cfg.bias.sigma, prepared.num_heads), asked.n)
    return _outputs(cfg, run, known, inputs, len(prepared.layers), details)


def _prepared(cfg: CompareCommand, run: Any) -> Inputs:
    try:
        return attn_error_inputs.prepare(compare_plan.as_attn_error(cfg), run.say)
    except UserError as error:
        raise compare_plan.translated(error) from None


def _outputs(
    cfg: CompareCommand,
    run: Any,
    found: Heads,
    inputs: Iterator[list[Captured]],
    layers: int,
    details: dict[str, Any],
) -> Measured:
    """The errors of outputs; the first text comes before the others, for ALiBi slopes of its own and for times."""
    first = next(inputs)
    slopes = first[0].slopes if cfg.bias.sigma is None else None
    if slopes is not None:
        found = Heads(compare_plan.of_heads((1.0 / slopes.double().cpu()).tolist(), len(slopes)), found.n)
    own_slopes = first[0].slopes is not None
    draws = compare_plan.draws_of(cfg, found)
    matcher: Matcher = compare_plan.counted(cfg, draws)
    if cfg.compare.cost == "time":
        matcher = ByTime(compare_attention.timed_call(first[len(first) // 2], draws, own_slopes))
    matched = _matched(cfg, found, run, matcher)
    settings = matched.settings
    total = layers * cfg.compare.texts * sum(cfg.compare.seeds if one.drawn else 1 for one in settings)
    with run.progress(total, "plsh compare") as bar:
        every = _chained(first, inputs)
        errors = compare_attention.errors(settings, draws, every, cfg.compare.texts, own_slopes, bar.advance)
    measures = [(name, found.n) for name in compare_attention.MEASURES]
    return Measured(matched, measures, errors, {**details, "sigma": found.sigmas, "own_slopes": own_slopes})


def _chained(first: list[Captured], rest: Iterator[list[Captured]]) -> Iterator[list[Captured]]:
    yield first
    yield from rest


def _training(cfg: CompareCommand, run: Any) -> Measured:
    found = compare_plan.heads(cfg)
    assert found is not None
    matched = _matched(cfg, found, run, compare_plan.counted(cfg, compare_plan.draws_of(cfg, found)))
    lengths, errors, paths = compare_training.train(cfg, matched.settings, run)
    measures = [(name, n) for n in lengths for name in compare_training.MEASURES]
    subject = f"{cfg.model.name} trained from scratch on {cfg.data.name} at {found.n} tokens"
    return Measured(matched, measures, errors, {"subject": subject, "sigma": found.sigmas, "runs": paths})


def _matched(cfg: CompareCommand, found: Heads, run: Any, matcher: Matcher) -> Matched:
    pairs = compare_plan.pairs_of(cfg, found, matcher)
    if cfg.compare.level == "training":  # long before the tables, which begin with it
        run.say(first_line(pairs, cfg.compare.cost))
    reference = compare_plan.reference_of(cfg, found, matcher)
    settings = compare_plan.settings_of(pairs)
    more = [reference[0]] if reference and reference[0] not in settings else []
    return Matched(pairs, [*settings, *more], reference)


def _reference(measured: Measured) -> dict[str, object] | None:
    """The baseline at its own setting: its cost, and mean with half-width of its 95 % t interval of every measure."""
    if measured.matched.reference is None:
        return None
    setting, cost = measured.matched.reference
    errors = {}
    for place, (measure, _) in enumerate(measured.measures):
        found = mean_error("error", measured.errors[setting][place])
        errors[measure] = {"error": found["error"], "ci95": found["error_ci95"]}
    return {"bias": setting.bias, "knob": setting.label(), "cost": cost, "errors": errors}


def _seconds(cfg: CompareCommand, found: Heads, settings: Sequence[Setting] | None) -> float:
    """About how long a run takes; without settings, as many as there can be."""
    asked, heads = cfg.compare, len(found.kernels)
    most = 2 * len(asked.methods) * len(asked.num_samples)
    repeats = sum(asked.seeds if one.drawn else 1 for one in settings) if settings else most
    if asked.level == "matrix":
        return 2.0 + _MATRIX * heads * found.n * repeats
    if asked.level == "training":
        runs, finished = compare_training.waiting(cfg, settings or [])
        return 30.0 + _TRAINING * (runs - finished) / min(2, asked.processes)
    layers = len(asked.layers or range(30)) if asked.inputs == "captured" else 1
    before = _LOAD + asked.texts * found.n * _FORWARD if asked.inputs == "captured" else 5.0
    return before + _ATTENTION * asked.texts * layers * heads * found.n * (repeats + 1)
