"""Plots of characters: what they show, within their width, in braille and in ASCII."""

from __future__ import annotations

import io
import math
import sys

import pytest

from plsh_cli.report import terminal_plots
from plsh_cli.report.terminal_plots import Axis, plot

STEP, LOSS = Axis("step"), Axis("loss (nats per token)")


def _marks(lines):
    """(column, row from the top) of every character of the curve."""
    edge = max(line.find(mark) for line in lines[1:2] for mark in "+┤")
    body = [line[edge + 1 :] for line in lines[1:-2]]
    return [(column, row) for row, line in enumerate(body) for column, mark in enumerate(line) if mark != " "]


@pytest.mark.parametrize("plain", [True, False])
def test_a_falling_line_goes_from_the_top_left_to_the_bottom_right(plain):
    lines = plot([(step, 10 - step) for step in range(1, 10)], STEP, LOSS, width=50, height=7, plain=plain)
    marks = _marks(lines)
    columns = 50 - len("9.00") - 2
    assert (0, 0) in marks
    assert (columns - 1, 6) in marks
    by_column = [min(row for column, row in marks if column == place) for place in range(columns)]
    assert by_column == sorted(by_column), "it never rises, and no column is empty"
    assert lines[0] == "loss (nats per token): 9.00 to 1, 9 points"
    assert lines[1].startswith("9.00")
    assert lines[4].startswith("5.00")
    assert lines[7].lstrip().startswith("1")
    assert lines[-1].split() == ["1", "step", "9"]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("width", [20, 41, 80])
@pytest.mark.parametrize("count", [1, 2, 3, 257, 20_011])
def test_every_line_fits(plain, width, count):
    points = [(7 * place, math.sin(place) * 1e5) for place in range(count)]
    lines = plot(points, Axis("x" * 50), Axis("y" * 150), width=width, height=5, plain=plain)
    assert len(lines) == 1 + 5 + 2
    assert max(map(len, lines)) <= width
    assert _marks(lines)
    if plain:
        assert all(line.isascii() for line in lines)


def test_logarithmic_axes_make_a_power_law_straight():
    lines = plot(
        [(s, s**-0.5) for s in (1, 10, 100, 1000)], Axis("s", log=True), Axis("e", log=True), height=9, plain=True
    )
    marks = sorted(_marks(lines))
    last = marks[-1][0]
    for column, row in marks:
        assert abs(row - 8 * column / last) <= 1
    assert "(log)" in lines[0]
    assert "(log)" in lines[-1]


def test_a_constant_has_one_label():
    lines = plot([(1, 2.5), (2, 2.5)], STEP, LOSS, height=5, plain=True)
    assert len({row for _, row in _marks(lines)}) == 1
    assert [line.split("|")[0].split("+")[0].strip() for line in lines[1:-2]] == ["2.50", "", "", "", ""]


def test_labels_have_the_digits_that_tell_them_apart():
    lines = plot([(1, 4.34877), (2, 4.35223)], STEP, LOSS, height=9, plain=True)
    assert [lines[row].split("+")[0].strip() for row in (1, 5, 9)] == ["4.352", "4.351", "4.349"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_left_out(bad):
    points = [(1, 1.0), (2, bad), (bad, 1.0), (3, 2.0)]
    assert plot(points, STEP, LOSS, plain=True) == plot([(1, 1.0), (3, 2.0)], STEP, LOSS, plain=True)
    assert plot([(1, bad)], STEP, LOSS, plain=True) == []
    assert plot([], STEP, LOSS, plain=True) == []
    assert plot([(0, 1.0)], Axis("s", log=True), LOSS, plain=True) == []


def test_the_largest_floats_are_drawn():
    assert _marks(plot([(1, -1.7e308), (2, 1.7e308)], STEP, LOSS, plain=True))


def test_ascii_where_the_terminal_has_nothing_else(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for encoding, bare in (("utf-8", False), ("ascii", True), ("latin-1", True)):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        assert terminal_plots.ascii_only() is bare
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setenv("TERM", "dumb")
    assert terminal_plots.ascii_only()
