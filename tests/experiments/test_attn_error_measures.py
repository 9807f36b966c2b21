"""Every measure of `plsh attn-error` against a plain computation, both protocols, both ways to the outputs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from attn_error_cases import N, Run, found

from plsh_cli.config.compose import compose
from plsh_cli.experiments import attn_error
from plsh_cli.experiments import attn_error_dense as dense
from plsh_cli.experiments.attn_error_metrics import BOUND, OUTPUT, ROW, measures
from plsh_cli.experiments.attn_error_subjects import all_weights, block_pairs, subjects, window_pairs
from plsh_cli.positional import bounds, matrices, norms, samplers, streams
from plsh_cli.positional.kernels import alibi, alibi_slopes

pytestmark = pytest.mark.usefixtures("one_thread")

#: `plsh attn-error --biases plsh,window,fixed_blocks --out OUT logger.mode=disabled`; the first 41 lines of the run's
#: rows.csv (groups of layers), and its figures as SVG.
GOLDEN = Path(__file__).parents[1] / "golden" / "attn_error" / "rows.csv"
HEAD, LAYER, SIZE = 7, 3, 3
KERNEL = alibi(1 / alibi_slopes(9)[HEAD])


def captured(llama, corpus, rotary):
    """The layer's Q, K, V in float64 NumPy and its scale."""
    import torch

    from plsh_cli.models.capture import capture_qkv
    from plsh_cli.models.loading import load

    loaded, tokenizer = load(llama, "float32")
    text = (corpus / "documents.jsonl").read_text().splitlines()[0]
    ids = torch.tensor([tokenizer(json.loads(text)["text"])["input_ids"][:N]])
    layer = capture_qkv(loaded, ids, [LAYER], rotary=rotary)[LAYER]
    return (*(x.double().numpy() for x in (layer.q, layer.k, layer.v)), layer.scale)


def plain(scores, value, matrix, exact, causal, symmetric, floor=0.0):
    """The measures by their definitions, one row after the other."""
    seen = np.tri(len(scores), dtype=bool) if causal else np.ones_like(scores, dtype=bool)
    raw = np.where(seen, np.exp(scores), 0.0)
    shares = raw / raw.sum(axis=1, keepdims=True)

    def output(weights):
        terms = shares * weights
        return terms @ value / terms.sum(axis=1, keepdims=True)

    a, b = output(np.maximum(matrix, floor)), output(exact)
    unnormalised = (shares * exact) @ value - (shares * matrix) @ value

    def relative(x, y):
        return np.linalg.norm(x - y) / ((np.linalg.norm(x) + np.linalg.norm(y)) / 2 if symmetric else np.linalg.norm(y))

    rows = [relative(x, y) for x, y in zip(a, b, strict=True)]
    eta, largest, ratios, informative = np.abs(matrix - exact).max(), [], [], []
    for i in range(len(scores)):
        largest.append(max(np.linalg.norm(value[j]) for j in range(len(value)) if seen[i, j]))
        bound = 2 * eta * largest[i] * raw[i].sum() / (raw[i] * matrix[i]).sum()
        ratios.append(np.linalg.norm(a[i] - b[i]) / bound)
        informative.append(bound < 2 * largest[i])
    return {
        "unnormalised_error_frobenius": np.linalg.norm(unnormalised),
        "unnormalised_error_max": np.abs(unnormalised).max(),
        "output_error_frobenius": np.linalg.norm(a - b),
        "output_error_relative": relative(a, b),
        "row_error_median": np.quantile(rows, 0.5),
        "row_error_p90": np.quantile(rows, 0.9),
        "row_error_p99": np.quantile(rows, 0.99),
        "cosine": np.mean([x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(a, b, strict=True)]),
        "row_bound_ratio_max": max(ratios),
        "row_bound_violated": 0.0,
        "row_bound_informative": np.mean(informative),
        "spectral_error": np.linalg.norm(matrix - exact, 2),
        "spectral_error_relative": np.linalg.norm(matrix - exact, 2) / np.linalg.norm(exact, 2),
        "max_error": eta,
        "tail_probability": bounds.tail_probability(KERNEL.sigma, N, SIZE, np.linalg.norm(matrix - exact, 2)),
    }


def check(result, each):
    for name in each[0]:
        values = [one[name] for one in each]
        wanted = max(values) if name == "row_bound_ratio_max" else np.mean(values)
        wanted = min(values) if name == "tail_probability" else wanted
        assert found(result, name)[LAYER, HEAD, SIZE] == pytest.approx(wanted, rel=1e-8), name


def test_every_measure_of_the_corrected_protocol(config, llama, corpus):
    result = attn_error.run(config("attn_error.layers=[1,3]"), Run())
    q, k, v, scale = captured(llama, corpus, "after")
    scores, exact, each = scale * q[HEAD] @ k[2].T, matrices.l_star(KERNEL, N), []
    for seed in (0, 1):
        stream = streams.generator(seed, "partitions", KERNEL.label, "real")
        matrix = matrices.m_tilde_by_comparison(samplers.draw(KERNEL, N, 8, stream).take(SIZE))
        each.append(plain(scores, v[2], matrix, exact, causal=True, symmetric=False))
    check(result, each)
    row = next(row for row in result.rows if (row["layer"], row["head"], row["num_samples"]) == (LAYER, HEAD, SIZE))
    assert row["bound_expectation"] == bounds.expectation_bound(KERNEL.sigma, N, SIZE)
    thumb = bounds.rule_of_thumb_samples(KERNEL.sigma, N, 0.1 * norms.kernel_norm(KERNEL, N))
    assert row["rule_of_thumb_samples"] == thumb


def test_every_measure_of_the_papers_protocol(config, llama, corpus):
    result = attn_error.run(config("protocol=paper", "attn_error.layers=[1,3]"), Run())
    q, k, v, scale = captured(llama, corpus, "before")
    # K Q^T, and key head min(7, 3 - 1).
    scores, exact, each = scale * k[2] @ q[HEAD].T, matrices.l_star(KERNEL, N), []
    for seed in (0, 1):
        key = ("input", 0, "layer", 1, "head", HEAD)  # the second of the layers that are measured
        stream = streams.generator(seed, "partitions", KERNEL.label, "real", "iid", SIZE, *key)
        matrix = matrices.m_tilde_by_comparison(samplers.draw(KERNEL, N, SIZE, stream))
        each.append(plain(scores, v[2], matrix, exact, causal=False, symmetric=True, floor=1e-20))
    check(result, each)


def test_the_protocols_differ_in_each_particular(config):
    """Key heads, RoPE and the mask show at head 1, whose key head is 0 in one and 1 in the other."""
    corrected, paper = (
        found(attn_error.run(config(f"protocol={name}", "attn_error.layers=[1]"), Run()), "cosine")[1, 1, 8]
        for name in ("corrected", "paper")
    )
    assert corrected != pytest.approx(paper, rel=1e-3)


def test_the_kernels_without_matrices_agree_with_the_dense_ones(config):
    every = "attn_error.biases=[plsh,window,fixed_blocks]"
    dense_, fused = (attn_error.run(config(every, f"attn_error.method={way}"), Run()) for way in ("dense", "fused"))
    assert {row["method"] for row in dense_.rows} == {"dense float64"}
    assert all("float32" in row["method"] for row in fused.rows)
    for one, other in zip(dense_.rows, fused.rows, strict=True):
        for name in (*OUTPUT, *BOUND, "spectral_error", "pairs_per_token"):
            # float32 against float64: errors of outputs are about 1e-6 of the values.
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=2e-5), (name, one["bias"])


def test_scores_far_apart_leave_no_row_without_an_output():
    """Where the key of the largest score is in no block, all others have exponentials that vanish beside it."""
    import torch

    n = 61
    generator = torch.Generator().manual_seed(0)
    rows, keys, values = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    head = dense.Head(rows, keys, values, 900.0)
    identity, exact = torch.eye(n, dtype=torch.float64), torch.from_numpy(matrices.l_star(alibi(2.0), n))
    (numbers,) = dense.row_numbers(head, exact, [identity], [1.0], causal=True)
    assert bool((numbers[ROW.index("value")] > 0).all())
    # Under the identity every row is its own value.
    assert torch.allclose(numbers[ROW.index("approximate")], values.norm(dim=1), rtol=1e-12)


def test_a_bound_that_is_broken_is_told():
    rows = np.ones((len(ROW), 4))
    rows[ROW.index("bound")] = [0.5, 1.0, 2.0, 4.0]
    told = dict(zip((*OUTPUT, *BOUND), measures(rows, False, 1e-12), strict=True))
    assert told["row_bound_violated"] == 0.25
    assert told["row_bound_ratio_max"] == 2.0
    assert told["row_bound_informative"] == 0.5


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_of_windows_and_blocks(causal):
    n = 53
    distance = np.arange(n)[:, None] - np.arange(n)
    seen = distance >= 0 if causal else np.ones((n, n), dtype=bool)
    for size in (1, 2, 7, 52):
        assert window_pairs(size, n, causal) == (seen & (np.abs(distance) <= size)).sum()
        block = np.arange(n) // size
        assert block_pairs(size, n, causal) == (seen & (block[:, None] == block)).sum()


def test_the_committed_norms_and_pairs_come_out_again():
    """They are a function of the seeds alone, and need no weights. How to regenerate: see `GOLDEN`."""
    cfg = compose("attn_error", ["attn_error.biases=[plsh,window,fixed_blocks]"])
    with open(GOLDEN, encoding="utf-8", newline="") as handle:
        committed = [row for row in csv.DictReader(handle) if row["group"] == "all"]
    every = [all_weights(cfg, alibi(1 / slope), 1024, True) for slope in alibi_slopes(9)]
    assert len(committed) == len(subjects(cfg)) == 10
    for place, row in enumerate(committed):
        mine = [one.facts for weights in every for one in weights if one.subject == place]
        # Norms are certified to 1e-4; pairs and largest entries are exact up to rounding.
        for name, tolerance in (("spectral_error", 2e-4), ("max_error", 1e-9), ("pairs_per_token", 1e-12)):
            mean = np.mean([getattr(facts, name) for facts in mine])
            assert float(row[name]) == pytest.approx(mean, rel=tolerance), (row["bias"], row["num_samples"], name)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", ["error", "exact", "approximate"])
def test_nan_in_a_row_is_never_a_small_error(name, symmetric):
    rows = np.abs(np.random.default_rng(0).normal(size=(len(ROW), 5))) + 0.1
    rows[ROW.index(name), 2] = np.nan
    found = dict(zip((*OUTPUT, *BOUND), measures(rows, symmetric, 1e-12), strict=True))
    assert np.isnan(found["output_error_relative"]) == (name != "approximate" or symmetric)
    assert np.isnan(found["row_bound_violated"]) == np.isnan(found["row_bound_ratio_max"]) == (name == "error")
    assert np.isnan(found["cosine"]) == (name != "error")
