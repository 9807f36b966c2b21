"""The number that stands for a run: which one it is, with its interval, and none where there is none."""

from __future__ import annotations

import json

import page_cases
import pytest

from plsh_cli.report import library
from plsh_cli.report.key_metrics import key_metric


def _metric(tmp_path, command, rows, summary=None):
    return key_metric(library.read(page_cases.run_folder(tmp_path, command, rows, summary or {})))


def _approx_row(n, sigma, s, error, sampler="iid"):
    return {"n": n, "sigma": sigma, "kernel": f"alibi(sigma={sigma})", "sampler": sampler, "pitch": "real",
            "num_samples": s, "spectral_error_relative": error, "spectral_error_relative_ci95": error / 10}  # fmt: skip


def test_of_approx_the_widest_kernel_and_the_most_draws(tmp_path):
    rows = [_approx_row(n, sigma, s, sigma / s) for n in (64, 128) for sigma in (2.0, 16.0) for s in (10, 40)]
    rows += [_approx_row(128, 16.0, 40, 99.0, "stratified")]
    found = _metric(tmp_path, "approx", rows)
    assert (found.value, found.half) == (0.4, pytest.approx(0.04))
    assert found.label == "relative spectral error 0.400 ±0.040 (n=128 sigma=16 s=40)"
    assert found.curve == ((10, 1.6), (40, 0.4))


def test_real_results_of_approx_have_one(tmp_path):
    result = page_cases.approx_result()
    found = _metric(tmp_path, "approx", result["rows"], result["summary"])
    widest = max(row["sigma"] for row in result["rows"])
    (row,) = [row for row in result["rows"] if row["sigma"] == widest and row["num_samples"] == 9]
    assert (found.value, found.half) == (row["spectral_error_relative"], row["spectral_error_relative_ci95"])


def test_golden_results_have_one(tmp_path):
    for file in sorted(page_cases.GOLDEN.rglob("result.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        found = _metric(tmp_path / file.parent.name, result["command"], result["rows"], result["summary"])
        assert found is not None, file


def test_of_a_fine_tuned_model_its_own_bias_afterwards_and_not_a_baseline(tmp_path):
    def row(stage, adapter, bias, own, n, bits):
        return {"stage": stage, "adapter": adapter, "bias": bias, "own": own, "num_samples": 10, "n": n,
                "bits_per_byte": bits, "bits_per_byte_ci95": 0.125}  # fmt: skip

    rows = [row("before", None, "plsh", True, 256, 9.0)]
    rows += [row("after", "plsh", "plsh", True, n, n / 256) for n in (512, 256)]
    rows += [row("after", "plsh", "alibi", False, 256, 0.25), row("after", "alibi", "alibi", True, 256, 0.5)]
    found = _metric(tmp_path, "finetune", rows)
    assert (found.value, found.half, found.curve) == (1.0, 0.125, ((256, 1.0), (512, 2.0)))


def test_of_a_study_the_first_drawn_variant_over_alibi(tmp_path):
    def row(variant, bias, n, over):
        return {"variant": variant, "bias": bias, "own": True, "n": n, "bits_per_byte": 2.0, "bits_per_byte_ci95": 0.1,
                "bits_over_alibi": over, "bits_over_alibi_ci95": None}  # fmt: skip

    rows = [row("alibi", "alibi", 64, None), row("plsh_10", "plsh", 64, 0.25), row("plsh_20", "plsh", 64, 0.125)]
    found = _metric(tmp_path, "train", rows, {"kind": "study"})
    assert found.label == "bits/byte over alibi 0.250 (plsh_10 n=64)"


def test_of_a_comparison_the_first_method_with_the_most_draws(tmp_path):
    def row(method, s, difference):
        return {"measure": "output_error", "method": method, "baseline": "fixed_blocks", "n": 64, "num_samples": s,
                "difference": difference, "difference_ci95": 0.25, "verdict": "better"}  # fmt: skip

    found = _metric(tmp_path, "compare", [row("plsh", 10, -1.0), row("plsh", 40, -2.0), row("window", 40, -3.0)])
    assert found.label == "output error, plsh less fixed_blocks -2.00 ±0.25 (n=64 s=40, better)"
    assert found.curve == ((10, -1.0), (40, -2.0))


def test_a_command_that_is_not_known_gives_its_first_field_with_an_interval(tmp_path):
    found = _metric(tmp_path, "weighing", [{"n": 3, "mass_error": 0.5, "mass_error_ci95": 0.25}])
    assert found.label == "mass error 0.500 ±0.250"
    assert _metric(tmp_path, "counting", [{"n": 3}]) is None


@pytest.mark.parametrize("command", ["approx", "attn_error", "eval", "train", "bench_attention", "bench_matrix"])
@pytest.mark.parametrize("rows", [[], [{}], [{"n": None}], [{"n": "x", "own": 3, "bias": [], "skipped": None}]])
def test_results_of_another_shape_have_none(tmp_path, command, rows):
    assert _metric(tmp_path, command, rows) is None


def test_only_finished_runs_have_one(tmp_path):
    folder = page_cases.run_folder(tmp_path, "approx", [], {}, state="failed")
    (folder / "result.json").write_text(json.dumps({"rows": [_approx_row(64, 2.0, 10, 1.0)]}), encoding="utf-8")
    assert key_metric(library.read(folder)) is None
