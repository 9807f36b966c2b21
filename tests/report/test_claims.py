"""The claims' verdicts, against results whose answer is known."""

from __future__ import annotations

import copy
import json

import page_cases
import pytest

from plsh_cli.report import claims, library
from plsh_cli.report.claims_matrix import _is_half
from plsh_cli.report.evidence import FAILS, HOLDS, NOT_MEASURED, UNDECIDED, below, every, listed, span


def weighed(*paths):
    """Claims by their text, over these runs."""
    return {claim.text: claim for claim in claims.weigh(library.read(path) for path in paths)}


def only(found, part):
    """The one claim with this text in it."""
    (claim,) = (claim for text, claim in found.items() if part in text)
    return claim


def approx(out, change=lambda result: None, **more):
    """A run of a small `plsh approx`, whose result was changed."""
    result = copy.deepcopy(page_cases.approx_result())
    change(result)
    return page_cases.run_folder(out, "approx", result["rows"], result["summary"], **more)


def test_nothing_is_measured_without_runs():
    assert {claim.verdict for claim in claims.weigh([])} == {NOT_MEASURED}


def test_the_bounds_hold_in_a_real_run(tmp_path):
    found = weighed(approx(tmp_path))
    expectation = only(found, "expected spectral error")
    assert expectation.verdict == HOLDS
    rows = page_cases.approx_result()["rows"]
    worst = max(row["bound_expectation_ratio"] for row in rows)
    assert (
        f"{worst:.2f} of the bound in 8 cells: 4 scales, n = 61, s = 3 and 9, 3 seeds (0-2)"
        in expectation.evidence[0].text
    )
    assert expectation.evidence[0].record.path.parent.name == "approx"
    assert only(found, "tail bound").verdict == UNDECIDED


def test_a_mean_error_above_its_bound_refutes_the_expectation(tmp_path):
    def change(result):
        row = result["rows"][0]
        row |= {"spectral_error": 10 * row["bound_expectation"], "spectral_error_ci95": 0.1}

    assert only(weighed(approx(tmp_path, change)), "expected spectral error").verdict == FAILS


def test_one_seed_decides_nothing_about_an_expectation(tmp_path):
    def change(result):
        for row in result["rows"]:
            row |= {"spectral_error_ci95": None, "seeds": 1}

    claim = only(weighed(approx(tmp_path, change)), "expected spectral error")
    assert claim.verdict == UNDECIDED
    assert "one seed, no interval" in claim.evidence[0].text


@pytest.mark.parametrize(
    ("fits", "verdict"),
    [
        ([(-0.5, 0.1, 5)], HOLDS),
        ([(-0.3, 0.1, 5)], FAILS),
        ([(-0.5, 0.6, 5)], UNDECIDED),  # too wide to say anything
        ([(-0.5, None, 1)], UNDECIDED),
        ([(-0.38, 0.1, 5)], FAILS),
        ([(-0.38, 0.1, 5)] + 15 * [(-0.5, 0.1, 5)], HOLDS),  # one of sixteen may be off by as much
    ],
)
def test_exponents_of_a_half(fits, verdict):
    assert _is_half(fits) == verdict


def test_a_broken_max_bound(tmp_path):
    def change(count):
        def flag(result):
            for row in result["rows"]:
                row["bound_max"] = 0.9
            result["summary"]["flagged"] = count * [{"bound": "max", "allowed_probability": 0.01}]

        return flag

    said = [only(weighed(approx(tmp_path / str(count), change(count))), "max norm").verdict for count in (0, 1, 20)]
    assert said == [HOLDS, UNDECIDED, FAILS]  # of 24 draws one may break a bound that holds with 95 %


def test_a_single_row_beyond_the_theorem_refutes_it(tmp_path):
    good, bad = page_cases.attn_error(tmp_path), page_cases.attn_error(tmp_path, met=False, number=1)
    assert only(weighed(good), "theorem allows").verdict == HOLDS
    claim = only(weighed(good, bad), "theorem allows")
    assert claim.verdict == FAILS
    assert claim.evidence[0].record.path == bad


def test_baselines_at_equal_pairs(tmp_path):
    found = weighed(page_cases.attn_error(tmp_path))
    assert only(found, "pairs, the attention output").verdict == HOLDS
    assert only(found, "At equal pairs, it is nearer").verdict == FAILS
    assert "exponent -0.50 ± 0.08 over 3 seeds" in only(found, "output falls").evidence[0].text


def test_a_study_decides_by_its_own_claims(tmp_path):
    good = page_cases.study({"plsh_10": 2.02, "plsh_20": 2.01, "alibi": 2.0, "original": 2.2, "fixed_blocks": 2.4})
    bad = page_cases.study({"plsh_10": 2.6, "plsh_20": 2.5, "alibi": 2.0, "original": 2.2, "fixed_blocks": 2.4})
    single = page_cases.study({"plsh_10": 2.02, "alibi": 2.0, "original": 2.2, "fixed_blocks": 2.4}, seeds=1)
    paths = [
        page_cases.run_folder(tmp_path, "train", *one, number=number) for number, one in enumerate((good, bad, single))
    ]
    for path, verdict in zip(paths, (HOLDS, FAILS, UNDECIDED), strict=True):
        found = weighed(path)
        for part in ("close to exact ALiBi", "original model", "scratch, it is better than fixed blocks"):
            assert only(found, part).verdict == verdict
    assert only(weighed(*paths[:2]), "close to exact ALiBi").verdict == UNDECIDED  # they disagree


@pytest.mark.parametrize(
    ("over", "verdict"),
    [
        ({5: (2.0, 0.1), 40: (0.2, 0.1)}, HOLDS),
        ({5: (2.0, 0.1), 40: (3.0, 0.1)}, FAILS),
        ({5: (2.0, 2.0), 40: (0.2, 2.0)}, UNDECIDED),
        ({5: (2.0, None), 40: (0.2, None)}, UNDECIDED),
        ({5: (2.0, 0.1)}, NOT_MEASURED),
    ],
)
def test_a_sweep_over_s(tmp_path, over, verdict):
    assert only(weighed(page_cases.sweep_folder(tmp_path, over)), "approaches exact ALiBi").verdict == verdict


def test_fine_tuned_against_fixed_blocks(tmp_path):
    said = [
        only(
            weighed(page_cases.sweep_folder(tmp_path / str(over), {5: (over, 0.1)})), "Fine-tuned, it is better"
        ).verdict
        for over in (1.0, 9.0, 5.05)
    ]
    assert said == [HOLDS, FAILS, UNDECIDED]


def test_comparisons_at_equal_cost(tmp_path):
    def row(verdict, matched=True, baseline="fixed_blocks"):
        return {
            "method": "plsh", "baseline": baseline, "matched": matched, "verdict": verdict, "p_value": 0.01,
            "cost": "union", "level": "matrix", "measure": "max_error", "num_samples": 20, "n": 64, "pairs": 5,
            "seeds": 5, "seed_first": 0, "method_cost": 20.0, "method_error": 0.1, "baseline_error": 0.4,
        }  # fmt: skip

    summary = {"subject": "bias matrices", "sigma": [16.0], "sampler": "iid"}

    cases = {"better": HOLDS, "worse": FAILS, "undecided": UNDECIDED}
    for number, (verdict, expected) in enumerate(cases.items()):
        rows = [row(verdict), row("worse", matched=False), row("worse", baseline="window")]
        found = weighed(page_cases.run_folder(tmp_path, "compare", rows, summary, number=number))
        assert only(found, "equal cost, it is better than fixed").verdict == expected
        assert only(found, "equal cost, it is better than ALiBi").verdict == FAILS
        (said,) = only(found, "equal cost, it is better than fixed").evidence
        assert "5 pairs each; bias matrices; n = 64; sigma = 16, iid draws; 5 seeds (0-4)" in said.text
        assert "at its own" not in said.text
    for number, (error, cost, told) in enumerate([(0.3, 9.0, True), (0.5, 9.0, False), (0.3, 30.0, False)], start=9):
        own = {"bias": "fixed_blocks", "knob": "32 tokens", "cost": cost, "errors": {"max_error": {"error": error}}}
        more = {**summary, "reference": own}
        found = weighed(page_cases.run_folder(tmp_path, "compare", [row("better")], more, number=number))
        (said,) = only(found, "equal cost, it is better than fixed").evidence
        words = "at its own 32 tokens fixed_blocks has less error at less cost (max_error)"
        assert (words in said.text) == told


def test_speed(tmp_path):
    found = weighed(page_cases.bench_attention(tmp_path))
    dense = only(found, "faster than dense")
    assert dense.verdict == HOLDS
    assert "40.8 times as fast as sdpa_mask alibi at n = 8,192, float32, causal, forward" in dense.evidence[0].text
    assert only(found, "linearly").verdict == HOLDS
    targets = only(found, "targets")
    assert targets.verdict == FAILS
    missed = "missed: blocks against fused, s=10 at n = 4,096, float32, forward: 14.5 times the time, target <= 14"
    assert missed in targets.evidence[0].text, "a time means something only with its type and passes"


def test_a_damaged_result_says_nothing_and_stops_nothing(tmp_path):
    broken = page_cases.run_folder(tmp_path, "approx", [{"n": "many"}], {"slopes": 3}, number=1)
    assert only(weighed(broken, approx(tmp_path)), "expected spectral error").verdict == HOLDS
    assert {claim.verdict for claim in weighed(broken).values()} == {NOT_MEASURED}


def test_many_runs_are_counted(tmp_path):
    paths = [approx(tmp_path, number=number) for number in range(claims.SHOWN + 2)]
    claim = only(weighed(*paths), "expected spectral error")
    assert [one.record.path for one in [*claim.evidence, *claim.others]] == paths[::-1]  # the newest first
    assert len(claim.evidence) == claims.SHOWN


def test_of_runs_that_say_the_same_the_longest_are_told(tmp_path):
    paths = [approx(tmp_path, number=number) for number in range(claims.SHOWN + 2)]
    status = json.loads((paths[1] / "status.json").read_text())
    (paths[1] / "status.json").write_text(json.dumps({**status, "ended": "2026-01-30T00:00:00Z"}))
    assert only(weighed(*paths), "expected spectral error").evidence[0].record.path == paths[1]


def test_rules():
    assert [below(1.0, half, 2.0) for half in (0.5, 1.0, None)] == [HOLDS, UNDECIDED, UNDECIDED]
    assert below(3.0, 0.5, 2.0) == FAILS
    assert [every(said) for said in ([HOLDS, HOLDS], [HOLDS, UNDECIDED], [HOLDS, FAILS, UNDECIDED], [])] == [
        HOLDS,
        UNDECIDED,
        FAILS,
        UNDECIDED,
    ]
    assert (listed([20, 10, 10]), listed([1]), listed(range(9))) == ("10 and 20", "1", "0 to 8")
    assert (span([0.5, 0.25]), span([1.0])) == ("0.25 to 0.5", "1")
