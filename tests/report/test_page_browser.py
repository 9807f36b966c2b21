"""The page in a real browser: complete, readable on a phone and on paper, in light and dark, and silent.

Where no chromium is installed these tests skip; with PLSH_REQUIRE_CHROMIUM=1 they fail.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import browser
import page_cases
import pytest

from plsh_cli import report
from plsh_cli.report import library
from plsh_cli.report.page import write
from plsh_cli.rundir import RunFolder

PHONE, DESK = 390, 1200
#: Elements that reach beyond the window although nothing around them scrolls.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(one => one.checkVisibility()
    && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    && !one.closest('.scroll *')).map(one => one.tagName + '.' + one.className)"""
#: The contrast of every text with the ground behind it, by WCAG's formula; the lowest and where.
CONTRAST = """(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = one => { for (; one; one = one.parentElement) {
      const c = parse(getComputedStyle(one).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
      return [255, 255, 255]; };
  let worst = [99, ''];
  for (const one of document.querySelectorAll('body *')) {
    if (![...one.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !one.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(ground(one))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < worst[0]) worst = [ratio, one.tagName + '.' + one.className];
  }
  return worst;
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page over runs of every kind, one of them with real figures."""
    out = tmp_path_factory.mktemp("page") / "runs"
    page_cases.library_of_runs(out)
    folder = RunFolder(page_cases.run_folder(out, "bench_attention", [], {}, number=8, name="drawn", hash_="d" * 16))
    rows = page_cases.golden_rows("bench_attention/honest_rows.csv")
    record = {"command": "bench_attention", "rows": rows, "summary": {"claims": [], "exponents": []}, "timing": {}}
    folder.write_json("result.json", record)
    assert report.draw(folder.path)
    write.write([], out, "html", None)
    return out / "report.html"


@pytest.fixture(scope="module")
def chromium():
    """A running browser."""
    program = browser.find()
    if program is None:
        if os.environ.get("PLSH_REQUIRE_CHROMIUM") == "1":
            pytest.fail("PLSH_REQUIRE_CHROMIUM=1, but no chromium is installed")
        pytest.skip("no chromium is installed (apt-get install chromium)")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        browser.running(program, Path(profile)) as running,
    ):
        yield running


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_is_whole_and_silent(chromium, page, width, dark):
    chromium.open(page, width, dark=dark)
    assert chromium.complaints() == []
    assert chromium.requests() == [page.resolve().as_uri()]
    done = [record for record in library.scan(page.parent) if record.state == "done"]
    assert chromium.value("document.images.length") == sum(len(record.figures) for record in done)
    assert chromium.value("[...document.images].filter(image => !(image.naturalWidth > 0)).length") == 0
    assert chromium.value("innerWidth") == width
    assert chromium.value("document.documentElement.scrollWidth") == width
    assert chromium.value(TOO_WIDE) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_and_figures_can_be_read_in_light_and_dark(chromium, page, dark):
    chromium.open(page, DESK, dark=dark)
    ratio, where = chromium.value(CONTRAST)
    assert ratio >= 4.5, where
    ground = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == dark
    # Figures are drawn for white paper, and stay on it.
    grounds = chromium.value("[...new Set([...document.images].map(one => getComputedStyle(one).backgroundColor))]")
    assert grounds == ["rgb(255, 255, 255)"]


def test_figures_on_a_phone_are_as_wide_as_it_lets_them(chromium, page):
    chromium.open(page, PHONE)
    widths = chromium.value("[...document.images].filter(one => one.checkVisibility()).map(one => one.clientWidth)")
    assert min(widths) > 300


def test_a_link_of_a_claim_opens_its_run(chromium, page):
    chromium.open(page, DESK)
    chromium.value("document.querySelector('details.run').open = false")
    place = chromium.value("document.querySelector('details.run').querySelector('.source a').getAttribute('href')")
    for end in ("", "-config"):
        chromium.value(f"location.hash = '{place}{end}'")
        assert chromium.value(f"document.querySelector('{place}{end}').closest('details').open")
        assert chromium.value(f"document.querySelector('{place}{end}').checkVisibility()")


def test_it_prints_with_all_runs_unfolded(chromium, page):
    chromium.open(page, DESK)
    chromium.value("for (const one of document.querySelectorAll('details')) one.open = false")
    printed = chromium.pdf()
    assert printed.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", printed))
    assert pages >= 8
    chromium.value("for (const one of document.querySelectorAll('details')) one.remove()")
    without = chromium.pdf()
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", without)) < pages - 4


def test_a_damaged_picture_would_be_noticed(chromium, tmp_path):
    """The checks above can fail: a broken image, a wide element, a request and a script error are seen."""
    wrong = tmp_path / "wrong.html"
    wrong.write_text(
        '<!doctype html><meta name=viewport content="width=device-width"><img src="data:image/png;base64,AAAA">'
        '<img src="missing.png"><div style="width:2000px;color:#777;background:#888">x</div><script>nothing()</script>'
    )
    chromium.open(wrong, PHONE)
    assert chromium.complaints() != []
    assert len(chromium.requests()) == 2
    assert chromium.value("[...document.images].filter(image => !(image.naturalWidth > 0)).length") == 2
    assert chromium.value("document.documentElement.scrollWidth") > PHONE
    assert "DIV." in chromium.value(TOO_WIDE)
    assert chromium.value(CONTRAST)[0] < 4.5
