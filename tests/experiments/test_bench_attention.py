"""`plsh bench attention` at toy size: what it plans, counts, checks and says. Its speeds are not tested here."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from plsh_cli.attention import FixedBlocks, NoBias, Plsh, Window, attention
from plsh_cli.attention.bias import Alibi
from plsh_cli.config.compose import compose
from plsh_cli.errors import UserError
from plsh_cli.experiments import bench_attention, bench_attention_memory
from plsh_cli.experiments import bench_attention_calls as calls
from plsh_cli.experiments import bench_attention_competitors as competitors
from plsh_cli.experiments import bench_attention_error as errors
from plsh_cli.experiments.bench_attention_counts import pairs, useful_flops
from plsh_cli.experiments.bench_attention_plan import Case, Method, bias_section, grids, sigmas, too_large
from plsh_cli.experiments.biases import attention_bias
from plsh_cli.experiments.harness import Run
from plsh_cli.positional.matrices import m_tilde
from plsh_cli.rundir import RunFolder
from plsh_cli.tracking import Tracker

TOY = [
    "bench.n=[67,131,257]",
    "bench.num_samples=[7]",
    "bench.heads=2",
    "bias.sigma=[3.0,8.0]",
    "bench.head_dim=5",
    "bench.repeats=2",
    "bench.memory=none",
    "device=cpu",
]
BACKENDS = "bench.backends=[fused,blocks,augmented,sdpa_mask,reference,auto]"
BIASES = "bench.biases=[plsh,window,alibi,fixed_blocks,none]"


@pytest.fixture(autouse=True, scope="module")
def small_machine():
    """One thread, on which matrices this small are faster, and a small product to compare rates with."""
    before, size = torch.get_num_threads(), bench_attention.MATMUL_SIZE
    torch.set_num_threads(1)
    bench_attention.MATMUL_SIZE = 64
    yield
    bench_attention.MATMUL_SIZE = size
    torch.set_num_threads(before)


def configured(*overrides):
    given = {line.partition("=")[0] for line in overrides}
    return compose("bench_attention", [*(line for line in TOY if line.partition("=")[0] not in given), *overrides])


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    def run(*overrides):
        folder = RunFolder(tmp_path_factory.mktemp("bench"))
        return bench_attention.run(configured(*overrides), Run(folder, Tracker(folder, None, "disabled"), print))

    return run


@pytest.fixture(scope="module")
def result(bench):
    return bench(BACKENDS, BIASES, "bench.passes=[forward,forward+backward]", "bench.samplers=[iid,stratified]")


def setup_of(*overrides):
    config = configured(*overrides)
    return calls.Setup(config.bias, sigmas(config), config.seed, "cpu", 4.0, config.bench.exact_when_cheaper)


def test_every_method_is_timed_in_every_case(result):
    # plsh twice (two samplers): 6 of fused, blocks, reference and auto each; alibi of the two that compute only that.
    assert len(result.rows) == (4 * 6 + 2) * 3 * 2
    assert all(row["skipped"] is None and row["repeats"] == 2 for row in result.rows)
    assert all(row["seconds_min"] <= row["seconds"] <= row["seconds_max"] for row in result.rows)
    assert {row["ran"] for row in result.rows if row["backend"] == "auto"} <= {"fused", "triton", "blocks"}
    assert {row["ran"] for row in result.rows if row["backend"] != "auto"} == {
        "fused",
        "blocks",
        "augmented",
        "sdpa_mask",
        "reference",
    }
    json.dumps([result.rows, result.summary], allow_nan=False)


def test_errors_are_those_of_the_bias(result):
    for row in result.rows:
        error = row["output_error_relative"]
        if row["bias"] == "alibi":
            assert error < 1e-5, row["method"]
        elif row["bias"] == "window":
            assert 1e-4 < error < 5e-3
        else:
            assert error > 1e-2
    own = {}
    for row in result.rows:
        own.setdefault((row["bias"], row["sampler"], row["n"], row["passes"]), []).append(row["output_error_relative"])
    assert all(max(found) - min(found) < 1e-5 for found in own.values()), "one bias, one output, whatever the backend"


def test_ratios_are_of_the_case_and_the_backend(result):
    rows = [row for row in result.rows if row["n"] == 131 and row["passes"] == "forward"]
    by = {row["method"]: row for row in rows}
    row = by["fused plsh s=7"]
    dense = min(other["seconds"] for other in rows if (other["ran"], other["bias"]) == ("fused", "alibi"))
    assert row["faster_than_dense"] == dense / row["seconds"]
    assert row["faster_than_sdpa_mask"] == by["sdpa_mask alibi"]["seconds"] / row["seconds"]
    fastest = min(other["seconds"] for other in rows if other["bias"] == "fixed_blocks")
    assert row["faster_than_fixed_blocks"] == fastest / row["seconds"]
    assert row["faster_than_flex"] is None
    assert by["sdpa_mask alibi"]["faster_than_dense"] == 1.0


def test_rates_follow_from_times_and_pairs(result):
    row = next(row for row in result.rows if row["method"] == "fused window 0.001" and row["n"] == 257)
    assert row["useful_gflop"] == pytest.approx(row["pairs"] * 4 * 5 / 1e9)
    assert row["gflops"] == pytest.approx(row["useful_gflop"] / row["seconds"])
    assert row["matmul_share"] == pytest.approx(row["gflops"] / row["matmul_gflops"])
    assert result.summary["matmul_gflops"]["float32"] > 0
    blocks = next(row for row in result.rows if row["method"] == "blocks plsh s=7" and row["n"] == 257)
    fused = next(row for row in result.rows if row["method"] == "fused plsh s=7" and row["n"] == 257)
    assert blocks["pairs"] == fused["pairs"] == fused["pairs_scored"] < blocks["pairs_scored"]


def test_the_growth_is_fitted_to_three_lengths(result):
    fits = result.summary["exponents"]
    assert len(fits) == (4 * 6 + 2) * 2
    assert {(fit["n_first"], fit["n_last"], fit["lengths"], fit["rounds"]) for fit in fits} == {(67, 257, 3, 2)}
    assert all(fit["exponent_ci95"] >= 0 for fit in fits)


def test_a_law_is_found_again():
    rows = [
        {"skipped": None, "grid": 0, "method": "m", "dtype": "float32", "causal": True, "passes": "forward", "n": n}
        for n in (10, 20, 40)
    ]
    (fit,) = bench_attention.exponents(rows, [[3e-9 * row["n"] ** 1.5, 7e-9 * row["n"] ** 1.5] for row in rows])
    assert fit["exponent"] == pytest.approx(1.5)
    assert fit["exponent_ci95"] < 1e-9


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_are_those_of_a_dense_count(causal):
    n, heads = 97, 2
    case = Case(n, "float32", causal, "forward", heads, 5, 1)
    place = np.arange(n)
    apart = place[:, None] - place
    seen = apart >= 0 if causal else np.ones((n, n), dtype=bool)
    sigma = [2.0, 11.0]
    cut = Window(sigma, 0.02)
    near = sum(int((seen & (abs(apart) <= math.floor(s * -math.log(0.02)))).sum()) for s in sigma)
    assert pairs(cut, case, heads) == near
    assert pairs(NoBias(), case, heads) == pairs(Alibi(sigma), case, heads) == heads * int(seen.sum())
    same = sum(int((seen & (place[:, None] // round(2 * s) == place // round(2 * s))).sum()) for s in sigma)
    assert pairs(FixedBlocks(sigma), case, heads) == same
    setup = setup_of("bias.sigma=[2.0,11.0]")
    method = Method("fused", "plsh", 7, "stratified", "integer")
    drawn = attention_bias(bias_section(method, setup.draws), heads, n, 0)
    union = sum(int((seen & (m_tilde(drawn.parts.head(head)) > 0)).sum()) for head in range(heads))
    assert pairs(drawn, case, heads) == union
    assert pairs(drawn, case, heads, "blocks") > union


def test_backward_counts_five_products_to_forwards_two():
    forward, both = (Case(50, "float32", True, passes, 1, 7, 3) for passes in ("forward", "forward+backward"))
    assert useful_flops(11, forward) == 11 * 3 * 4 * 7
    assert useful_flops(11, both) == 3.5 * useful_flops(11, forward)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [1, 127, 300])
def test_the_exact_output_is_the_references(n, causal):
    setup = setup_of()
    case = Case(n, "float32", causal, "forward", 2, 5, 2)
    inputs = calls.make_inputs(case, setup)
    exact = errors.exact_alibi(inputs, setup.sigma, causal)
    wanted = attention(
        *(x.double() for x in (inputs.q, inputs.k, inputs.v)), Alibi(setup.sigma), causal, backend="reference"
    )
    assert exact.rows.tolist() == list(range(n))
    assert (exact.out - wanted).abs().max() < 1e-12
    assert errors.relative_error(wanted, exact) < 1e-13
    assert errors.relative_error(wanted * 1.5, exact) == pytest.approx(0.5)


def test_long_inputs_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr(errors, "RUN", 16)
    monkeypatch.setattr(errors, "RUNS", 3)
    setup = setup_of("bias.sigma=[0.5]")  # exp(-100) is 50 tokens away: far keys are left out
    inputs = calls.make_inputs(Case(307, "float32", False, "forward", 2, 5, 1), setup)
    exact = errors.exact_alibi(inputs, setup.sigma, False)
    wanted = attention(
        *(x.double() for x in (inputs.q, inputs.k, inputs.v)), Alibi(setup.sigma), False, backend="reference"
    )
    assert exact.rows.tolist() == [*range(16), *range(146, 162), *range(291, 307)]
    assert (exact.out - wanted[:, :, exact.rows]).abs().max() < 1e-12


def test_a_wrong_output_is_not_timed(bench, monkeypatch):
    good = competitors.sdpa_with_mask

    def doubled(*args, **options):
        return lambda q, k, v: 2 * good(*args, **options)(q, k, v)

    monkeypatch.setattr(competitors, "sdpa_with_mask", doubled)
    rows = bench("bench.n=[67]", "bench.backends=[fused,sdpa_mask]", "bench.biases=[alibi]").rows
    assert [row["skipped"] is None for row in rows] == [True, False]
    assert "off by 1 from the exact ALiBi" in rows[1]["skipped"]
    assert rows[1]["seconds"] is None
    assert rows[0]["faster_than_sdpa_mask"] is None


def test_what_cannot_run_is_a_row_that_says_why(bench):
    result = bench(
        "bench.n=[67]", "bench.backends=[fused,augmented,triton,sdpa_mask,flex]", "bench.biases=[alibi]",
        "bench.causal=[false]", "bench.dtypes=[float64]", "bench.passes=[forward+backward]", "bench.dense_gib=1e-5",
    )  # fmt: skip
    why = {row["backend"]: row["skipped"] for row in result.rows}
    assert "computes in float32" in why["fused"]
    assert "causal Alibi only" in why["augmented"]
    assert why["triton"].startswith("backend triton")
    assert "bench.dense_gib allows 1e-05 GiB" in why["sdpa_mask"]
    assert why["flex"] == "FlexAttention is forward only on the CPU"
    assert result.summary["exponents"] == result.summary["claims"] == []


def test_low_precision_is_compared_with_exact_attention_on_its_own_inputs(bench):
    result = bench("bench.n=[131]", "bench.dtypes=[bfloat16,float16]", "bench.backends=[fused]", "bench.biases=[alibi]")
    found = {row["dtype"]: row["output_error_relative"] for row in result.rows}
    assert 1e-4 < found["float16"] < found["bfloat16"] < 1e-2
    assert {row["dtype"]: row["matmul_share"] is None for row in result.rows} == {"bfloat16": False, "float16": True}


@pytest.mark.parametrize("causal", [True, False])
def test_flex_blocks_hold_what_they_should(causal):
    n, reach = 700, [0, 100, 300, 10_000]
    partial, full = competitors.block_lists(reach, n, causal)
    place = torch.arange(768)
    apart = place[:, None] - place
    for head, width in enumerate(reach):
        seen = (apart.abs() <= width) & ((apart >= 0) | (not causal))
        tiles = seen.reshape(6, 128, 6, 128)
        assert torch.equal(full[head], tiles.all(dim=3).all(dim=1))
        assert torch.equal(full[head] | partial[head], tiles.any(dim=3).any(dim=1))


def test_flex_computes_the_window(bench):
    """Compiles: half a minute. On a machine where it does not compile the row must say so."""
    result = bench("bench.n=[300]", "bench.head_dim=16", "bench.backends=[fused,flex]", "bench.biases=[window,alibi]")
    rows = {row["method"]: row for row in result.rows}
    if rows["flex alibi"]["skipped"]:
        pytest.skip(rows["flex alibi"]["skipped"])
    assert rows["flex alibi"]["output_error_relative"] < 1e-5
    assert rows["flex window 0.001"]["output_error_relative"] == pytest.approx(
        rows["fused window 0.001"]["output_error_relative"], rel=1e-3
    )
    assert rows["fused alibi"]["faster_than_flex"] > 0


def test_replaced_heads_are_listed(bench):
    result = bench(
        "bench.n=[67]", "bench.backends=[blocks]", "bench.biases=[plsh]", "bias.sigma=[1.0,500.0]",
        "bench.exact_when_cheaper=true",
    )  # fmt: skip
    assert [one["heads"] for one in result.summary["exact_heads"]] == [[1]]
    assert result.rows[0]["exact_heads"] == "1"


def test_memory_is_of_the_pass_alone():
    setup = setup_of()
    case = Case(4096, "float32", True, "forward", 2, 64, 1)
    tensor = case.tensor_bytes
    fused, dense = bench_attention_memory.extra_bytes(
        [Method("fused", "window", eps=0.001), Method("sdpa_mask", "alibi")], case, setup
    )
    # The output at least, not q, k, v once more; the mask is n x n per head. The kernel counts in batches of pages,
    # 64 per core: off by less than 0.5 MiB here.
    assert tensor - 2**19 <= fused < 3 * tensor
    assert dense > 4 * 2 * 4096**2
    assert dense < 2.5 * 4 * 2 * 4096**2


def test_draws_are_those_of_a_model_under_the_same_seed():
    setup = setup_of()
    case = Case(67, "float32", True, "forward", 2, 5, 1)
    ready = calls.prepare(Method("fused", "plsh", 9, "iid", "real"), case, setup, calls.make_inputs(case, setup))
    assert isinstance(ready.bias, Plsh)
    more = calls.prepare(Method("fused", "plsh", 20, "iid", "real"), case, setup, calls.make_inputs(case, setup))
    assert np.array_equal(more.bias.parts.widths[:, :9], ready.bias.parts.widths)
    assert ready.prepare_seconds > 0


def test_inputs_do_not_depend_on_type_or_pass():
    setup = setup_of()
    one = calls.make_inputs(Case(67, "float32", True, "forward", 2, 5, 1), setup)
    other = calls.make_inputs(Case(67, "bfloat16", False, "forward+backward", 2, 5, 1), setup)
    assert torch.equal(one.q.bfloat16(), other.q)
    assert not torch.equal(other.v, other.d_out)


def test_grids_change_the_keys_they_name():
    config = compose("bench_attention", ["bench.grids=[{n:[64],num_samples:[3,5]},{biases:[alibi],backends:[fused]}]"])
    first, second = grids(config)
    assert {case.n for case in first.cases} == {64}
    assert [method.num_samples for method in first.methods if method.label.startswith("fused plsh")] == [3, 5]
    assert [method.label for method in second.methods] == ["fused alibi"]
    assert [case.n for case in second.cases] == config.bench.n
    assert first.with_memory(first.cases[0])
    assert [second.with_memory(case) for case in second.cases] == [False, True]


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["bench.n=[100000000]"], "bench.n"),
        (["bias.kernel=log"], "bias.kernel"),
        (["bias.sigma=[1,2,3]"], "bias.sigma"),
        (["bench.backends=[augmented]", "bench.biases=[plsh]"], "bench.backends"),
        (["bench.backends=[flex]", "bench.biases=[plsh,alibi]"], "bench.biases"),
    ],
)
def test_plan_refuses(overrides, field):
    with pytest.raises(UserError) as caught:
        bench_attention.plan(compose("bench_attention", overrides))
    assert caught.value.field == field


def test_the_plan_names_what_will_be_skipped():
    planned = bench_attention.plan(compose("bench_attention", ["bench.n=[16384]", "bench.backends=[fused,sdpa_mask]"]))
    assert planned["skipped"] == [
        "sdpa_mask alibi at n=16,384, float32, causal, forward: its n x n matrices take 8.0 GiB, "
        "bench.dense_gib allows 4 GiB"
    ]
    assert planned["timed"] == 4


def test_the_cap_is_of_the_matrices():
    case = Case(1024, "bfloat16", True, "forward", 8, 64, 1)
    assert not too_large(Method("sdpa_mask", "alibi"), case, 2.0**-6)
    assert too_large(Method("sdpa_mask", "alibi"), case, 2.0**-6 - 1e-9)
    assert not too_large(Method("fused", "alibi"), case, 1e-9)


def test_planning_imports_no_torch():
    code = "import sys; from plsh_cli.experiments import bench_attention; from plsh_cli.config.compose import compose; "
    code += "bench_attention.plan(compose('bench_attention', [])); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_doctor_lists_the_attention_backends(plsh):
    text = plsh("doctor").text
    for name in ("fused", "triton", "blocks", "augmented", "reference"):
        assert f"attention backend: {name}" in text
