"""`plsh compare`: costs that are equal, comparisons whose outcome is known, and every level at toy size."""

from __future__ import annotations

import json

import numpy as np
import pytest
from attn_error_cases import Run
from scipy import stats
from training_toy import MODEL, TRAIN, texts

from plsh_cli.attention.bias import FixedBlocks, Window, head_structures
from plsh_cli.config.compose import compose
from plsh_cli.experiments import compare, compare_attention, compare_plan, compare_training
from plsh_cli.experiments.compare_costs import Counted, Draws, pairs_per_token, reaches
from plsh_cli.experiments.compare_match import TOLERANCE, ByCount, Matched, bisect, pairs, settle
from plsh_cli.experiments.compare_rows import first_line
from plsh_cli.experiments.compare_settings import MOST_DRAWS, Setting, ladder, own
from plsh_cli.experiments.compare_time import ByTime
from plsh_cli.positional.kernels import alibi, alibi_slopes
from plsh_cli.positional.matrices import m_tilde

pytestmark = pytest.mark.usefixtures("one_thread")

#: n and sigma of every head.
SHAPES = {
    "one head": (1021, [16.0]),
    "eight heads": (509, (1.0 / alibi_slopes(8)).tolist()),
    "nine heads": (257, (1.0 / alibi_slopes(9)).tolist()),
    "equal heads": (509, [61.0] * 6),
}


def draws_of(n, sigmas, units=3, sampler="iid"):
    return Draws([alibi(sigma) for sigma in sigmas], n, [(seed, ()) for seed in range(units)], (sampler, "real"))


def found(shape, methods, baseline, kind="union", sizes=(5, 20)):
    n, sigmas = SHAPES[shape]
    return pairs(methods, baseline, sizes, kind, ByCount(Counted(kind, draws_of(n, sigmas))), (sigmas, n, 0.001))


def cfg(*overrides):
    return compose("compare", ["logger.mode=disabled", "device=cpu", *overrides])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["plsh", "window", "fixed_blocks"])
@pytest.mark.parametrize("baseline", ["plsh", "window", "fixed_blocks"])
def test_costs_are_equal_within_two_percent(shape, method, baseline):
    for pair in found(shape, [method], baseline):
        assert pair.note == ""
        assert abs(pair.ratio - 1.0) <= TOLERANCE


@pytest.mark.parametrize("sampler", ["stratified", "importance"])
def test_costs_are_equal_for_draws_that_are_not_nested(sampler):
    n, sigmas = SHAPES["eight heads"]
    matcher = ByCount(Counted("union", draws_of(n, sigmas, sampler=sampler)))
    assert not any(pair.note for pair in pairs(["plsh"], "fixed_blocks", [7, 20], "union", matcher, (sigmas, n, 0.001)))


def test_counted_pairs_are_those_of_the_masks():
    n, sigmas = 127, [2.0, 11.0]
    below = np.tril(np.ones((n, n), dtype=bool))
    for setting, bias in (
        (Setting("window", eps=0.03), Window(sigmas, 0.03)),
        (Setting("fixed_blocks", lengths=(5, 31)), FixedBlocks([2.5, 15.5])),
    ):
        seen = head_structures(bias, 2, n)
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        masks = [distance <= one.width if setting.eps else m_tilde(one) > 0 for one in seen]
        assert pairs_per_token(setting, sigmas, n) == pytest.approx(np.mean([(m & below).sum() for m in masks]) / n)
    draws = draws_of(n, sigmas)
    every = [m_tilde(draws.parts(unit, 7), head) for unit in range(3) for head in range(2)]
    union, of_all = draws.pairs(7)
    assert union == pytest.approx(np.mean([((m > 0) & below).sum() for m in every]) / n)
    assert of_all == pytest.approx(np.mean([7 * (m * below).sum() for m in every]) / n)


def test_the_window_keeps_what_attention_keeps():
    sigmas = (1.0 / alibi_slopes(12)).tolist()
    for eps in (0.9, 0.1, 0.001, 1e-200):
        assert reaches(eps, sigmas, 10**9) == [int(one.width) for one in head_structures(Window(sigmas, eps), 12, 9)]


@pytest.mark.parametrize("bias", ["plsh", "window", "fixed_blocks"])
def test_the_cost_never_falls_along_a_ladder(bias):
    n, sigmas = SHAPES["nine heads"]
    cost = Counted("union", draws_of(n, sigmas, 1))
    costs = [cost(ladder(bias, sigmas, n)(t)) for t in np.linspace(0.0, 0.6 if bias == "plsh" else 1.0, 23)]
    assert costs == sorted(costs)
    # From the token itself to all pairs; of draws from a single one.
    assert costs[0] == (cost(Setting("plsh", num_samples=1)) if bias == "plsh" else 1.0)
    if bias != "plsh":
        assert costs[-1] == (n + 1) / 2
    assert ladder("plsh", sigmas, n)(1.0).num_samples == MOST_DRAWS


def test_blocks_are_settled_head_by_head():
    n, wanted = 509, pairs_per_token(Setting("fixed_blocks", lengths=(7, 20, 60)), [1.0] * 3, 509)
    start = Setting("fixed_blocks", lengths=(8, 21, 61))

    def excess(setting):
        return pairs_per_token(setting, [1.0] * 3, n) - wanted

    settled = settle(start, excess, (n,) * 3)
    assert abs(excess(settled)) < 0.05 * excess(start)
    assert all(abs(after - before) <= 1 for after, before in zip(settled.lengths, start.lengths, strict=True))
    assert settle(settled, excess, settled.lengths).lengths == settled.lengths


def test_bisection_finds_the_nearest():
    assert bisect(lambda t: Setting("plsh", num_samples=round(100 * t)), lambda one: one.num_samples - 37.4) == Setting(
        "plsh", num_samples=37
    )


@pytest.mark.parametrize(
    ("methods", "baseline", "kind", "words"),
    [
        (["plsh"], "alibi", "union", ["alibi: it has no knob", "times that of plsh s=5"]),
        (["plsh"], "none", "union", ["none: it has no knob"]),
        (["plsh"], "fixed_blocks", "s", ["does not change the number of attentions", "0.2 times that of plsh s=5"]),
        (["alibi"], "plsh", "union", ["plsh: its knob reaches no nearer"]),
    ],
)
def test_unequal_budgets_are_said_in_the_first_line(methods, baseline, kind, words):
    every = found("one head", methods, baseline, kind)
    line = first_line(every, kind)
    assert line.startswith(f"UNEQUAL COST in {len(every)} of {len(every)}")
    for word in words:
        assert word in line


def test_whole_tokens_that_come_no_nearer_are_said():
    n, sigmas = 509, [2.0]
    matcher = ByCount(Counted("union", draws_of(n, sigmas)))
    (pair,) = pairs(["plsh"], "fixed_blocks", [1], "union", matcher, (sigmas, n, 0.001))
    assert bool(pair.note) == (abs(pair.ratio - 1.0) > TOLERANCE)
    (pair,) = pairs(["plsh"], "plsh", [1], "union", matcher, (sigmas, n, 0.001))
    assert (pair.note, pair.ratio) == ("", 1.0)


def test_methods_beyond_the_end_of_their_knob_are_one_and_not_called_equal():
    every = found("one head", ["window"], "window", "draws", sizes=(400, 800))
    assert [pair.method.pairs_of for pair in every] == [None]


def test_a_baseline_is_shared_where_its_cost_fits():
    n, sigmas = SHAPES["eight heads"]
    matcher = ByCount(Counted("union", draws_of(n, sigmas)))
    shape = (sigmas, n, 0.001)
    apart = pairs(["plsh", "window"], "fixed_blocks", [5, 20], "union", matcher, shape)
    shared = pairs(["plsh", "window"], "fixed_blocks", [5, 20], "union", matcher, shape, share=TOLERANCE)
    assert len({pair.baseline for pair in shared}) == 2
    assert not any(pair.note for pair in [*apart, *shared])


def test_time_is_matched_by_measuring(monkeypatch):
    """Calls that take as long as a clock of our own says: 1 ms for each of s, 0.4 ms for each token of a block."""
    now = [0.0]
    monkeypatch.setattr("plsh_cli.experiments.compare_time.time.perf_counter", lambda: now[0])

    def prepared(setting):
        def call():
            now[0] += 1e-3 * (setting.num_samples or 0) + 4e-4 * sum(setting.lengths or ())

        return call

    one = ByTime(prepared).match(Setting("plsh", num_samples=20), ladder("fixed_blocks", [16.0, 64.0], 509))
    assert isinstance(one, Matched)
    assert one.equal
    assert one.target_cost == pytest.approx(20.0)
    assert sum(one.setting.lengths) == pytest.approx(50, abs=1)


def run(*overrides):
    told = Run()
    result = compare.run(cfg(*overrides), told)
    return result, told


RANDOM = ("compare.inputs=random", "compare.n=257", "compare.heads=4", "compare.head_dim=16", "compare.texts=3")


def test_the_window_beats_fixed_blocks_at_equal_cost():
    result, _ = run(*RANDOM, "compare.methods=[plsh,window]", "compare.num_samples=[10]")
    assert result.summary["first_line"].startswith("equal cost")
    assert result.summary["equal_cost"]
    rows = {(row["method"], row["measure"]): row for row in result.rows}
    assert {row["verdict"] for row in result.rows} == {"better"}
    drawn = rows["plsh", "output_error_relative"]
    assert (drawn["pairs"], drawn["texts"], drawn["seeds"]) == (9, 3, 3)
    assert drawn["p_value_texts"] is not None
    whole = rows["window", "output_error_relative"]
    # Nothing of it is drawn: a text is one pair, whatever the number of seeds.
    assert (whole["pairs"], whole["unit"], whole["p_value_texts"]) == (3, "a text", None)
    assert whole["method_error"] < 0.2 < whole["baseline_error"]


@pytest.mark.parametrize("level", ["matrix", "attention"])
def test_a_bias_against_itself_is_undecided_with_difference_zero(level):
    result, _ = run(*RANDOM, f"compare.level={level}", "compare.methods=[plsh]", "compare.baseline=plsh")
    assert len(result.rows) == 6
    for row in result.rows:
        assert (row["difference"], row["p_value"], row["verdict"]) == (0.0, 1.0, "undecided")
        assert (row["cost_ratio"], row["matched"]) == (1.0, True)


def test_the_baseline_at_its_own_setting_is_told_beside():
    result, _ = run("compare.level=matrix", "compare.n=257", "bias.sigma=[11]", "compare.methods=[plsh]")
    own_blocks = result.summary["reference"]
    assert (own_blocks["bias"], own_blocks["knob"]) == ("fixed_blocks", "22 tokens")
    assert own_blocks["cost"] == pytest.approx(11.5, rel=0.03)
    matched = [row["baseline_error"] for row in result.rows if row["measure"] == "spectral_error_relative"]
    # Blocks that are longer to cost as much as the draws are further from ALiBi than those of 2 sigma.
    assert own_blocks["errors"]["spectral_error_relative"]["error"] < min(matched)
    result, _ = run("compare.level=matrix", "compare.n=257", "compare.baseline=alibi", "compare.methods=[plsh]")
    assert result.summary["reference"] is None


def test_outputs_are_those_of_attn_error():
    """The same relative error as by dense float64 from the matrices."""
    config = cfg(*RANDOM, "compare.methods=[plsh,window]", "compare.num_samples=[5]", "compare.seeds=2")
    heads = compare_plan.heads(config)
    draws = compare_plan.draws_of(config, heads)
    settings = [Setting("plsh", num_samples=5), Setting("none")]
    layers = list(compare_attention.random_inputs(3, 0, (4, 257, 16), "cpu"))
    errors = compare_attention.errors(settings, draws, iter(layers), 3, False, lambda count: None)
    layer, below = layers[1][0], np.tril(np.ones((257, 257)))
    q, k, v = (x.double().numpy() for x in (layer.q, layer.k, layer.v))
    distance = np.abs(np.subtract.outer(np.arange(257), np.arange(257)))
    wanted = []
    for head, sigma in enumerate(heads.sigmas):
        weights = np.exp(q[head] @ k[head].T * layer.scale) * below
        exact = weights * np.exp(-distance / sigma)
        drawn = weights * m_tilde(draws.parts(1 * 2 + 1, 5), head)
        outs = [(one / one.sum(axis=1, keepdims=True)) @ v[head] for one in (drawn, exact)]
        wanted.append(np.linalg.norm(outs[0] - outs[1]) / np.linalg.norm(outs[1]))
    assert errors[settings[0]].shape == (2, 3, 2)
    assert errors[settings[1]].shape == (2, 3, 1)
    assert errors[settings[0]][0, 1, 1] == pytest.approx(np.mean(wanted), rel=1e-4)


def test_matrices_of_every_bias_against_dense_norms():
    config = cfg("compare.level=matrix", "compare.n=127", "bias.sigma=[5,11]", "compare.seeds=2")
    heads = compare_plan.heads(config)
    draws = compare_plan.draws_of(config, heads)
    settings = [Setting("plsh", num_samples=3), Setting("window", eps=0.1), Setting("fixed_blocks", lengths=(9, 30))]
    settings += [Setting("none"), Setting("alibi")]
    found = compare.compare_matrix.errors(settings, draws, lambda count: None)
    distance = np.abs(np.subtract.outer(np.arange(127), np.arange(127)))
    place = np.arange(127)
    for setting in settings:
        each = []
        for head, sigma in enumerate(heads.sigmas):
            exact = np.exp(-distance / sigma)
            w = {
                "plsh": lambda head=head: m_tilde(draws.parts(1, 3), head),
                "window": lambda exact=exact: np.where(exact >= 0.1, exact, 0.0),
                "fixed_blocks": lambda head=head: np.equal.outer(*[place // (9, 30)[head]] * 2),
                "none": lambda exact=exact: np.ones_like(exact),
                "alibi": lambda exact=exact: exact,
            }[setting.bias]()
            each.append((np.linalg.norm(w - exact, 2) / np.linalg.norm(exact, 2), np.abs(w - exact).max()))
        assert found[setting][:, 0, -1] == pytest.approx(np.mean(each, axis=0), rel=1e-3, abs=1e-12)


def test_one_pair_has_no_interval_and_stays_undecided():
    result, _ = run("compare.level=matrix", "compare.n=127", "compare.methods=[window]", "compare.num_samples=[10]")
    for row in result.rows:
        assert (row["pairs"], row["difference_ci95"], row["p_value"], row["verdict"]) == (1, None, None, "undecided")


@pytest.mark.parametrize("sigma", [1e-30, 1e-5, 1e30])
@pytest.mark.parametrize("level", ["matrix", "attention"])
@pytest.mark.parametrize("baseline", ["fixed_blocks", "window"])
def test_sigmas_beyond_all_lengths_make_all_methods_the_same(level, baseline, sigma):
    """One token sees itself alone, or every other: what is left is rounding, which decides nothing."""
    result, _ = run(
        *(RANDOM if level == "attention" else ["compare.n=257"]), f"compare.level={level}", f"bias.sigma=[{sigma}]",
        "compare.methods=[plsh,window,fixed_blocks]", f"compare.baseline={baseline}", "compare.num_samples=[3]",
    )  # fmt: skip
    assert result.summary["equal_cost"]
    for row in result.rows:
        assert row["method_cost"] == pytest.approx(1.0 if sigma < 1 else 129.0)
        assert row["method_error"] < 1e-6
        assert row["verdict"] == "undecided"


def test_every_error_is_kept_so_that_the_test_can_be_made_again():
    result, told = run(*RANDOM, "compare.methods=[plsh,window]", "compare.num_samples=[10,20]", "seed=5")
    kept = told.rows["pairs"]
    for row in result.rows:
        sides = []
        for bias, knob in ((row["method"], row["knob"]), (row["baseline"], row["baseline_knob"])):
            found = [one for one in kept if (one["measure"], one["bias"], one["knob"]) == (row["measure"], bias, knob)]
            assert found
            own = {(one["text"], one["seed"]): one["error"] for one in found}
            assert {seed for _, seed in own} == ({5, 6, 7} if bias == "plsh" else {None})
            sides.append(own)
        first, second = sides
        again = stats.ttest_rel(list(first.values()), [second[text, None] for text, _ in first])
        assert (row["pairs"], row["p_value"]) == (len(first), pytest.approx(again.pvalue, rel=1e-9))


@pytest.fixture
def captured(llama, corpus):
    return [f"model.path={llama}", "data.document=0", "compare.n=127", "compare.texts=3", "compare.num_samples=[4]"]


def test_on_a_models_own_inputs(captured):
    config = ["compare.layers=[0,2]", "compare.methods=[plsh,window,original]", *captured]
    assert any(key.startswith("plsh s=4") for key in compare.plan(cfg(*config)))
    result, told = run(*config)
    assert any("perplexity" in line for line in told.lines)
    rows = [row for row in result.rows if row["measure"] == "output_error_relative"]
    assert [(row["method"], row["pairs"]) for row in rows] == [("plsh", 9), ("window", 3), ("original", 3)]
    assert rows[1]["verdict"] == "better"
    assert all(row["matched"] for row in rows)
    assert result.summary["layers"] == [0, 2]
    again, _ = run(*config)
    assert again.rows == result.rows


def test_training_runs_are_found_again_and_paired_by_seed(plsh, tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))
    folder = texts(tmp_path / "texts")
    inner = [text for text in TRAIN if not text.startswith("device")] + ["train.steps=5"]
    quoted = ",".join(f"'{text}'" for text in inner)
    command = ["compare", "--level", "training", "--methods", "plsh", "--s", "5", "--seeds", "2", *MODEL, "data=text"]
    command += [f"data.path={folder}", "device=cpu", "logger.mode=disabled", f"compare.train=[{quoted}]"]
    # A run that plsh train itself made is taken.
    alone = ["train", *MODEL, *inner, "data=text", f"data.path={folder}", "device=cpu", "logger.mode=disabled"]
    assert plsh(*alone, "bias.num_samples=5", "seed=0").code == 0
    plan = plsh(*command, "--dry-run")
    assert "4, 2 at a time; 1 of them are there already" in plan.text
    done = plsh(*command)
    assert done.code == 0, done.text
    assert "plsh s=5, seed 0: done before" in done.text
    (path,) = tmp_path.glob("runs/compare/*/result.json")
    result = json.loads(path.read_text())
    assert {(row["n"], row["measure"], row["pairs"]) for row in result["rows"]} == {
        (n, measure, 2) for n in (31, 62) for measure in ("bits_per_byte", "perplexity")
    }
    for row in result["rows"]:
        bits = {}
        for one in result["summary"]["runs"]:
            record = json.loads((tmp_path / one["run"] / "result.json").read_text())
            bits[one["setting"].split()[0], one["seed"]] = next(
                found[row["measure"]] for found in record["rows"] if found["own"] and found["n"] == row["n"]
            )
        apart = [bits["plsh", seed] - bits["fixed_blocks", seed] for seed in (0, 1)]
        assert row["difference"] == pytest.approx(np.mean(apart), abs=1e-12)
    assert (path.parent / "figures" / "pareto.png").is_file()
    # A training that diverged is compared as far as its numbers go.
    trained = next(tmp_path.glob("runs/train/*fixed_blocks*/result.json"))
    whole = trained.read_text()
    lost = json.loads(whole)
    for one in lost["rows"]:
        one["perplexity"] = None
    trained.write_text(json.dumps(lost))
    done = plsh(*command)
    assert done.code == 0, done.text
    assert "errors of baseline are not finite" in done.text
    path = max(tmp_path.glob("runs/compare/*/result.json"), key=lambda file: file.stat().st_mtime_ns)
    for before, row in zip(result["rows"], json.loads(path.read_text())["rows"], strict=True):
        if row["measure"] == "bits_per_byte":
            assert row == before
        else:
            assert (row["verdict"], row["difference"], row["p_value"]) == ("undecided", None, None)
            assert (row["baseline_error"], row["not_finite"]) == (None, "baseline")
    assert json.loads(path.read_text())["summary"]["runs"] == result["summary"]["runs"]
    for damage in ([], [{"own": True}], [*json.loads(whole)["rows"], *json.loads(whole)["rows"]]):
        trained.write_text(json.dumps({**lost, "rows": damage}))
        done = plsh(*command)
        assert "is not as a run leaves it; move the run away" in done.err
        assert done.code == 1 or done.code == 2


def test_overrides_of_a_training_run_compose_it():
    config = cfg("compare.level=training", "model=tiny", "model.architecture.hidden_size=64", "bias.sigma=[16]")
    from plsh_cli.config.compose import config_hash

    for setting in (
        Setting("plsh", num_samples=10),
        Setting("window", eps=0.07220123456789),
        Setting("fixed_blocks", lengths=(9, 12, 18, 33, 66, 131, 250, 256)),
        Setting("original"),
    ):
        made, words = compare_training.member(config, setting, 1)
        assert config_hash(compose("train", words)) == config_hash(made)
        assert made.model.architecture.hidden_size == 64
        if setting.lengths:
            bias = FixedBlocks(made.bias.sigma)
            widths = [float(one.widths[0, 0]) for one in head_structures(bias, 8, 256)]
            assert widths == list(setting.lengths)


def test_the_miniatures_runs_are_those_of_the_default():
    from plsh_cli.config.compose import config_hash
    from plsh_cli.experiments import train_study

    members = {
        (one.variant, one.seed): config_hash(one.config)
        for one in train_study.members(compose("train", ["experiment=miniature"]))
    }
    config = compose("compare", ["compare.level=training", "model=tiny"])
    for size in (10, 20):
        made, _ = compare_training.member(config, Setting("plsh", num_samples=size), 2)
        assert config_hash(made) == members[f"plsh_{size}", 2]


def test_own_settings():
    assert own("fixed_blocks", [2.0, 16.0, 600.0], 1000, 0.1).lengths == (4, 32, 1000)
    assert own("window", [2.0], 10, 0.1) == Setting("window", eps=0.1)
