"""The report as one HTML file that loads nothing: styles and figures are in it, and there are no scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from urllib.parse import quote

from plsh_cli.report.claims import Claim
from plsh_cli.report.evidence import VERDICTS, Evidence
from plsh_cli.report.key_metrics import key_metric
from plsh_cli.report.library import Record
from plsh_cli.report.page import html_run, tables
from plsh_cli.report.page.content import Chapter, Content, facts, first_of_kind
from plsh_cli.report.page.html_text import anchors, cell, escape, link, paragraphs
from plsh_cli.report.sections import command_line

#: Whose claims they are: the titles of both lists.
TITLES = {"paper": "The paper's claims", "plsh": "What the paper leaves open"}
#: Nothing is fetched, whatever a run's files hold.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(content: Content, target: Path) -> Iterator[str]:
    """The file's text, piece by piece. Links to run folders are relative to the folder of `target`."""
    places = anchors(content.records)
    style = (files("plsh_cli.report.page") / "page.css").read_text(encoding="utf-8")
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(content.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
    )
    yield _head(content)
    yield paragraphs(content.notice, "trouble notice")
    yield '<main>\n<section id="claims">\n<h2>What the runs say</h2>\n'
    yield _tally(content.claims)
    yield _claims(content.claims, places)
    yield "</section>\n"
    numbers = count(1)
    for chapter in content.chapters:
        yield from _chapter(chapter, places, numbers, target)
    yield _troubled(content, places, target)
    yield "</main>\n</body>\n</html>\n"


def _head(content: Content) -> str:
    done = sum(record.state == "done" for record in content.records)
    states = {state: sum(one.state == state for one in content.records) for state in ("running", "failed", "killed")}
    parts = [f"{done} done", *(f"{number} {state}" for state, number in states.items() if number)]
    parts += [f"{len(content.foreign)} other folders"] if content.foreign else []
    links = [link("#claims", "Claims"), *(link(f"#{one.section.key}", one.section.title) for one in content.chapters)]
    links += [link("#troubled", "Not finished")] if content.troubled or content.foreign else []
    return (
        "<header>\n<h1>Positional LSH, measured</h1>\n"
        "<p>ALiBi's bias matrix <var>L</var>* is the expectation of random block-diagonal masks; the mean "
        "<var>M̃</var> of <var>s</var> of them stands in for it. How well that works, what it costs and what it loses, "
        "from the runs at hand.</p>\n"
        f'<p class="facts">{escape(", ".join(parts))} · made {escape(content.made)} by plsh report</p>\n'
        f"<nav>{' '.join(links)}</nav>\n</header>\n"
    )


def _tally(claims: Sequence[Claim]) -> str:
    numbers = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    shown = [f"<li>{_chip(verdict)} {number}</li>" for verdict, number in numbers.items() if number]
    return (
        f'<ul class="tally">{"".join(shown)}</ul>\n<p class="note">'
        "Each claim is weighed by the latest whole run of every configuration, from that run's own result. A run "
        "decides where its 95 % interval lies on one side, of times where no round of one overlaps the other's. Where "
        "runs disagree, or none decides, the claim is undecided; one run is enough to refute a theorem or miss a "
        "target.</p>\n"
    )


def _chip(verdict: str) -> str:
    return f'<span class="chip {verdict.replace(" ", "-")}">{verdict}</span>'


def _claims(claims: Sequence[Claim], places: dict[int, str]) -> str:
    parts = []
    for of, title in TITLES.items():
        mine = [claim for claim in claims if claim.of == of]
        parts.append(
            f'<h3>{title}</h3>\n<ol class="claims">\n{"".join(_claim(claim, places) for claim in mine)}</ol>\n'
        )
    return "".join(parts)


def _claim(claim: Claim, places: dict[int, str]) -> str:
    said = []
    for one in claim.evidence:
        other = f"({one.verdict}) " if one.verdict != claim.verdict else ""
        said.append(f'<li>{escape(one.text)} {other}· <span class="source">{_run(one, places)}</span></li>')
    if claim.others:
        runs = ", ".join(f"{_run(one, places)} ({one.verdict})" for one in claim.others)
        said.append(f'<li>shorter runs: <span class="source">{runs}</span></li>')
    measured = f"<ul>{''.join(said)}</ul>" if said else _unmeasured(claim)
    return (
        f'<li><div class="verdict">{_chip(claim.verdict)}</div><div><p class="claim">{escape(claim.text)}</p>'
        f"{measured}</div></li>\n"
    )


def _run(one: Evidence, places: dict[int, str]) -> str:
    return link("#" + places[id(one.record)], one.record.path.name)


def _unmeasured(claim: Claim) -> str:
    return f'<p class="none">no run says anything about it; <code>plsh {escape(claim.command)}</code> would</p>'


def _chapter(chapter: Chapter, places: dict[int, str], numbers: Iterator[int], target: Path) -> Iterator[str]:
    section = chapter.section
    yield f'<section id="{section.key}">\n<h2>{escape(section.title)}</h2>\n'
    yield paragraphs(section.about, "about")
    opened = first_of_kind(chapter.full)
    for record in chapter.full:
        try:
            yield html_run.run(record, places[id(record)], id(record) in opened, numbers, folder(record, target))
        except Exception as error:  # one damaged run must not lose the others
            told = f"{record.path.name} cannot be shown: its result is damaged ({type(error).__name__})"
            yield f'<div id="{places[id(record)]}">{paragraphs(told, "trouble")}</div>\n'
        record.forget()
    if chapter.listed:
        yield f"<details><summary>{len(chapter.listed)} more runs, without their figures and tables</summary>\n"
        yield _list([(record, why, record.state) for record, why in chapter.listed], places, target)
        yield "</details>\n"
    yield "</section>\n"


def _troubled(content: Content, places: dict[int, str], target: Path) -> str:
    if not (content.troubled or content.foreign):
        return ""
    text = '<section id="troubled">\n<h2>Not finished, or no runs of plsh</h2>\n'
    if content.troubled:
        text += _list([(one, _problem(one), one.state) for one in content.troubled], places, target)
    if content.foreign:
        text += "<h3>Folders that are no runs</h3>\n"
        text += _list([(one, one.problem or "", "foreign") for one in content.foreign], places, target)
    return f"{text}</section>\n"


def _problem(record: Record) -> str:
    problem = record.problem
    record.forget()
    return problem or ("still running" if record.state == "running" else "no reason was recorded")


def _number(record: Record) -> str:
    """The one number that stands for the run."""
    metric = key_metric(record)
    record.forget()
    return metric.label if metric else tables.MISSING


def _list(records: Sequence[tuple[Record, str, str]], places: dict[int, str], target: Path) -> str:
    """A table of runs that are not shown in full: (run, remark, state) each."""
    lines = []
    for record, remark, state in records:
        about = facts(record)
        cells = [
            f'<th scope="row" id="{places[id(record)]}">{link(folder(record, target), record.path.name)}</th>',
            cell(command_line(record), text=True),
            cell(state, text=True),
            cell(about["started"], text=True),
            cell(about.get("took", "-")),
            cell(about["commit"], text=True),
            cell(_number(record), text=True),
            cell(remark, text=True),
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f'<th scope="col" class="text">{name}</th>' for name in
                    ("run", "command", "state", "started", "took", "commit", "key number", "remark"))  # fmt: skip
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="list of runs"><table class="runs">'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{chr(10).join(lines)}</tbody></table></div>\n"
    )


def folder(record: Record, target: Path) -> str:
    """A run folder's address relative to the page."""
    try:
        relative = os.path.relpath(record.path, target.parent)
    except ValueError:  # another drive
        relative = str(record.path.resolve())
    return quote(Path(relative).as_posix().encode("utf-8", "surrogateescape")) + "/"
