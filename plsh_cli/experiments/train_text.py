"""What text a run was begun with, kept in its folder, and what of it is another one now.

Files behind data.path can change between a start and its continuation or evaluation; text that has trained could then
be taken for held-out text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plsh_cli import assets, rundir
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.errors import MessageError
from plsh_cli.experiments.texts import TEXT
from plsh_cli.rundir import RunFolder

#: The record in a run folder: `Split.identity` and, as `documents`, the held-out documents' names with their hashes.
NAME = "data.json"
_SHOWN = 5


def check(folder: RunFolder, facts: Mapping[str, Any], resumed: bool) -> None:
    """Write the record of a run that begins; MessageError where one goes on whose text is another now."""
    before = recorded(folder.path) if resumed else None
    if before is None:
        folder.write_json(NAME, facts)
        return
    changed = changes(before, facts)
    if changed:
        raise refused("resume", folder.path.name, changed, "or start a new run")


def refused(field: str, name: str, changed: list[str], instead: str) -> MessageError:
    """The message about a run whose text is another now."""
    return MessageError(
        f"{field}: the text is not that which {name} was begun with: {'; '.join(changed)}. Its held-out text would not "
        f"be what was held out then; put the text back, {instead}"
    )


def recorded(run: Path) -> dict[str, Any] | None:
    """What a run was begun with; None where nothing says so. A finished run of an earlier version has its summary."""
    found = rundir.read_json(run / NAME)
    if found is None:
        found = ((rundir.read_json(run / "result.json") or {}).get("summary") or {}).get("data")
    return found if isinstance(found, dict) and isinstance(found.get("held_out"), dict) else None


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two records, one clause each: corpus, tokenizer, held-out documents, training text."""
    found = [] if before.get("corpus") == now.get("corpus") else [_corpus(before, now)]
    if before.get("tokenizer") != now.get("tokenizer"):
        found.append("another tokenizer")
    if before["held_out"].get("sha256") != now["held_out"].get("sha256"):
        found.append(_held_out(before, now))
    if (before.get("train") or {}).get("sha256") != (now.get("train") or {}).get("sha256"):
        found.append("other training documents")
    return found


def corpus_changes(run: Path, cfg: TrainingCommand) -> list[str]:
    """What differs of the corpus as far as its files say it, without reading it as text; empty where unknown."""
    from plsh_cli.data.training_data import corpus_identity

    before = (recorded(run) or {}).get("corpus")
    source = cfg.data.path if cfg.data.name == TEXT else assets.cached(cfg.data.name)
    if not before or source is None or "sha256" not in before:
        return []
    now = corpus_identity(cfg.data.name, source, cfg.train.join_rows, cfg.drop_empty)
    changed = {key for key in {*before, *now} - {"part"} if before.get(key) != now.get(key)}
    return [_corpus({"corpus": before}, {"corpus": now})] if changed else []


def _corpus(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = (one.get("corpus") or {} for one in (before, now))
    named = [key for key in dict.fromkeys([*old, *new]) if key not in ("sha256", "part")]
    keys = [key for key in named if old.get(key) != new.get(key)]
    if keys:
        return ", ".join(f"corpus {key} {old.get(key)} -> {new.get(key)}" for key in keys)
    return "the files of the corpus changed"


def _held_out(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = (dict(one.get("documents") or dict.fromkeys(one["held_out"]["names"])) for one in (before, now))
    parts = {
        "no longer": [name for name in old if name not in new],
        "now also": [name for name in new if name not in old],
        "with another text": [name for name in old if name in new and new[name] != old[name]],
    }
    told = [f"{what} {_listed(names)}" for what, names in parts.items() if names]
    return f"held out are {', '.join(told)}" if told else "other held-out text"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
