"""Tables and figures of `plsh eval` from made-up rows: intervals that name their sources, bars, ticks and lines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from plsh_cli.report import style
from plsh_cli.report.eval_figures import figures
from plsh_cli.report.eval_tables import interval_text, scored_text

LENGTHS = [64, 256, 1024]


def result(sets=2):
    rows, positions = [], []
    for bias in ("original", "plsh"):
        drawn = bias == "plsh"
        who = {"bias": bias, "own": False, "num_samples": 10 if drawn else None, "sampler": None, "pitch": None}
        for n in LENGTHS:
            ends = {"perplexity": 2000.0, "perplexity_low": 900.0, "perplexity_high": 5000.0}
            rows.append({**who, "n": n, "seeds": sets if drawn else None, "seed_first": 0 if drawn else None, **ends})
            edges = [1, n // 4, n // 2, n + 1]
            positions += [
                {**who, "n": n, "left_from": low, "left_to": high - 1, "nats_per_token": 3.0, "tokens": 7}
                for low, high in pairwise(edges)
            ]
    summary = {"positions": positions, "lengths": LENGTHS, "clusters": 12, "interval_over": "blocks"}
    summary |= {"scored_tokens": {"64": 768}, "windows": "matched", "text_details": {"corpus": "text"}}
    return {"rows": rows, "summary": summary}


@pytest.fixture
def drawn(tmp_path):
    def draw(name, **options):
        with style.look():
            made = figures(tmp_path, result(**options))[name]()
            made.canvas.draw()
        return made, made.axes[0]

    return draw


def tick_labels(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [text.get_text() for at, text in ticks if low <= at <= high]


@pytest.mark.parametrize(("sets", "words"), [(2, "of draws also 2 sets"), (1, "noise of draws not included")])
def test_the_interval_says_whether_it_holds_the_noise_of_draws(drawn, sets, words):
    made = result(sets)
    told = interval_text(made["rows"], made["summary"])
    assert words in told
    assert "12 blocks" in told
    (legend,) = drawn("perplexity", sets=sets)[0].legends
    assert [text.get_text() for text in legend.get_texts()] == [told]
    assert "draws" not in interval_text(made["rows"][:3], made["summary"])


def test_perplexities_have_bars_side_by_side(drawn):
    _, panel = drawn("perplexity")
    first, second = panel.containers
    assert first.has_yerr
    assert second.has_yerr
    assert (first.lines[0].get_xdata() < second.lines[0].get_xdata()).all()
    assert not [one for one in panel.collections if "PolyCollection" in type(one).__name__]
    assert tick_labels(panel.xaxis) == ["64", "256", "1,024"]
    assert "2,000" in tick_labels(panel.yaxis)


def test_losses_by_position_name_their_lengths_and_have_ticks(drawn):
    made, panel = drawn("position")
    (legend,) = made.legends
    assert [text.get_text() for text in legend.get_texts()] == ["n = 64", "n = 256", "n = 1,024"]
    assert tick_labels(panel.xaxis) == ["8", "16", "32", "64", "128", "256", "512"]
    dashes = [line.get_linestyle() + str(line._dash_pattern) for line in panel.lines]
    assert len(set(dashes)) == 3


def test_the_papers_windows_are_never_called_the_same_tokens():
    """A cap on the tokens makes the counts equal; the tokens still differ."""
    equal = {"scored_tokens": {"64": 576, "128": 576}}
    assert scored_text({**equal, "windows": "matched"}) == "the same 576 tokens at every n"
    assert scored_text({**equal, "windows": "paper"}) == "scored tokens: 576 at n=64, 576 at n=128"
