"""One run in full as HTML: where it comes from, its tables, its figures and its configuration."""

from __future__ import annotations

from collections.abc import Iterator

from plsh_cli.report.key_metrics import key_metric
from plsh_cli.report.library import Record
from plsh_cli.report.page import tables
from plsh_cli.report.page.content import facts, machine
from plsh_cli.report.page.figures import Picture, pictures
from plsh_cli.report.page.html_text import cell, escape, link, paragraphs
from plsh_cli.report.sections import command_line
from plsh_cli.report.text import FOLDING, Sheet


def run(record: Record, place: str, opened: bool, numbers: Iterator[int], folder: str) -> str:
    """The run as a block that can be folded. numbers: of the page's tables and figures, to name them."""
    found, trouble = tables.sheets(record)
    source = _source(record, place)
    shown = [_table(sheet, next(numbers), source) for sheet in found]
    drawn = [_figure(picture, next(numbers), source) for picture in pictures(record)]
    about, metric = facts(record), key_metric(record)
    key = f' <span class="key">{escape(metric.label)}</span>' if metric else ""
    return (
        f'<details class="run"{" open" if opened else ""}>\n'
        f'<summary><span class="name">{escape(_name(record))}</span> <span class="facts">'
        f"{escape(' · '.join(about.values()))}{_settings(record)}</span>{key}</summary>\n"
        f'<pre class="command" id="{place}"><code>{escape(command_line(record))}</code></pre>\n'
        f"{_grid(drawn)}"
        f"{paragraphs(trouble or '', 'trouble')}"
        f"{''.join(shown)}"
        f"{paragraphs('' if found else 'The run has no rows.', 'note')}"
        f"{_details(record, place, folder)}</details>\n"
    )


def _name(record: Record) -> str:
    words = record.command.replace("_", " ")
    return words if record.name in (record.command, record.path.name) else f"{words}: {record.name}"


def _settings(record: Record) -> str:
    """What tells the run from others of its command while it is folded: its overrides but for where it was kept."""
    text = " ".join(line for line in record.overrides if not line.startswith(("out=", "logger.", "experiment=")))
    short = text if len(text) <= 120 else f"{text[:119]}…"
    return f'<span class="settings"> · {escape(short)}</span>' if short else ""


def _source(record: Record, place: str) -> str:
    """The line under a table or figure that leads to the run, its command and configuration."""
    commit = facts(record)["commit"]
    return (
        f'<span class="source">run {link(f"#{place}", record.path.name)} · '
        f"{link(f'#{place}-config', 'command and configuration')} · {escape(commit)}</span>"
    )


def _table(sheet: Sheet, number: int, source: str) -> str:
    rows, left_out = tables.cut(sheet)
    left = [place < sheet.text_columns or name in FOLDING for place, name in enumerate(sheet.headers)]
    heads = "".join(
        f'<th scope="col"{" class=text" if text else ""}>{escape(" ".join(name.split()))}</th>'
        for name, text in zip(sheet.headers, left, strict=True)
    )
    lines = []
    for place, row in enumerate(rows):
        first = f'<th scope="row">{escape(row[0])}</th>' if row else ""
        others = "".join(cell(value, text) for value, text in zip(row[1:], left[1:], strict=False))
        end = ' class="end"' if place in sheet.section_ends else ""
        lines.append(f"<tr{end}>{first}{others}</tr>")
    return (
        f'{paragraphs(sheet.lead, "note")}<div class="sheet" id="item-{number}">\n<h4>{escape(sheet.title)}</h4>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="item-{number}"><table>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>\n"
        f"{paragraphs(sheet.caption, 'note')}{paragraphs(left_out, 'note')}<p>{source}</p>\n</div>\n"
    )


def _figure(picture: Picture, number: int, source: str) -> str:
    caption = f"<figcaption>{escape(picture.name)}<br>{source}</figcaption>"
    if picture.problem:
        return f'<figure id="item-{number}"><p class="trouble">{escape(picture.problem)}</p>{caption}</figure>\n'
    return (
        f'<figure id="item-{number}"><img src="{picture.address}" alt="figure: {escape(picture.name)}">'
        f"{caption}</figure>\n"
    )


def _grid(drawn: list[str]) -> str:
    return f'<div class="figures">\n{"".join(drawn)}</div>\n' if drawn else ""


def _details(record: Record, place: str, folder: str) -> str:
    """What made the run: command, configuration, commit, machine."""
    lines = [
        ("command", f"<code>{escape(command_line(record))}</code>"),
        ("folder", link(folder, folder.rstrip("/"))),
        ("commit", escape((record.commit or "unknown") + (" with uncommitted changes" if record.dirty else ""))),
        ("configuration hash", escape(record.hash or "unknown")),
        *((key, escape(str(value))) for key, value in machine(record).items()),
    ]
    said = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in lines)
    return (
        '<details class="config"><summary>command, configuration, commit and machine</summary>\n'
        f'<dl id="{place}-config">{said}</dl>\n<pre><code>{escape(_yaml(record))}</code></pre>\n</details>\n'
    )


def _yaml(record: Record) -> str:
    import yaml

    return yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True, width=72) if record.config else "none"
