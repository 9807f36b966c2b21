"""Figures and tables of awkward runs: names with markup, huge scales, narrow terminals, figures that fail."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure
from report import test_attn_error_report
from report.test_report import SHAPES, approx_run, bench_run, check_files, printed

from plsh_cli import report
from plsh_cli.report import approx_figures, style
from plsh_cli.report.approx_error_figure import symbol
from plsh_cli.report.text import mean_ci

THREE = ["approx.samplers=[stratified,importance,iid]", "bias.pitch=integer"]
FIGURES = {"error", "picture", "block_sizes", "gain"}


def attention_run(folder):
    """result.json of `plsh attn-error` with made-up errors that fall as 1 / sqrt(s)."""
    return test_attn_error_report.write(folder, *test_attn_error_report.made())


def renamed(value, old: str, new: str):
    """The value with one string replaced by another wherever it stands."""
    if isinstance(value, dict):
        return {key: renamed(one, old, new) for key, one in value.items()}
    if isinstance(value, list):
        return [renamed(one, old, new) for one in value]
    return new if value == old else value


@pytest.mark.parametrize("name", ["x[red]", "[/b]", ":smile: [x]"])
def test_names_are_no_markup(tmp_path, name):
    result = approx_run(tmp_path, ["bias.kernel=log", "bias.a=[0.5]", "bias.b=[1.0]"])
    lines = printed(renamed(result, "log(a=0.5, b=1)", name))
    assert lines.count(name) >= 2 * len(result["rows"])
    attention = attention_run(tmp_path)
    attention["summary"]["text"] = name
    assert name in " ".join(printed(attention).split())
    bench = bench_run(tmp_path)
    bench["rows"][0]["claim"] = name
    assert name in printed(bench)


@pytest.mark.parametrize("sigma", ["1e6", "1e8", "1e9", "1e12"])
def test_huge_scales_are_drawn(tmp_path, sigma):
    approx_run(
        tmp_path, [*THREE, "approx.n=[300]", "approx.num_samples=[1,5]", "approx.seeds=2", f"bias.sigma=[{sigma}]"]
    )
    check_files(report.draw(tmp_path), FIGURES)


def test_a_label_far_outside_stays_at_the_edge():
    with style.look():
        _, (axes,) = style.figure(3.0)
        axes.plot([1, 2], [1, 2])
        style.label_ends({axes: [style.EndLabel(2.0, 1e12, "far", "black"), style.EndLabel(2.0, 1.5, "near", "black")]})
    near, far = (text.xy for text in axes.texts)
    assert far[1] == 1.0
    assert 0 < near[1] < 1


@pytest.mark.parametrize("name", [r"a$\frac$b", "$x$", "$", "alibi(sigma=x)", "f(x=e)", "alibi(sigma=$1$)"])
def test_names_are_no_mathematics(name):
    assert symbol({"kernel": name}) == approx_figures._pretty(name) == name.replace("$", r"\$")
    with style.look():
        made, axes = style.figure(3.0)
        title = axes[0].text(0, 0, approx_figures._pretty(name))
        made.canvas.draw()
        assert title._preprocess_math(title.get_text()) == (name, False)


def test_long_names_are_shortened_in_figures():
    assert len(style.plain("long\n" * 100)) <= style.LONGEST_NAME


def test_a_figure_that_fails_leaves_the_others_and_a_note(tmp_path, monkeypatch):
    approx_run(tmp_path, THREE)

    def broken(*_):
        raise RuntimeError("raster overflow")

    with monkeypatch.context() as patch:
        patch.setattr(approx_figures, "error_figure", broken)
        check_files(report.draw(tmp_path), FIGURES - {"error"})
    note = tmp_path / "figures" / "failed.txt"
    assert note.read_text().startswith("error\n")
    assert "raster overflow" in note.read_text()
    check_files(report.draw(tmp_path), FIGURES)
    assert not note.exists()


def test_a_full_disk_is_raised_and_leaves_no_partial_file(tmp_path, monkeypatch):
    approx_run(tmp_path, [])
    save = Figure.savefig

    def full(made, target, format, **options):
        save(made, target, format=format, **options)
        if format == "svg":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space"):
        report.draw(tmp_path)
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["error.png"]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("shape", [*SHAPES, "huge"])
def test_numbers_are_whole_at_every_width(tmp_path, shape, width):
    result = approx_run(tmp_path, SHAPES.get(shape) or [*THREE, "bias.sigma=[1e9]", "approx.num_samples=[1,12345]"])
    lines = printed(result, width)
    assert "…" not in lines
    assert max(len(line.rstrip()) for line in lines.splitlines()) <= width
    words = set(lines.split())
    for row in result["rows"]:
        assert f"{row['num_samples']:,}" in words
        assert row["sigma"] is None or f"{row['sigma']:.4g}" in words
        for field in ("spectral_error", "max_error", "spectral_error_relative"):
            assert mean_ci(row[field], row[f"{field}_ci95"]) in lines


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("make", [attention_run, bench_run])
def test_other_tables_are_whole_too(tmp_path, make, width):
    result = make(tmp_path)
    narrow, wide = (set(printed(result, columns).replace("─", "").split()) for columns in (width, 300))
    assert wide <= narrow
    assert "…" not in "".join(narrow)


def test_a_long_name_folds_and_the_numbers_stay(tmp_path):
    result = approx_run(tmp_path, ["bias.kernel=log", "bias.a=[0.5]", "bias.b=[1.0]"])
    lines = printed(renamed(result, "log(a=0.5, b=1)", "k" * 90), 80)
    assert "…" not in lines
    for row in result["rows"]:
        assert mean_ci(row["spectral_error"], row["spectral_error_ci95"]) in lines
