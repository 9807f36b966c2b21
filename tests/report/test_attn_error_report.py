"""Figures and tables of `plsh attn-error` from made-up measures: every awkward shape."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from plsh_cli import report
from plsh_cli.config.compose import compose
from plsh_cli.experiments.attn_error import _arrays
from plsh_cli.experiments.attn_error_rows import rows
from plsh_cli.experiments.attn_error_subjects import subjects
from plsh_cli.experiments.attn_error_summary import summary
from plsh_cli.experiments.attn_error_values import FIELDS, Values
from plsh_cli.positional.kernels import alibi, log
from plsh_cli.report import style
from plsh_cli.report.attn_error_bound_figure import binned
from plsh_cli.report.attn_error_figures import figures as report_figures
from plsh_cli.report.attn_error_tables import tables as report_tables
from plsh_cli.report.text import mean_ci, number
from plsh_cli.rundir import RunFolder

SHAPES = {
    "plain": {},
    "one_seed": {"seeds": 1},
    "texts": {"seeds": 1, "inputs": 3},
    "baselines": {"biases": "[plsh,window,fixed_blocks]"},
    "one_size": {"sizes": "[10]"},
    "one_layer": {"layers": 1},
    "one_sigma": {"sigma": "[16]"},
    "log": {"kernel": "log"},
    "zero": {"scale": 0.0},
    "many": {"layers": 48, "heads": 40, "sizes": "[1,10,100,1000,10000,100000]", "seeds": 2},
    "paper": {"protocol": "paper", "seeds": 1, "inputs": 2},
}


def made(protocol="corrected", seeds=3, inputs=1, layers=5, heads=9, sizes="[10,20,40]", biases="[plsh]", **other):
    """Configuration and measures whose errors fall as 1 / sqrt(s)."""
    chosen = {"seeds": seeds, "inputs": inputs, "num_samples": sizes, "biases": biases}
    overrides = [f"attn_error.{key}={value}" for key, value in chosen.items()] + [f"protocol={protocol}"]
    if "kernel" in other:
        overrides.append(f"bias.kernel={other['kernel']}")
    cfg = compose("attn_error", overrides)
    values = Values(subjects(cfg), list(range(layers)), heads, [61] * inputs, seeds, "dense")
    generator = np.random.default_rng(0)
    fall = np.array([(one.num_samples or 5) ** -0.5 for one in values.subjects])
    noise = generator.uniform(0.9, 1.1, values.values.shape)
    values.values = other.get("scale", 1.0) * noise * fall[:, None, None]
    values.values[FIELDS.index("row_bound_violated")] = 0.0
    if "kernel" in other:
        values.kernels = [log(1.0, 1.0)] * heads
        values.values[FIELDS.index("tail_probability")] = np.nan
    else:
        values.kernels = [alibi(16.0 if "sigma" in other else 2.0 ** (head + 1)) for head in range(heads)]
    values.perplexities = [19.1] * inputs
    values.picked_bound = generator.uniform(0.01, 3.0, values.picked_bound.shape)
    values.picked_error = values.picked_bound * other.get("scale", 0.1)
    return cfg, values


def write(folder, cfg, values):
    """A run folder's result.json and arrays; the result as it is read back."""
    told = {"model": "smollm2_135m", "text": "sotu 0"} | summary(values, cfg.protocol)
    record = {"schema": 1, "command": "attn_error", "rows": rows(cfg, values), "summary": told, "timing": {}}
    RunFolder(folder).write_json("result.json", record)
    np.savez(folder / "values.npz", **_arrays(values))
    return json.loads((folder / "result.json").read_text())


def printed(result, width=100):
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        for table in report.tables(result):
            console.print(table)
    return capture.get()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_drawn_and_told(tmp_path, shape):
    result = write(tmp_path, *made(**SHAPES[shape]))
    files = report.draw(tmp_path)
    assert not (tmp_path / "figures" / "failed.txt").exists()
    names = {"output_error", "layer_head", "row_bound"}
    names |= {"head_error"} if shape not in ("one_sigma", "log") else set()
    names |= {"baselines"} if shape == "baselines" else set()
    assert {file.name for file in files} == {f"{name}.{ending}" for name in names for ending in ("png", "svg")}
    for file in files:
        if file.suffix == ".svg":
            assert len(file.read_bytes()) < 150_000, file.name
        else:
            with Image.open(file) as image:
                assert image.width == style.WIDTH * style.PNG_DPI
    lines = printed(result)
    assert "…" not in lines
    assert "nan" not in lines
    assert "19.1" in lines
    assert max(map(len, lines.splitlines())) <= 100
    assert ("no interval" in lines) == (shape == "one_seed")
    assert ("95 % CI over 3 texts" in lines) == (shape == "texts")
    assert ("pairs of s=10" in lines) == (shape == "baselines")


def test_tables_show_the_mean_with_its_interval_and_the_verdict(tmp_path):
    cfg, values = made()
    result = write(tmp_path, cfg, values)
    row = next(row for row in result["rows"] if row["group"] == "all" and row["num_samples"] == 10)
    shown = f"{row['output_error_relative']:.3f} ±{row['output_error_relative_ci95']:.3f}"
    assert shown in printed(result)
    assert "none is beyond it" in " ".join(printed(result).split())
    values.values[FIELDS.index("row_bound_violated"), 0, 0, 0, 0, 0] = 0.5
    assert "SOME ARE BEYOND IT" in " ".join(printed(write(tmp_path, cfg, values)).split())


def test_intervals_are_over_seeds_with_those_over_texts_beside(tmp_path):
    cfg, values = made(inputs=2, biases="[plsh,window]")
    values.values[:, :, 1] *= 1.5  # draws are the larger noise
    for name in ("spectral_error", "spectral_error_relative", "max_error"):
        values.values[FIELDS.index(name), 1] = values.values[FIELDS.index(name), 0]  # texts do not change matrices
    result = write(tmp_path, cfg, values)
    outputs, matrices, layers, heads = report_tables(result)
    row = next(row for row in result["rows"] if row["group"] == "all" and row["num_samples"] == 10)
    field = "output_error_relative"
    over_seeds, over_texts = row[f"{field}_ci95"], row[f"{field}_ci95_inputs"]
    assert over_seeds != pytest.approx(over_texts, rel=0.2)
    at = outputs.headers.index("relative")
    assert outputs.headers[at + 1] == "± texts"
    assert outputs.rows[0][at : at + 2] == [mean_ci(row[field], over_seeds), f"±{number(over_texts, 2)}"]
    assert "±: 95 % CI over 3 seeds" in outputs.caption
    assert "± texts: 95 % CI over 2 texts" in outputs.caption
    assert "± texts" not in matrices.headers
    assert matrices.rows[0][1] == mean_ci(row["spectral_error"], row["spectral_error_ci95"])
    assert "±: 95 % CI over 3 seeds" in matrices.caption
    assert layers.headers.count("± texts") == 3
    assert layers.rows[0][1:3] == outputs.rows[0][at : at + 2]
    assert heads.headers.count("± texts") == 5
    for maker in (report_figures(tmp_path, result)[name] for name in ("output_error", "baselines")):
        with style.look():
            (legend,) = maker().legends
        assert {"95 % CI over 3 seeds", "95 % CI over 2 texts"} <= {text.get_text() for text in legend.get_texts()}


def test_the_key_of_baselines_shows_bars(tmp_path):
    result = write(tmp_path, *made(biases="[plsh,window]"))
    with style.look():
        (legend,) = report_figures(tmp_path, result)["baselines"]().legends
    assert not legend.get_patches()
    assert [text.get_text() for text in legend.get_texts()] == ["95 % CI over 3 seeds"]


def test_groups_of_layers_are_their_thirds(tmp_path):
    result = write(tmp_path, *made(layers=5))
    assert result["summary"]["groups"] == {"all": [0, 1, 2, 3, 4], "early": [0, 1], "middle": [2, 3], "late": [4]}
    by_group = {row["group"]: row for row in result["rows"] if row["group"] and row["num_samples"] == 20}
    layers = [
        row["output_error_relative"]
        for row in result["rows"]
        if row["head"] is None and row["layer"] in (2, 3) and row["num_samples"] == 20
    ]
    assert by_group["middle"]["output_error_relative"] == pytest.approx(np.mean(layers), rel=1e-12)


def test_bins_of_the_bound():
    bound = np.repeat([0.01, 1.0, 500.0, np.inf], 10)
    error = np.tile(np.linspace(0.001, 0.01, 10), 4)
    x, median, largest, tenth = binned(bound, error)
    assert x == pytest.approx([0.01, 1.0])
    assert median == pytest.approx([0.0055, 0.0055])
    assert largest == pytest.approx([0.01, 0.01])
    assert (tenth < median).all()
