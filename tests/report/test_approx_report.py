"""What the tables and figures of `plsh approx` say of their columns, bounds, seeds and of what they cannot show."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from report.test_report import approx_run, printed

from plsh_cli import report
from plsh_cli.report import style

LOG = ["bias.kernel=log", "bias.a=[0.5]", "bias.b=[1.0]"]


def words(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that is saved, by name."""
    figures: dict[str, Figure] = {}
    save = style.save

    def keep(made, folder, name):
        figures[name] = made
        return save(made, folder, name)

    monkeypatch.setattr(style, "save", keep)
    return figures


def texts(made: Figure) -> str:
    """All text in a figure's title, panels and legends."""
    panels = [item.get_text() for axes in made.axes for item in (*axes.texts, *axes.get_xticklabels())]
    legends = [item.get_text() for legend in made.legends for item in legend.get_texts()]
    return "\n".join([made.get_suptitle(), *panels, *legends])


def test_only_the_bounds_that_were_checked_are_named(tmp_path):
    lines = words(printed(approx_run(tmp_path, [])))
    assert "bounds: 48 checked (tail probability and max norm at delta=0.05, per seed), 12 of them could be" in lines
    assert "clipped at 1" in lines
    lines = words(printed(approx_run(tmp_path, LOG)))
    assert "bounds: 6 checked (max norm at delta=0.05, per seed), 3 of them could be violated (vacuous: 3," in lines
    assert "tail" not in lines
    lines = words(printed(approx_run(tmp_path, [*LOG, "approx.num_samples=[3]"])))
    assert "all of them vacuous (with max bound of 1 or more): none could be violated" in lines


def test_captions_explain_the_columns_that_are_there_and_name_the_others(tmp_path):
    lines = words(printed(approx_run(tmp_path, ["bias.sigma=[4.0]"])))
    for header in ("s for 10 %", "tail prob.", "of its bound", "its 1 % point", "its median"):
        assert f"{header}: " in lines
    assert "left out here" not in lines
    several = ["approx.samplers=[iid,stratified,importance]", "bias.sigma=[4.0]", "approx.n=[61,31]"]
    lines = words(printed(approx_run(tmp_path, several)))
    assert "left out here: s for 10 %; all in rows.csv" in lines
    assert "s for 10 %: " not in lines
    assert "same error: i.i.d. draws with the same mean spectral error" in lines


def test_the_law_of_the_widest_width_stands_only_beside_it(tmp_path):
    result = approx_run(tmp_path, LOG)
    assert "its median: " in words(printed(result))
    for row in result["rows"]:
        row["max_width"] = None
    lines = words(printed(result))
    assert "its median: " not in lines
    assert "left out here: its median, its 1 % point" in lines


@pytest.mark.parametrize(("seeds", "note"), [(2, "2 seeds: intervals have 1 degree of freedom"), (4, "")])
def test_intervals_over_few_seeds_are_called_that(tmp_path, seeds, note):
    lines = words(printed(approx_run(tmp_path, [f"approx.seeds={seeds}"])))
    assert (note or "4 seeds (0-3)") in lines
    assert ("of freedom" in lines) == bool(note)


def test_titles_name_what_was_chosen_and_which_seeds(tmp_path, drawn):
    approx_run(tmp_path, ["seed=5"])
    report.draw(tmp_path)
    assert "3 of 4 scales" in texts(drawn["error"])
    assert "seed 5" in texts(drawn["picture"])
    assert "draws" not in texts(drawn["picture"])
    assert "3 seeds (5-7)" in texts(drawn["block_sizes"])
    approx_run(tmp_path, ["approx.samplers=[stratified,iid]", "bias.sigma=[4.0]"])
    report.draw(tmp_path)
    assert "seed 0, stratified draws" in texts(drawn["picture"])
    assert "stratified draws" in texts(drawn["block_sizes"])


def test_the_spectral_panel_is_relative_and_no_line_hides_another(tmp_path, drawn):
    result = approx_run(tmp_path, ["bias.sigma=[2.0,16.0]"])
    report.draw(tmp_path)
    spectral, largest = drawn["error"].axes
    assert spectral.get_ylabel() == "error ÷ ‖L*‖₂"
    for axes, field in ((spectral, "spectral_error_relative"), (largest, "max_error")):
        lines = [container.lines[0] for container in axes.containers]
        assert lines[1].get_ydata() == pytest.approx([row[field] for row in result["rows"][2:]])
        assert not set(lines[0].get_xdata()) & set(lines[1].get_xdata())
        low, high = axes.get_xlim()
        assert all(low < x < high for line in lines for x in line.get_xdata())
    bound = result["rows"][0]["bound_expectation"] / result["rows"][0]["kernel_norm"]
    assert any(np.isclose(line.get_ydata()[0], bound) for line in spectral.lines if len(line.get_ydata()))


def test_what_cannot_be_seen_is_said_and_not_in_the_legend(tmp_path, drawn):
    approx_run(tmp_path, ["bias.sigma=[1e-6]"])
    report.draw(tmp_path)
    assert "error 0, not shown" in texts(drawn["error"])
    assert "identical" in texts(drawn["picture"])
    assert "Gamma" not in texts(drawn["block_sizes"])
    assert "drawn widths" not in texts(drawn["block_sizes"])
    approx_run(tmp_path, ["bias.sigma=[1e-6,4.0]"])
    report.draw(tmp_path)
    assert "σ = 1e-06: error 0, not shown" in texts(drawn["error"])
    assert "Gamma" in texts(drawn["block_sizes"])


def test_tick_labels_keep_apart():
    assert style.apart([2**0.5, *(2.0**power for power in range(1, 9))]) == [2.0**power for power in range(1, 9)]
    assert style.apart([10, 20, 40]) == [10, 20, 40]
    assert style.apart([5]) == [5]
