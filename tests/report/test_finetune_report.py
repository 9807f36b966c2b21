"""Tables and figures of `plsh finetune` and of its sweep over s, from made-up results."""

from __future__ import annotations

import io
import itertools

import pytest
from finetune_cases import (
    AFTER,
    BASELINES,
    BEFORE,
    cell,
    run_rows,
    run_summary,
    save_run,
    sweep_cells,
    sweep_summary,
)
from rich.console import Console

from plsh_cli import report
from plsh_cli.experiments.finetune_sweep_rows import table
from plsh_cli.report import finetune_figures, finetune_sweep_figures, style


def printed(result, width=140):
    console = Console(width=width, record=True, file=io.StringIO())
    for sheet in report.tables(result):
        console.print(sheet)
    return "\n".join(line.strip() for line in console.export_text().splitlines())


def run_result(rows=None, **changes):
    return {"command": "finetune", "rows": rows or run_rows(), "summary": run_summary(**changes)}


def sweep_result(cells=None, **changes):
    rows = table(sweep_cells() if cells is None else cells)
    return {"command": "finetune_sweep", "rows": rows, "summary": sweep_summary(**changes)}


def without_intervals(rows):
    return [{**row, "perplexity_low": None, "perplexity_high": None, "bits_per_byte_ci95": None} for row in rows]


def drawn(make):
    with style.look():
        made = make()
        made.canvas.draw()
    return made


def texts(made):
    (legend,) = made.legends
    return [text.get_text() for text in legend.get_texts()]


def test_the_table_has_each_bias_and_length_before_and_after():
    lines = printed(run_result()).splitlines()
    assert "LoRA of rank 16, 1,842,048 of 136,357,056 parameters" in " ".join(lines[:2])
    (before,) = (
        line for line in lines if line.split()[:4] == ["before", "positional", "LSH,", "s=10"] and " 256 " in line
    )
    assert "900 (810 .. 990)" in before
    assert "1.25 ±0.06" in before
    assert before.split()[-3:] == ["0.438", "2.75", "4,096"]
    assert sum(line.startswith("after") for line in lines) == 8
    assert not any(line.startswith("after exact ALiBi") for line in lines)


def test_weights_of_baselines_are_told_from_those_of_the_run():
    text = printed(run_result(run_rows(*BEFORE, *AFTER, *BASELINES)))
    assert "after exact ALiBi  " in text
    assert "after NAME: other weights" in text
    assert "other weights" not in printed(run_result())


def test_full_fine_tuning_says_so():
    assert "(all 136,357,056 parameters)" in printed(run_result(lora=None))


def test_a_table_says_which_intervals_are_missing():
    rows = run_rows()
    assert "one set of draws, whose noise" in printed(run_result(rows))
    none = printed(run_result(without_intervals(rows)))
    assert "no intervals: too little text was scored, one block of tokens" in none
    assert "95 %" not in none
    some = printed(run_result([*without_intervals(rows[:1]), *rows[1:]]))
    assert "no interval in brackets: too little text was scored there" in some
    assert "95 % t interval" in some
    fixed = [{**row, "seeds": 3 if row["seeds"] else None} for row in rows]
    assert "noise" not in printed(run_result(fixed))


def test_a_run_draws_loss_and_perplexity(tmp_path):
    save_run(tmp_path, run_rows(*BEFORE, *AFTER, *BASELINES), run_summary())
    names = {file.name for file in report.draw(tmp_path)}
    assert names == {f"{name}.{ending}" for name in ("loss", "perplexity") for ending in ("png", "svg")}
    assert not (tmp_path / "figures" / "failed.txt").exists()


def test_the_figure_has_a_panel_per_length_and_a_colour_per_bias(tmp_path):
    result = save_run(tmp_path, run_rows(*BEFORE, *AFTER, *BASELINES), run_summary())
    made = drawn(finetune_figures.figures(tmp_path, result)["perplexity"])
    assert [panel.get_title("left") for panel in made.axes] == ["n = 256", "n = 512, 2 times the length trained at"]
    for panel in made.axes:
        points = [container.lines[0] for container in panel.containers]
        assert len(points) == len(BEFORE + AFTER + BASELINES)
        assert {point.get_color() for point in points} == {
            style.BIAS_COLOURS[bias] for bias in ("original", "plsh", "alibi", "window", "fixed_blocks")
        }
        assert all(container.has_yerr for container in panel.containers)
    assert texts(made) == ["before", "after", "after fine-tuning under that bias", "95 % CI over held-out text"]
    labels = [label.get_text() for label in made.axes[-1].get_xticklabels()]
    assert labels == ["original", "positional\nLSH\ns=10", "exact\nALiBi", "window", "fixed\nblocks"]


def test_a_figure_without_intervals_says_so(tmp_path):
    result = save_run(tmp_path, without_intervals(run_rows()), run_summary())
    made = drawn(finetune_figures.figures(tmp_path, result)["perplexity"])
    assert texts(made) == ["before", "after", "no intervals"]


def test_perplexities_beyond_every_number_leave_their_point_out(tmp_path):
    rows = [{**row, "perplexity": None, "perplexity_low": None, "perplexity_high": None} for row in run_rows()[:1]]
    result = save_run(tmp_path, [*rows, *run_rows()[1:]], run_summary())
    made = drawn(finetune_figures.figures(tmp_path, result)["perplexity"])
    assert len(made.axes[0].containers) == len(made.axes[1].containers) - 1


def test_the_sweeps_table_has_s_and_paired_differences():
    lines = printed(sweep_result(), 100).splitlines()
    assert "3 seeds (0, 1, 2)" in " ".join(lines[:2])
    cells = [line.split() for line in lines if line.startswith("256 ")]
    assert [words[3] for words in cells[:4]] == ["5", "10", "20", "40"]
    assert cells[0][4:6] == ["29.0", "±2.5"]
    assert cells[0][6:8] == ["7.96", "±1.00"]
    assert cells[4][1:3] == ["exact", "ALiBi"]
    assert cells[4][-3] == "-"
    assert "3 seeds: intervals have 2 degrees of freedom" in "\n".join(lines)
    assert "missing" not in "\n".join(lines)


def test_the_sweeps_table_says_what_is_not_there():
    cells = [one for one in sweep_cells() if one.bias != "fixed_blocks"]
    cells[:2] = [cell("plsh", 0, None, 5), cell("plsh", 0, None, 10)]
    cells[4] = cell("plsh", 1, None, 5)
    cells[8] = cell("plsh", 2, None, 5)
    text = printed(sweep_result(cells, failed=["bias.num_samples=5 seed=0: boom", "another: bang"]))
    assert next(line.split()[4] for line in text.splitlines() if line.startswith("256 ")) == "missing"
    assert "(2 of 3)" in text
    assert "2 of 18 jobs failed: bias.num_samples=5 seed=0: boom and 1 more" in text
    assert "fixed blocks is missing: its jobs failed" in text
    assert "fixed blocks is missing: not asked for" in printed(sweep_result(cells, baselines=["alibi"]))
    assert "over fixed blocks" not in text


def test_one_seed_has_no_interval_and_the_table_says_so():
    text = printed(sweep_result(sweep_cells(seeds=1), seeds=[0]))
    assert "one seed, so no intervals" in text
    assert "±" not in text


def test_the_sweeps_figure_has_a_line_and_bands():
    result = sweep_result()
    made = drawn(finetune_sweep_figures.figures(None, result)["perplexity_against_s"])
    for panel, times in zip(made.axes, (1.0, 1.25), strict=True):
        (line,) = panel.containers
        assert line.has_yerr
        assert line.lines[0].get_xdata().tolist() == pytest.approx([5, 10, 20, 40])
        means = {round(float(band.get_ydata()[0]), 6) for band in panel.lines if band.get_linestyle() == "--"}
        assert means == {round(21 * times, 6), round(26 * times, 6)}
        half = 2.484 * times  # t(2) / sqrt(3) times the standard deviation 1 of seeds
        heights = sorted((patch.get_y(), patch.get_y() + patch.get_height()) for patch in panel.patches)
        ends = [(mean * times - half, mean * times + half) for mean in (21, 26)]
        assert list(itertools.chain(*heights)) == pytest.approx(list(itertools.chain(*ends)), rel=1e-3)
    assert texts(made) == ["95 % CI over seeds", "the same, of a baseline"]


def test_several_training_lengths_have_no_common_one():
    result = sweep_result(context=None)
    assert "fine-tuned on sotu at several lengths" in printed(result)
    made = drawn(finetune_sweep_figures.figures(None, result)["perplexity_against_s"])
    assert [panel.get_title("left") for panel in made.axes] == ["n = 256", "n = 512"]


def test_settings_are_lines_of_their_own_in_their_colours():
    drawn_cells = [
        one
        for name in ("iid", "stratified")
        for one in sweep_cells(setting=f"bias.sampler={name}")
        if one.bias == "plsh"
    ]
    fixed = [one for one in sweep_cells() if one.bias != "plsh"]
    made = drawn(finetune_sweep_figures.figures(None, sweep_result([*drawn_cells, *fixed]))["perplexity_against_s"])
    for panel in made.axes:
        colours = [container.lines[0].get_color() for container in panel.containers]
        assert colours == [style.SAMPLER_COLOURS["iid"], style.SAMPLER_COLOURS["stratified"]]
        first, second = (container.lines[0].get_xdata() for container in panel.containers)
        assert (first < second).all()


def test_a_missing_baseline_is_said_in_the_figure():
    cells = [one for one in sweep_cells(seeds=1) if one.bias != "alibi"]
    result = sweep_result(cells, baselines=["fixed_blocks"], seeds=[0])
    made = drawn(finetune_sweep_figures.figures(None, result)["perplexity_against_s"])
    assert made.axes[-1].get_xlabel() == "draws s\nexact ALiBi is missing: not asked for"
    assert not made.axes[0].patches
    assert texts(made) == ["one seed, so no intervals"]


def test_the_sweeps_figure_is_drawn_into_its_folder(tmp_path):
    files = report.draw_result(tmp_path, sweep_result(), tmp_path)
    assert [file.name for file in files] == ["perplexity_against_s.png", "perplexity_against_s.svg"]
    assert not (tmp_path / "failed.txt").exists()
