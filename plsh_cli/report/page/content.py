"""What the report shows, before it has a format: claims, sections of runs in full, and the lists of all others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from plsh_cli.report import claims
from plsh_cli.report.claims import Claim
from plsh_cli.report.library import Record
from plsh_cli.report.sections import SECTIONS, Section, section_of

#: Bytes of figures and tables that a page may have; runs beyond are listed without them. More where runs are named.
PAGE_BYTES, NAMED_PAGE_BYTES = 16_000_000, 64_000_000


#: What a page says above all where toy sizes are all that a study had.
TOY = (
    "The study behind these runs is plsh reproduce --scale smoke: toy sizes, which show that every part works. Its "
    "numbers and verdicts mean nothing; plsh reproduce --scale cpu measures."
)


@dataclass(frozen=True)
class Chapter:
    """A section with its runs: those in full, and those that are only listed, each with the reason."""

    section: Section
    full: Sequence[Record]
    listed: Sequence[tuple[Record, str]]


@dataclass(frozen=True)
class Content:
    """All of a report. troubled: runs that failed, were killed or still run, or are damaged; foreign: no runs."""

    title: str
    made: str
    records: Sequence[Record]
    claims: Sequence[Claim]
    chapters: Sequence[Chapter]
    troubled: Sequence[Record]
    foreign: Sequence[Record]
    notice: str = ""


def gather(records: Sequence[Record], named: bool, scales: Collection[str] = ()) -> Content:
    """The content of a report over these records. named: they were asked for one by one, so none counts as older.

    scales: of the studies that plsh reproduce made in the same folder.
    """
    sound = {id(record) for record in records if record.state == "done" and not _problem(record)}
    whole = [record for record in records if id(record) in sound]
    newest = whole if named else latest(whole)
    current = {id(record) for record in newest}
    room = NAMED_PAGE_BYTES if named else PAGE_BYTES
    full = {id(record) for record in within(newest, room)}
    chapters = []
    for section in SECTIONS:
        mine = [record for record in reversed(whole) if section_of(record) == section.key]
        listed = [(record, _why(record, current)) for record in mine if id(record) not in full]
        chapters.append(Chapter(section, by_kind([record for record in mine if id(record) in full]), listed))
    return Content(
        title=f"plsh report: {len(records)} run{'' if len(records) == 1 else 's'}",
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        records=records,
        claims=claims.weigh(newest),
        chapters=[chapter for chapter in chapters if chapter.full or chapter.listed],
        troubled=[one for one in reversed(records) if one.state != "foreign" and id(one) not in sound],
        foreign=[one for one in records if one.state == "foreign"],
        notice=TOY if set(scales) == {"smoke"} else "",
    )


def latest(records: Iterable[Record]) -> list[Record]:
    """The newest run of each command, name and configuration, oldest first; `records` are."""
    found: dict[tuple[str, ...], Record] = {}
    for record in records:
        key = (record.command, record.name, record.hash or json.dumps(record.config, sort_keys=True, default=str))
        found.pop(key, None)
        found[key] = record
    return list(found.values())


def by_kind(records: Sequence[Record]) -> list[Record]:
    """The records, those of one command and name together, in the order of each kind's first."""
    return [record for group in _kinds(records).values() for record in group]


def within(records: Sequence[Record], room: int) -> Iterator[Record]:
    """As many records as have room in bytes: the newest of each kind (command and name) first, then the next, ..."""
    groups = [list(reversed(group)) for group in _kinds(records).values()]
    for place in range(max(map(len, groups), default=0)):
        for group in groups:
            if place >= len(group):
                continue
            room -= weight(group[place])
            if room < 0:
                return
            yield group[place]


def weight(record: Record) -> int:
    """About how many bytes a run takes on the page: its figures in base64, and its tables."""
    figures = 0
    for file in record.figures:
        try:
            figures += file.stat().st_size
        except OSError:
            continue
    return 4 * figures // 3 + 40_000


def first_of_kind(records: Iterable[Record]) -> set[int]:
    """The ids of the first record of each command and name."""
    return {id(group[0]) for group in _kinds(records).values()}


def _kinds(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.command, record.name), []).append(record)
    return groups


def _problem(record: Record) -> str | None:
    """A record's problem, without keeping its result in memory."""
    problem = record.problem
    record.forget()
    return problem


def _why(record: Record, current: set[int]) -> str:
    return "no room on this page" if id(record) in current else "an older run of the same configuration"


def facts(record: Record) -> dict[str, str]:
    """When, how long, and from which source a run was made, for a line under its name."""
    found = {"started": (record.started or "unknown time").replace("T", " ").replace("Z", " UTC")}
    if record.seconds is not None:
        found["took"] = took(record.seconds)
    if record.commit:
        found["commit"] = "commit " + record.commit[:10] + (" with uncommitted changes" if record.dirty else "")
    else:
        found["commit"] = "commit unknown"
    return found


def took(seconds: float) -> str:
    """A duration as text."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def machine(record: Record) -> dict[str, Any]:
    """Processor, cores, Python and torch that a run was made with, as far as env.json says."""
    from plsh_cli import rundir

    found = rundir.read_json(record.path / "env.json") or {}
    packages = found.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    named = {key: found.get(key) for key in ("processor", "cores", "platform", "python")}
    named |= {key: packages.get(key) for key in ("plsh-cli", "torch", "transformers")}
    return {key: value for key, value in named.items() if value is not None}
