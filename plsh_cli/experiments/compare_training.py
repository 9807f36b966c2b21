"""Models trained from scratch under every setting: the level `training` of `plsh compare`.

Every setting and seed is a run of plsh train under runs/train; a finished one of the same configuration is reused and
an unfinished one goes on. Measures are those of its own bias on held-out text, at each length. A unit is a seed, which
decides initial weights, order of the data, draws and what is held out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plsh_cli import rundir
from plsh_cli.config import check, compose
from plsh_cli.config.schema.compare import CompareCommand
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.errors import MessageError, PlshError
from plsh_cli.experiments import resume
from plsh_cli.experiments.compare_settings import Setting

if TYPE_CHECKING:
    from plsh_cli.experiments.harness import Run
    from plsh_cli.experiments.train_job import Job

MEASURES = ("bits_per_byte", "perplexity")
#: Sections that the comparison decides.
_OURS = ("data", "bias", "seed", "study", "resume", "experiment")
#: Sections that a training run takes over from the comparison as they are.
_TAKEN = ("model", "data", "out", "logger", "device")


def member(cfg: CompareCommand, setting: Setting, seed: int) -> tuple[TrainCommand, list[str]]:
    """The training run of a setting and seed, and the overrides that compose it.

    Raises UserError or MessageError for `compare.train` that does not compose.
    """
    words = [f"model={cfg.model.name}", f"data={cfg.data.name}", f"bias={setting.bias}", *_knob(cfg, setting)]
    words += [*cfg.compare.train, f"seed={seed}"]
    ours = [text for text in cfg.compare.train if text.partition("=")[0].partition(".")[0] in _OURS]
    if ours:
        raise MessageError(
            f"compare.train: {ours[0]}: data, bias and seed are those of the comparison, set them there; "
            "a preset brings its own"
        )
    composed = compose.compose("train", words).model_dump(mode="json")
    mine = cfg.model_dump(mode="json")
    given = {text.partition("=")[0].split(".")[0] for text in cfg.compare.train}
    plain = composed | {key: mine[key] for key in _TAKEN if key not in given}
    plain["name"] = f"compare-{setting.bias}"
    config = check.validate("train", plain)
    assert isinstance(config, TrainCommand)
    before, after = resume.flat(composed), resume.flat(plain)
    return config, words + [f"{key}={compose.value(item)}" for key, item in after.items() if before.get(key) != item]


def jobs(cfg: CompareCommand, settings: Sequence[Setting], logs: Path) -> dict[tuple[Setting, int], Job]:
    """The runs, all settings of a seed before those of the next."""
    from plsh_cli.experiments.train_job import Job

    found = {}
    for seed in range(cfg.seed, cfg.seed + cfg.compare.seeds):
        for place, setting in enumerate(settings):
            config, words = member(cfg, setting, seed)
            found[setting, seed] = Job(f"{setting.name()}, seed {seed}", config, words, logs / f"{place}-{seed}.log")
    return found


def waiting(cfg: CompareCommand, settings: Sequence[Setting]) -> tuple[int, int]:
    """How many runs there are, and how many of them are finished already."""
    every = jobs(cfg, settings, Path()).values()
    return len(every), sum(_finished(job.config) for job in every)


def train(
    cfg: CompareCommand, settings: Sequence[Setting], run: Run
) -> tuple[list[int], dict[Setting, np.ndarray], list[dict[str, Any]]]:
    """The lengths; per setting (lengths and MEASURES, 1, seeds), by length; and the folders of the runs.

    Raises PlshError where runs failed; the others are kept.
    """
    from plsh_cli.experiments.train_job import Pool
    from plsh_cli.experiments.train_progress import clock

    logs, begin = run.path / "jobs", time.perf_counter()
    logs.mkdir(exist_ok=True)
    work = jobs(cfg, settings, logs)
    # Settings that differ in single tokens have one name.
    by_log = {job.log: key for key, job in work.items()}
    paths: dict[tuple[Setting, int], str] = {}
    failed = []
    with Pool(cfg.compare.processes) as pool:
        for number, (job, ended) in enumerate(pool.run(list(work.values())), start=1):
            took = time.perf_counter() - begin
            left = clock(took / number * (len(work) - number))
            run.say(f"{number}/{len(work)} {job.name}: {ended.text}; {clock(took)} so far, about {left} left")
            if ended.run is None or ended.state != "done":
                failed.append(f"{job.name}: {ended.text}")
            else:
                paths[by_log[job.log]] = ended.run
    if failed:
        raise PlshError(f"{len(failed)} of {len(work)} runs failed ({'; '.join(failed)[:500]}); the others are kept")
    results = {key: _own_rows(Path(path)) for key, path in paths.items()}
    lengths = sorted({row["n"] for rows in results.values() for row in rows})
    seeds = range(cfg.seed, cfg.seed + cfg.compare.seeds)
    found = {one: np.array([[_at(results[one, seed], n) for seed in seeds] for n in lengths]) for one in settings}
    # (lengths, seeds, measures) -> (lengths and measures, 1, seeds)
    shaped = {one: values.transpose(0, 2, 1).reshape(-1, 1, len(seeds)) for one, values in found.items()}
    return lengths, shaped, [{"setting": one.name(), "seed": seed, "run": paths[one, seed]} for one, seed in work]


def _own_rows(path: Path) -> list[dict[str, Any]]:
    """The run's rows of its own bias, one for each length. Raises MessageError where they are not as they should be."""
    record = rundir.read_json(path / "result.json") or {}
    rows = record.get("rows")
    own = [row for row in rows if isinstance(row, dict) and row.get("own") is True] if isinstance(rows, list) else []
    lengths = {row.get("n") for row in own}
    if not own or len(lengths) != len(own) or not all(_is_whole(row) for row in own):
        raise MessageError(
            f"{path}: its result.json cannot be read, or is not as a run leaves it; "
            "move the run away and repeat the command"
        )
    return own


def _is_whole(row: dict[str, Any]) -> bool:
    """Whether a row has its length, and its measures; null is one that is not finite."""
    numbers = [row.get(measure, "") for measure in MEASURES]
    return isinstance(row.get("n"), int) and all(isinstance(one, (int, float)) or one is None for one in numbers)


def _at(rows: Sequence[dict[str, Any]], n: int) -> list[float]:
    """The measures at a length; NaN where the run has none there, or one that is not finite."""
    found = [row for row in rows if row["n"] == n]
    values = [found[0][measure] if found else None for measure in MEASURES]
    return [math.nan if value is None else value for value in values]


def _knob(cfg: CompareCommand, setting: Setting) -> list[str]:
    words = []
    if setting.bias == "plsh":
        words += [f"bias.num_samples={setting.num_samples}"]
        words += [f"bias.sampler={cfg.bias.sampler}", f"bias.pitch={cfg.bias.pitch}"]
    if setting.bias == "window":
        words.append(f"bias.eps={setting.eps!r}")
    if setting.lengths is not None:
        words.append(f"bias.sigma={compose.value([length / 2.0 for length in setting.lengths])}")
    elif setting.bias in ("plsh", "window", "alibi") and cfg.bias.sigma is not None:
        words.append(f"bias.sigma={compose.value(list(cfg.bias.sigma))}")
    return words


def _finished(config: TrainCommand) -> bool:
    return rundir.finished(config.out, "train", compose.config_hash(config)) is not None
