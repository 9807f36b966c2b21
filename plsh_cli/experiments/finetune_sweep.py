"""`plsh finetune bias.num_samples=5,10,20,40 --multirun`: perplexity against s, beside exact ALiBi and fixed blocks.

To the values given come several seeds, and runs of the same seeds under the baselines (sweep.seeds, sweep.baselines).
All are jobs of one sweep. Its folder gets rows.csv and summary.json (the rows of finetune_sweep_rows.py with what they
are about) and the figure. Sweeps that leave s as it is are none of this.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from plsh_cli import console, report, rundir
from plsh_cli.config import check, compose
from plsh_cli.config.schema.biases import ModelBias
from plsh_cli.errors import MessageError, PlshError
from plsh_cli.experiments import harness, resume, sweep
from plsh_cli.experiments.finetune_sweep_rows import Cell, own_rows, setting_text, table
from plsh_cli.experiments.sweep import Swept

if TYPE_CHECKING:
    from plsh_cli.config.schema.finetune import FinetuneCommand

COMMAND, SAMPLES, SEED = "finetune", "bias.num_samples", "seed"
#: A job's own table is left at its own bias: the sweep compares jobs, and each should be short.
SHORT = ("final.before=false", "final.biases=[]")
#: The keys of the bias section that each bias has.
FIELDS = {
    typing.get_args(form.model_fields["name"].annotation)[0]: set(form.model_fields)
    for form in typing.get_args(ModelBias)
}


@dataclass(frozen=True)
class Member:
    """One job: its overrides, what it stands for, and its configuration, or why there is none.

    setting: what else is swept, key and value. before: the folder of a finished run of this configuration.
    """

    overrides: list[str]
    bias: str
    setting: tuple[tuple[str, str], ...]
    num_samples: int | None
    seed: int | None
    config: FinetuneCommand | None
    refused: str | None = None
    before: str | None = None

    def cell(self, by_length: Mapping[int, Mapping[str, Any]]) -> Cell | None:
        """Its cell of the table; None where it stands for no cell, since s or the seed is no number."""
        if self.seed is None or (self.bias == "plsh" and self.num_samples is None):
            return None
        return Cell(self.bias, self.setting, self.num_samples, self.seed, by_length)


@dataclass(frozen=True)
class Plan:
    """A sweep over s: what Hydra gets, part by part, and the jobs that come out of it."""

    parts: list[list[str]]
    members: list[Member]
    baselines: list[str]

    @property
    def missing(self) -> list[Member]:
        """The jobs that are to run."""
        return [member for member in self.members if member.config is not None and member.before is None]


def plan(overrides: Sequence[str], extra: Path | None) -> Plan | None:
    """The sweep that checked overrides mean; None for one that is not over s, which is a sweep like any other, and
    for one with a sweeper of its own, whose jobs only it knows.

    Raises UserError or MessageError where no job can be composed, and for overrides that do not go with such a sweep.
    """
    parsed = {one.key_or_group: one for one in compose.parse(list(overrides))}
    swept = [key for key, one in parsed.items() if one.is_sweep_override()]
    if SAMPLES not in swept or any(key.startswith(("hydra.sweeper.params", "hydra/sweeper")) for key in parsed):
        return None
    _refuse(parsed, swept)
    base = _base(overrides, extra)
    if base.sweep is None:
        return None
    parts = _parts(overrides, parsed, base, extra)
    members = [member for part in parts for member in _members(part, swept, extra)]
    return Plan(parts, members, list(base.sweep.baselines))


def describe(plan: Plan, *, dry_run: bool) -> None:
    """Say which jobs there are and how many are there already; of a dry run, each job and what one of them would do."""
    for line in _counts(plan):
        console.say(line)
    if not dry_run:
        return
    shared = set.intersection(*(set(member.overrides) for member in plan.members))
    for member in plan.members:
        state = "refused" if member.refused else "there" if member.before else "to run"
        words = " ".join(word for word in member.overrides if word not in shared)
        console.say(f"{state:8s}{words}  {member.refused or member.before or ''}".rstrip())
    console.say(f"all with {' '.join(word for word in plan.members[0].overrides if word in shared)}")
    if plan.missing:
        config = plan.missing[0].config
        assert config is not None
        console.say("the first of those to run:")
        for key, value in (harness.plan(config) | harness.calibrate(config)).items():
            console.say(f"# {key}: {value}")
        harness.check_fit(config)


def finish(plan: Plan, swept: Swept) -> None:
    """Write the sweep's rows.csv, summary.json and figure into its folder, and print its table.

    Raises MessageError where the folder cannot be written.
    """
    record = _record(plan, swept)
    if not record["rows"]:
        console.say("no job is there: nothing to compare")
        return
    folder = swept.folder
    try:
        folder.write_csv("rows.csv", record["rows"])
        folder.write_json("summary.json", record)
        shown = rundir.finite(record)
        figures = report.draw_result(folder.path, shown, folder.path)
    except OSError as error:
        raise MessageError(f"out: the sweep's folder cannot be written ({error.strerror}: {error.filename})") from None
    with console.whole_run():
        out = console.output()
        for sheet in report.tables(shown):
            out.print(sheet)
    failed = folder.path / "failed.txt"
    if failed.exists():
        console.say(f"the figure could not be drawn: {failed}")
    for file in figures:
        console.say(f"figure: {file}")
    console.say(f"rows: {folder.path / 'rows.csv'}")


def _refuse(parsed: Mapping[str, Any], swept: Sequence[str]) -> None:
    for key in swept:
        if key.startswith("sweep."):
            raise MessageError(f"{key} decides which jobs a sweep over s has: give it one value")
    if "bias" in swept:
        raise MessageError(
            "bias: only bias=plsh has draws to sweep over; the others beside it are sweep.baselines=[...]"
        )
    if "baselines" in parsed and parsed["baselines"].value() is not None:
        raise MessageError(
            "--baselines belongs to a single run; a sweep over s has baselines of its own, sweep.baselines=[...]"
        )


def _base(overrides: Sequence[str], extra: Path | None) -> FinetuneCommand:
    """The first combination that is a valid configuration; the first one's error where none is."""
    first: PlshError | None = None
    for words in sweep.expand(overrides):
        config, refused = _config(words, extra)
        if config is not None:
            return config
        first = first or refused
    assert first is not None
    raise first


def _parts(
    overrides: Sequence[str], parsed: Mapping[str, Any], base: FinetuneCommand, extra: Path | None
) -> list[list[str]]:
    """The sweeps: the one over s, and one of the baselines, or several where their biases differ in their keys."""
    assert base.sweep is not None
    others = [text for text, key in zip(overrides, parsed, strict=True) if key != SEED]
    seeds = range(base.seed, base.seed + base.sweep.seeds)
    given = SEED in parsed and parsed[SEED].is_sweep_override()
    seed = next(text for text, key in zip(overrides, parsed, strict=True) if key == SEED) if given else None
    # The seed first, so that a sweep that is stopped has whole seeds.
    first = [seed or f"{SEED}={','.join(map(str, seeds))}"]
    short = [text for text in SHORT if text.partition("=")[0] not in parsed]
    parts = [[*first, *others, *short]]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in base.sweep.baselines:
        kept = [text for text in others if _fits(compose.parse([text])[0].key_or_group, name)]
        groups.setdefault((*kept, *_undone(name, kept, extra)), []).append(name)
    return parts + [[*first, f"bias={','.join(names)}", *kept, *short] for kept, names in groups.items()]


def _fits(key: str, bias: str) -> bool:
    """Whether an override has a meaning under a baseline."""
    return key != "bias" and (not key.startswith("bias.") or key.split(".")[1] in FIELDS[bias])


def _undone(bias: str, kept: Sequence[str], extra: Path | None) -> list[str]:
    """The overrides that take out of the bias section what a preset has there for another bias."""
    section = compose.load(COMMAND, sweep.expand([f"bias={bias}", *kept])[0], extra)["bias"]
    return [f"~bias.{key}={compose.value(item)}" for key, item in section.items() if key not in FIELDS[bias]]


def _members(part: Sequence[str], swept: Sequence[str], extra: Path | None) -> list[Member]:
    found = []
    for words in sweep.expand(part):
        values = {
            one.key_or_group: one.get_value_element_as_str() for one in compose.parse(words) if not one.is_delete()
        }
        setting = tuple((key, values[key]) for key in swept if key in values and key not in (SAMPLES, SEED))
        config, refused = _config(words, extra)
        # Of a configuration that is refused, its text has to do.
        bias = config.bias.name if config else values.get("bias", "plsh")
        samples = getattr(config.bias, "num_samples", None) if config else _whole(values.get(SAMPLES, ""))
        seed = config.seed if config else _whole(values[SEED])
        before = _finished(config) if config else None
        reason = str(refused) if refused else None
        found.append(Member(words, bias, setting, samples, seed, config, reason, before))
    return found


def _config(words: Sequence[str], extra: Path | None) -> tuple[FinetuneCommand | None, PlshError | None]:
    """The configuration of one job, or what is wrong with it; MessageError where it does not even compose."""
    plain = compose.load(COMMAND, list(words), extra)
    try:
        return cast("FinetuneCommand", check.validate(COMMAND, plain)), None
    except PlshError as error:
        return None, error


def _finished(config: FinetuneCommand) -> str | None:
    run = resume.finished(config)
    return str(run.path) if run else None


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _counts(plan: Plan) -> list[str]:
    """What the jobs are made of, and how many are there, to run and refused."""
    members = plan.members
    samples = dict.fromkeys(str(one.num_samples) for one in members if one.num_samples is not None)
    seeds = dict.fromkeys(str(one.seed) for one in members if one.seed is not None)
    settings = dict.fromkeys(setting_text(one.setting) for one in members if one.bias == "plsh" and one.setting)
    parts = [f"s = {', '.join(samples)}", f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"]
    if settings:
        parts.append(f"each with {'; '.join(settings)}")
    beside = [name.replace("_", " ") for name in plan.baselines]
    parts.append(f"the same seeds under {', '.join(beside)}" if beside else "no baselines (sweep.baselines is empty)")
    refused = [one.refused for one in members if one.refused]
    there = sum(one.before is not None for one in members)
    counts = f"{there} of them are there already, {len(plan.missing)} to run"
    lines = [f"a sweep over s of {len(members)} jobs: {'; '.join(parts)}", counts]
    return [*lines, f"{len(refused)} cannot run: {refused[0]}"] if refused else lines


def _record(plan: Plan, swept: Swept) -> dict[str, Any]:
    """What the sweep came to, as a result.json has it: rows, and in summary what they are about, and the runs."""
    jobs = {tuple(job.overrides): job for job in swept.jobs}
    cells, runs, failed = [], [], []
    for member in plan.members:
        job = jobs.get(tuple(member.overrides))
        result = rundir.read_json(Path(job.run) / "result.json") if job and job.run and job.state != "failed" else None
        by_length = own_rows(result["rows"], member.bias) if result else {}
        runs.append({"overrides": member.overrides, "run": job.run if job else None, "there": bool(by_length)})
        if not by_length:
            reason = job.reason if job and job.reason else "its result has no perplexity under its own bias"
            failed.append(f"{' '.join(member.overrides)}: {reason}")
        cell = member.cell(by_length)
        if cell is not None:
            cells.append(cell)
    rows = table(cells) if any(cell.by_length for cell in cells) else []
    return {"schema": 1, "command": "finetune_sweep", "rows": rows, "summary": _summary(plan, cells, runs, failed)}


def _summary(plan: Plan, cells: Sequence[Cell], runs: list[dict[str, object]], failed: list[str]) -> dict[str, object]:
    """What was swept on what; context is null where it is among what is swept."""
    configs = [member.config for member in plan.members if member.config is not None]
    contexts = {config.train.context for config in configs}
    return {
        "model": ", ".join(dict.fromkeys(Path(one.model.path or one.model.name).name for one in configs)),
        "data": ", ".join(dict.fromkeys(one.data.name for one in configs)),
        "context": contexts.pop() if len(contexts) == 1 else None,
        "num_samples": sorted({cell.num_samples for cell in cells if cell.num_samples is not None}),
        "seeds": sorted({cell.seed for cell in cells}),
        "settings": list(dict.fromkeys(setting_text(cell.setting) for cell in cells if cell.bias == "plsh")),
        "baselines": plan.baselines,
        "jobs": len(plan.members),
        "failed": failed,
        "runs": runs,
    }
