"""The report as Markdown: tables as text, figures as links to the runs' own files."""

from __future__ import annotations

import html as html_module
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from plsh_cli.console import printable
from plsh_cli.report.claims import Claim
from plsh_cli.report.key_metrics import key_metric
from plsh_cli.report.library import Record
from plsh_cli.report.page import tables
from plsh_cli.report.page.content import Chapter, Content, facts, machine
from plsh_cli.report.page.figures import pictures
from plsh_cli.report.page.html import TITLES, folder
from plsh_cli.report.sections import command_line
from plsh_cli.report.text import FOLDING, Sheet


def page(content: Content, target: Path) -> Iterator[str]:
    """The file's text, piece by piece. Paths are relative to the folder of `target`."""
    yield f"# Positional LSH, measured\n\n{escape(content.title)}, made {content.made} by plsh report.\n\n"
    if content.notice:
        yield f"**{escape(content.notice)}**\n\n"
    for of, title in TITLES.items():
        yield f"## {title}\n\n"
        yield _claims([claim for claim in content.claims if claim.of == of], target)
    for chapter in content.chapters:
        yield from _chapter(chapter, target)
    for title, records in (("Not finished", content.troubled), ("Folders that are no runs", content.foreign)):
        if records:
            yield f"## {title}\n\n{_list([(record, record.problem or record.state) for record in records], target)}"


def escape(text: str) -> str:
    """A text that Markdown shows as it is, also within a table: on one line, marks and HTML without effect."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", html_module.escape(line, quote=False))


def _claims(claims: Sequence[Claim], target: Path) -> str:
    lines = []
    for claim in claims:
        said = [f"{escape(one.text)} ({one.verdict}, {_link(one.record, target)})" for one in claim.evidence]
        others = ", ".join(f"{_link(one.record, target)} ({one.verdict})" for one in claim.others)
        said += [f"shorter runs: {others}"] if others else []
        lines.append(
            [
                escape(claim.text),
                f"**{claim.verdict}**",
                "<br>".join(said) or f"no run; {_code(f'plsh {claim.command}')} would say",
            ]
        )
    return _grid(["claim", "verdict", "measured"], lines, 3)


def _link(record: Record, target: Path) -> str:
    return f"[{escape(record.path.name)}]({folder(record, target)})"


def _chapter(chapter: Chapter, target: Path) -> Iterator[str]:
    yield f"## {escape(chapter.section.title)}\n\n{escape(chapter.section.about)}\n\n"
    for record in chapter.full:
        try:
            yield _run(record, target)
        except Exception as error:  # one damaged run must not lose the others
            told = f"{record.path.name} cannot be shown: its result is damaged ({type(error).__name__})"
            yield f"{escape(told)}\n\n"
        record.forget()
    if chapter.listed:
        yield f"### More runs, without their figures and tables\n\n{_list(chapter.listed, target)}"


def _run(record: Record, target: Path) -> str:
    about = facts(record)
    machines = ", ".join(f"{key} {value}" for key, value in machine(record).items())
    address = folder(record, target)
    parts = [
        f"### {escape(record.command.replace('_', ' '))}: {escape(record.path.name)}\n",
        f"- command: {_code(command_line(record))}",
        f"- {escape(', '.join(about.values()))}; configuration hash {escape(record.hash or 'unknown')}",
        f"- [configuration]({address}config.yaml), [rows]({address}rows.csv), {escape(machines)}\n",
    ]
    found, trouble = tables.sheets(record)
    parts += [f"{escape(trouble)}\n"] if trouble else []
    parts += [_table(sheet) for sheet in found]
    for picture in pictures(record):
        relative = address + ("" if picture.path.parent == record.path else "figures/") + picture.path.name
        parts.append(f"{escape(picture.name)}: {picture.problem}\n" if picture.problem
                     else f"![{escape(picture.name)}]({relative.replace(' ', '%20')})\n")  # fmt: skip
    return "\n".join(parts) + "\n"


def _table(sheet: Sheet) -> str:
    rows, left_out = tables.cut(sheet)
    texts = max([sheet.text_columns, *(1 + place for place, name in enumerate(sheet.headers) if name in FOLDING)])
    lines = [["–" if value == tables.MISSING else escape(value) for value in row] for row in rows]
    notes = [escape(line) for line in (*sheet.caption.splitlines(), left_out) if line]
    table = _grid([escape(name) for name in sheet.headers], lines, min(texts, sheet.text_columns))
    lead = f"{escape(sheet.lead)}\n\n" if sheet.lead else ""
    return f"{lead}**{escape(sheet.title)}**\n\n{table}" + "".join(f"{note}  \n" for note in notes) + "\n"


def _list(records: Sequence[tuple[Record, str]], target: Path) -> str:
    lines = []
    for record, remark in records:
        about = facts(record)
        name = f"[{escape(record.path.name)}]({folder(record, target)})"
        metric, line = key_metric(record), _code(command_line(record)).replace("|", "\\|")
        key = escape(metric.label) if metric else "–"
        lines.append([name, line, record.state, about["started"], key, escape(remark)])
        record.forget()
    return _grid(["run", "command", "state", "started", "key number", "remark"], lines, 6)


def _grid(heads: Sequence[str], lines: Sequence[Sequence[str]], texts: int) -> str:
    rule = [":--" if place < texts else "--:" for place in range(len(heads))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rule, *lines)) + "\n"


def _code(text: str) -> str:
    """A text as code; Markdown does nothing with what is in it."""
    line = printable(" ".join(text.split()))
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    mark = "`" * (longest + 1)
    return f"{mark} {line} {mark}" if longest else f"{mark}{line}{mark}"
