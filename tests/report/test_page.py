"""`plsh report` in every format: everything is there, with its run; nothing of a run's content can do anything."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import os
import re
import socket
import stat
import threading
import time
from pathlib import Path

import page_cases
import pytest

from plsh_cli.report import library
from plsh_cli.report.page import content, tables, write

EVIL = "<script>alert('x')</script>\"&|`*"


class Document(html.parser.HTMLParser):
    """Elements of a page, by (tag, attributes); texts outside style; tags left open."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data

    def having(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def _make_socket(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(name)


@pytest.fixture
def runs(tmp_path):
    """A folder with one run of every kind."""
    page_cases.library_of_runs(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def page(plsh, runs):
    """The page over them."""
    done = plsh("report")
    assert done.code == 0, done.text
    assert "7 done" in done.text
    return Document((runs / "report.html").read_text(encoding="utf-8"))


def test_the_page_is_well_formed_and_loads_nothing(page):
    assert page.open == []
    assert not {"script", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in page.elements}
    assert all(image["src"].startswith("data:image/") for image in page.having("img"))
    assert all(image["alt"] for image in page.having("img"))
    assert [link["href"] for link in page.having("link")] == ["data:,"]
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_every_link_leads_somewhere(page, runs):
    names = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for link in page.having("a"):
        address = link["href"]
        if address.startswith("#"):
            assert address[1:] in names
        else:
            assert (runs / address.replace("%20", " ")).is_dir()


def test_every_run_table_and_figure_is_there_with_its_run(page, runs):
    for record in library.scan(runs):
        assert record.path.name in page.text
        for sheet in tables.sheets(record)[0] if record.state == "done" else []:
            assert sheet.title in page.text
            assert all(cell in page.text for row in sheet.rows for cell in row if cell != "-")
    figures = [image["alt"] for image in page.having("img")]
    assert len(figures) == 7
    sheets = [attributes for attributes in page.having("div") if attributes.get("class") == "sheet"]
    sources = re.findall(r"run (\S+) · command and configuration · commit (0123456789|unknown)", page.text)
    assert len(sources) == len(sheets) + len(figures)
    assert "ValueError: it did not work" in page.text
    assert "no run folder of plsh (config.yaml is missing)" in page.text


def test_missing_values_are_shown_as_missing(page):
    assert any(cell.get("class") == "missing" for cell in page.having("td"))
    assert "no value: not measured, or does not apply" in [span.get("title") for span in page.having("span")]


def test_sections_in_the_papers_order(page):
    names = [section["id"] for section in page.having("section")]
    assert names == ["claims", "matrix", "output", "scratch", "finetune", "speed", "beyond", "other", "troubled"]


def test_claims_lead_to_the_runs_that_decide_them(page):
    chips = [span["class"].split()[1] for span in page.having("span") if (span.get("class") or "").startswith("chip")]
    assert {"holds", "does-not-hold", "undecided"} <= set(chips)
    assert "blocks against fused, s=10 at n = 4,096, float32, forward: 14.5 times the time, target <= 14" in page.text


def test_hostile_names_and_values_do_nothing(plsh, tmp_path):
    out = tmp_path / "runs"
    rows = [{EVIL: EVIL, "n": 1, "long": "x" * 5000}]
    path = page_cases.run_folder(out, "unheard_of", rows, {}, name="evil", overrides=[f"name={EVIL}", "\x00\x07"])
    (path / "config.yaml").write_text(json.dumps({"name": EVIL, "command": "unheard_of"}), encoding="utf-8")
    path.rename(path.with_name(EVIL.replace("/", "_")))
    failed = page_cases.run_folder(out, "train", [], {}, state="failed", number=1)
    (failed / "status.json").write_text(json.dumps({"state": "failed", "reason": EVIL, "command": EVIL}))
    (out / "javascript:alert(1)").mkdir()
    assert plsh("report").code == 0
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    document = Document(text)
    assert document.open == []
    assert all(re.match(r"#|[A-Za-z0-9._%-]+/", link["href"]) for link in document.having("a"))
    assert not [name for _, attributes in document.elements for name in attributes if name.startswith("on")]
    assert plsh("report", "--format", "md").code == 0
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "<script" not in re.sub(r"(`+) .*? \1(?!`)", "", text)  # within code it is only text


def test_names_that_are_not_unicode(plsh, tmp_path):
    path = page_cases.run_folder(tmp_path / "runs", "unheard_of", [{"a": 1}], {})
    path.rename(path.with_name("caf\udce9"))
    for format_ in ("html", "md", "csv"):
        done = plsh("report", "--format", format_)
        assert done.code == 0, done.text


def test_damaged_figures_are_named_and_left_out(plsh, tmp_path):
    bad = {"cut": page_cases.SVG[:40], "text": b"hello", "fake.png": b"\x89PNG\r\n\x1a\n", "empty": b""}
    page_cases.run_folder(tmp_path / "runs", "unheard_of", [{"a": 1}], {}, figures={**bad, "good": page_cases.SVG})
    assert plsh("report").code == 0
    document = Document((tmp_path / "runs/report.html").read_text(encoding="utf-8"))
    assert [image["alt"] for image in document.having("img")] == ["figure: good"]
    assert document.text.count("damaged") == len(bad)


def test_a_result_of_another_version_keeps_its_rows(plsh, tmp_path):
    page_cases.run_folder(tmp_path / "runs", "approx", [{"n": 61, "other": 2.5}], {})
    assert plsh("report").code == 0
    text = Document((tmp_path / "runs/report.html").read_text(encoding="utf-8")).text
    assert "its tables cannot be made from its result (KeyError: 'kernel')" in text
    assert "2.50" in text


def test_older_runs_of_a_configuration_are_listed_only(tmp_path):
    result = page_cases.approx_result()
    for number in range(3):
        page_cases.run_folder(tmp_path, "approx", result["rows"], result["summary"], number=number)
    page_cases.run_folder(tmp_path, "approx", result["rows"], result["summary"], number=3, hash_="b" * 16)
    records = library.scan(tmp_path)
    (chapter,) = content.gather(records, named=False).chapters
    assert [one.path.name[-6:] for one in chapter.full] == ["000003", "000002"]
    assert {why for _, why in chapter.listed} == {"an older run of the same configuration"}
    assert len(content.gather(records, named=True).chapters[0].full) == 4


def test_runs_beyond_the_room_are_listed_newest_of_each_kind_first(tmp_path, monkeypatch):
    for number in range(4):
        page_cases.run_folder(tmp_path, "a", [{"x": 1}], {}, number=number, hash_=f"{number}", name="a")
    page_cases.run_folder(tmp_path, "b", [{"x": 1}], {}, number=9, name="b")
    monkeypatch.setattr(content, "PAGE_BYTES", 3 * content.weight(library.scan(tmp_path)[0]))
    (chapter,) = content.gather(library.scan(tmp_path), named=False).chapters
    assert [one.path.name[-6:] for one in chapter.full] == ["000009", "000003", "000002"]
    assert [why for _, why in chapter.listed] == ["no room on this page"] * 2


def test_long_tables_are_cut_and_it_says_so(tmp_path, plsh):
    rows = [{"x": number} for number in range(tables.SHOWN_ROWS + 1)]
    page_cases.run_folder(tmp_path / "runs", "unheard_of", rows, {})
    assert plsh("report").code == 0
    assert "the first 200 of 201 rows" in (tmp_path / "runs/report.html").read_text(encoding="utf-8")


def test_markdown(plsh, runs):
    done = plsh("report", "--format", "md", "--to", "docs/page.md")
    assert done.code == 0, done.text
    text = Path("docs/page.md").read_text(encoding="utf-8")
    for record in library.scan(runs):
        assert record.path.name in text.replace("\\", "")
    figures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(figures) == 7
    assert all((Path("docs") / figure).is_file() for figure in figures)
    tables_ = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables_) > 50
    assert "| **does not hold** |" in text


def test_csv_has_every_row_of_every_run(plsh, runs):
    assert plsh("report", "--format", "csv").code == 0
    lines = list(csv.DictReader(io.StringIO((runs / "report.csv").read_text(encoding="utf-8"))))
    records = {str(record.path): record for record in library.scan(Path("runs"))}
    assert {line["run"] for line in lines} == set(records)
    for path, record in records.items():
        mine = [line for line in lines if line["run"] == path]
        assert len(mine) == max(1, len(record.rows))
        assert all(line["state"] == record.state for line in mine)
        for line, row in zip(mine, record.rows, strict=False):
            number = {"name": "row.name"}
            for field, value in row.items():
                shown = line[number.get(field, field)]
                assert shown == ("" if value is None else str(value))


def test_single_runs_by_name_and_folder(plsh, runs):
    gain = next(record.path for record in library.scan(runs) if record.name == "gain")
    done = plsh("report", "gain", str(gain), "abcdef", "--to", "one.html")
    assert done.code == 0, done.text
    text = Document(Path("one.html").read_text(encoding="utf-8")).text
    assert gain.name in text
    assert "20260103T000000Z-abcdef" in text
    assert "study" not in text


def test_an_empty_folder_gives_a_page_that_says_so(plsh):
    done = plsh("report")
    assert done.code == 0
    assert "no runs yet" in done.text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--format", "pdf"], "--format = pdf: must be one of html, md, csv"),
        (["--out", "nowhere"], "--out = nowhere"),
        (["nothing-like-it"], "no run 'nothing-like-it'"),
        (["train"], "fits 2 runs"),
        (["--to", "runs"], "is a folder"),
        (["--to", "/proc/x/page.html"], "cannot be written"),
        (["--to", "socket"], "is neither a file nor a pipe"),
        (["--to", "loop"], "cannot be written"),
        (["--to", "file/page.html"], "cannot be written"),
    ],
)
def test_wrong_input_is_one_message(plsh, runs, words, says):
    _make_socket("socket")
    os.symlink("loop", "loop")
    Path("file").touch()
    before = {name: os.lstat(name) for name in ("socket", "loop", "file")}
    done = plsh("report", *words)
    assert done.code == 2
    assert says in done.text
    assert len(done.err.strip().splitlines()) == 1
    assert all(os.path.samestat(os.lstat(name), was) for name, was in before.items())


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["--to", "y.csv"], "run,"),
        (["--to", "y.MD"], "# "),
        (["--to", "y.html"], "<!doctype"),
        (["--to", "y.txt"], "<!doctype"),
        (["--to", "y"], "<!doctype"),
        (["--to", "y.csv", "--format", "md"], "# "),
        (["--to", "y.html", "--format", "csv"], "run,"),
    ],
)
def test_the_format_is_the_one_asked_for_or_that_of_the_ending(plsh, runs, words, begins):
    done = plsh("report", *words)
    assert done.code == 0, done.text
    assert Path(words[1]).read_text(encoding="utf-8").startswith(begins)


def test_a_reader_that_goes_away_is_no_error(plsh, runs):
    os.mkfifo("pipe")

    def peek():
        with open("pipe", "rb") as handle:
            handle.read(1)

    reader = threading.Thread(target=peek)
    reader.start()
    done = plsh("report", "--to", "pipe")
    reader.join(60)
    assert (done.code, done.err) == (0, "report: who read pipe has gone\n")


def test_toy_sizes_are_said_above_all(plsh, runs):
    assert "toy sizes" not in plsh_page(plsh)
    (runs / "reproduce" / "smoke").mkdir(parents=True)
    text = plsh_page(plsh)
    assert text.index("toy sizes") < text.index("The paper's claims")
    assert plsh("report", "--format", "md").code == 0
    assert "toy sizes" in (runs / "report.md").read_text(encoding="utf-8").split("## ")[0]
    (runs / "reproduce" / "cpu").mkdir()
    assert "toy sizes" not in plsh_page(plsh)


def plsh_page(plsh):
    assert plsh("report").code == 0
    return Path("runs/report.html").read_text(encoding="utf-8")


def test_every_run_behind_a_claim_is_linked(plsh, tmp_path):
    made = page_cases.approx_result()
    out = tmp_path / "runs"
    paths = [
        page_cases.run_folder(out, "approx", made["rows"], made["summary"], number=number, hash_=f"{number}" * 16)
        for number in range(5)
    ]
    document = Document(plsh_page(plsh))
    claims = document.text.split("What the paper leaves open")[0]
    assert all(path.name in claims for path in paths)
    assert "shorter runs:" in claims
    targets = {one.get("id") for _, one in document.elements}
    assert all(one["href"][1:] in targets for one in document.having("a") if one["href"].startswith("#"))


@pytest.mark.parametrize("format_", ["html", "md", "csv"])
def test_a_pipe_is_written_into(plsh, runs, format_):
    """What is no file keeps its place: it gets the same page, and the remark goes to stderr, not into the page."""
    assert plsh("report", "--format", format_, "--to", f"page.{format_}").code == 0
    os.mkfifo("pipe")
    os.symlink("pipe", "link")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(Path("pipe").read_bytes()))
    reader.start()
    done = plsh("report", "--format", format_, "--to", "link")
    reader.join(60)
    assert done.code == 0, done.text
    assert done.out == ""
    assert done.err.startswith("report: link (")
    assert stat.S_ISFIFO(os.lstat("pipe").st_mode)
    assert os.path.islink("link")
    made = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2})?")  # when it was made
    assert made.sub("", got[0].decode()) == made.sub("", Path(f"page.{format_}").read_text(encoding="utf-8"))


def test_what_is_written_into_and_what_is_replaced(tmp_path, monkeypatch):
    """A device counts with the pipes (asked only: a test that went wrong here would cost the machine its device)."""
    assert write.is_stream(Path(os.devnull))
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    _make_socket("socket")
    for name in ("missing", "folder", "file", "socket"):
        assert not write.is_stream(Path(name))


@pytest.mark.parametrize("there", [True, False])
def test_the_file_behind_a_link_is_written(plsh, runs, there):
    Path("shelf").mkdir()
    if there:
        Path("shelf/page.csv").write_text("old")
    os.symlink("shelf/page.csv", "latest.csv")
    done = plsh("report", "--format", "csv", "--to", "latest.csv")
    assert done.code == 0, done.text
    assert os.path.islink("latest.csv")
    assert Path("shelf/page.csv").read_text(encoding="utf-8").startswith("run")
    assert [path.name for path in Path("shelf").iterdir()] == ["page.csv"]


def test_figures_have_no_colours_of_their_own():
    """A bias has one colour everywhere: hues are in style.py alone."""
    folder = Path(content.__file__).parent.parent
    for file in folder.glob("*figure*.py"):
        for red, green, blue in re.findall(r"#([0-9A-Fa-f]{2})([0-9A-Fa-f]{2})([0-9A-Fa-f]{2})", file.read_text()):
            assert red == green == blue, file.name


def test_samplers_do_not_have_another_biass_colour():
    from plsh_cli.report.style import BIAS_COLOURS, SAMPLER_COLOURS

    others = {colour.lower() for bias, colour in BIAS_COLOURS.items() if bias != "plsh"}
    assert not others & {colour.lower() for colour in SAMPLER_COLOURS.values()}


def test_five_hundred_runs(tmp_path, monkeypatch):
    """Every result is read a fixed number of times, whatever their number, and few are in memory at once."""
    from plsh_cli import rundir
    from plsh_cli.report.page import html

    result = page_cases.approx_result()
    for number in range(500):
        page_cases.run_folder(
            tmp_path, "approx", result["rows"], result["summary"], number=number, hash_=f"{number:016x}"
        )
    reads = []
    real = rundir.read_json
    monkeypatch.setattr(rundir, "read_json", lambda path: (reads.append(path.name), real(path))[1])
    records = library.scan(tmp_path)
    gathered = content.gather(records, named=False)
    size = sum(len(piece) for piece in html.page(gathered, tmp_path / "page.html"))
    assert reads.count("result.json") <= 3 * 500
    assert not any("_read" in record.__dict__ for record in records)
    assert size < 2 * content.PAGE_BYTES


def test_a_report_removes_what_killed_ones_left_and_nothing_else(tmp_path):
    old = time.time() - 2 * write.REMAINS_AFTER_SECONDS
    for name in (".report.md-abcdefgh", ".report.md-longer-name", ".report.csv-abcdefgh", "report.md-abcdefgh"):
        (tmp_path / name).write_text("half a page")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / ".report.md-12345678").write_text("another report is writing it")
    write.write([], tmp_path, "md", None)
    kept = {".report.md-longer-name", ".report.csv-abcdefgh", "report.md-abcdefgh", ".report.md-12345678", "report.md"}
    assert {path.name for path in tmp_path.iterdir()} == kept
