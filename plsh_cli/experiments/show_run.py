"""Everything about one run in one view: `plsh show RUN`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from plsh_cli import console, report, rundir
from plsh_cli.config import compose
from plsh_cli.config.schema import SCHEMAS
from plsh_cli.errors import PlshError
from plsh_cli.experiments.resume import flat
from plsh_cli.experiments.train_progress import clock
from plsh_cli.report import listing, sections
from plsh_cli.report.key_metrics import key_metric
from plsh_cli.report.library import Record
from plsh_cli.report.terminal_plots import WIDTH, Axis, ascii_only, plot, spreads

#: The metrics of steps that are drawn, with their units.
METRICS = {
    "loss": "training loss (nats per token)",
    "eval_loss": "held-out loss (nats per token)",
    "tokens_per_second": "tokens per second",
}
_ERROR_LINES = 5
_VALUE_WIDTH = 60


def show(record: Record) -> None:
    """Print a run: what it was, how it ended, its tables, curves and figures."""
    with console.whole_run():
        out = console.output()
        for line in _head(record):
            console.say(line)
        _tables(record, out)
        width = min(WIDTH, out.width)
        for lines in plots(record, width, ascii_only()):
            console.say("\n" + "\n".join(lines))
        if record.figures:
            console.say("\nfigures:")
        for file in record.figures:
            console.say(f"  {file}")


def plain(record: Record) -> dict[str, object]:
    """The same as plain values, for JSON; rows and summary as they are in result.json."""
    return {
        **listing.plain(record),
        "command_line": sections.command_line(record),
        "overrides": record.overrides,
        "differences": differences(record),
        "config": record.config,
        "dirty": record.dirty,
        "environment": rundir.read_json(record.path / "env.json"),
        "summary": record.summary,
        "rows": record.rows,
        "metrics": {name: points for name, points in metrics(record).items() if points},
        "figures": [str(file) for file in record.figures],
    }


def differences(record: Record) -> dict[str, list[object]] | None:
    """Every key whose value is not the command's default, with default and value; None where that cannot be told."""
    if record.command not in SCHEMAS or not record.config:
        return None
    try:
        default = flat(compose.load(record.command, []))
    except PlshError:
        return None
    mine = flat(record.config)
    return {
        key: [default.get(key), mine.get(key)]
        for key in dict.fromkeys([*default, *mine])
        if default.get(key) != mine.get(key)
    }


def metrics(record: Record) -> dict[str, list[tuple[float, float]]]:
    """By metric of steps, its (step, value) pairs from metrics.jsonl; lines that are damaged are left out."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in METRICS}
    if not (record.path / "metrics.jsonl").is_file():
        return {}
    try:
        with open(record.path / "metrics.jsonl", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                _take(line, found)
    except OSError:
        return {}
    return found if found["loss"] or found["eval_loss"] else {}


def _take(line: str, found: Mapping[str, list[tuple[float, float]]]) -> None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return
    step = values.get("step") if isinstance(values, dict) else None
    if not _is_number(step):
        return
    for name, points in found.items():
        if _is_number(values.get(name)):
            points.append((step, values[name]))


def plots(record: Record, width: int, plain: bool) -> Iterator[list[str]]:
    """The curves of the steps' metrics, then that of the key metric; each as lines."""
    for name, points in metrics(record).items():
        if len(points) > 1:
            yield plot(points, Axis("step"), Axis(METRICS[name]), width=width, plain=plain)
    metric = key_metric(record)
    if metric and len(metric.curve) > 1:
        x, y = ([point[place] for point in metric.curve] for place in (0, 1))
        name = f"{metric.name}{f' ({metric.unit})' if metric.unit else ''}"
        yield plot(
            metric.curve, Axis(metric.axis, spreads(x)), Axis(name, spreads(x) and spreads(y)), width=width, plain=plain
        )


def _head(record: Record) -> Iterator[str]:
    """What the run was, as lines."""
    facts = {
        "run": str(record.path),
        "command": sections.command_line(record) if record.overrides or record.config else record.command,
        "state": _state(record),
        "started": f"{record.started}, {listing.age(record.started, datetime.now(UTC))} ago" if record.started else "-",
        "commit": _commit(record),
        "environment": _environment(record),
        "size": listing.size(record.size()),
    }
    for name, text in facts.items():
        yield f"{name:<12}{text}"
    metric = key_metric(record)
    if metric:
        yield f"{'key metric':<12}{metric.label}"
    yield from _errors(record)
    yield from _changes(record)


def _state(record: Record) -> str:
    took = f" after {clock(record.seconds)}" if record.seconds is not None and record.state != "running" else ""
    return f"{record.state}{took}{f': {record.problem}' if record.problem else ''}"


def _commit(record: Record) -> str:
    if record.commit is None:
        return "unknown"
    return f"{record.commit}{' with changes (git.json has them)' if record.dirty else ''}"


def _environment(record: Record) -> str:
    found = rundir.read_json(record.path / "env.json") or {}
    packages = found.get("packages")
    versions = packages if isinstance(packages, dict) else {}
    parts = [
        found.get("processor"),
        found.get("cores") and f"{found['cores']} cores",
        found.get("python") and f"Python {found['python']}",
        versions.get("torch") and f"torch {versions['torch']}",
        versions.get("plsh-cli") and f"plsh {versions['plsh-cli']}",
    ]
    return ", ".join(str(part) for part in parts if part) or "unknown"


def _errors(record: Record) -> Iterator[str]:
    """The end of error.txt."""
    if not (record.path / "error.txt").is_file():
        return
    try:
        lines = (record.path / "error.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    yield f"error.txt ends with:{'' if len(lines) <= _ERROR_LINES else f' (of {len(lines)} lines)'}"
    yield from (f"  {line}" for line in lines[-_ERROR_LINES:])


def _changes(record: Record) -> Iterator[str]:
    """The configuration where it is not the default."""
    changed = differences(record)
    if changed is None:
        return
    changed = {key: values for key, values in changed.items() if key != "out"}
    yield "configuration: the defaults" if not changed else "configuration, where it is not the default:"
    for key, (before, after) in changed.items():
        yield f"  {key}: {_short(before)} -> {_short(after)}"


def _short(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _VALUE_WIDTH else f"{text[: _VALUE_WIDTH - 3]}..."


def _tables(record: Record, out: Any) -> None:
    """The tables that the command printed, made again from its result."""
    if not record.rows:
        return
    console.say()
    try:
        for sheet in report.tables(record.result):
            out.print(sheet)
    except OSError:
        raise
    except Exception as error:  # a result of another version, or a damaged one
        console.say(f"no tables: result.json does not have what they need ({type(error).__name__}: {error})")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
