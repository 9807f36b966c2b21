"""What `plsh compare` refuses, each with one message and exit code 2, before anything is written."""

from __future__ import annotations

import pytest

TRAINING = ["--level", "training", "--dry-run"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--baseline", "foo"], ["compare.baseline = foo", "'fixed_blocks'", "--baseline"]),
        (["--methods", "plsh,foo"], ["compare.methods[1] = foo"]),
        (["--methods", "plsh,plsh"], ["repeat", "plsh"]),
        (["--s", "0"], ["compare.num_samples[0] = 0", "at least 1", "--s"]),
        (["--s", "10,10"], ["repeat", "10"]),
        (["--s", "1e15", "compare.inputs=random"], ["compare.num_samples", "GiB", "--s"]),
        (["--n", "1"], ["compare.n = 1", "at least 2"]),
        (["--seeds", "0"], ["compare.seeds = 0"]),
        (["--level", "foo"], ["compare.level = foo", "'matrix'"]),
        (["--cost", "foo"], ["compare.cost = foo", "'union'"]),
        (["--cost", "time", "--level", "matrix"], ["compare.cost = time", "union, draws or s"]),
        (["--cost", "time", "--level", "training"], ["compare.cost = time"]),
        (["--level", "matrix", "--baseline", "original"], ["compare.baseline = original", "use none", "--baseline"]),
        (["compare.inputs=random", "--methods", "original"], ["compare.methods = original", "random inputs"]),
        (["bias.kernel=log"], ["bias.kernel = log", "alibi"]),
        (["compare.inputs=random", "--sigma", "1,2,3"], ["bias.sigma", "8, one per query head", "--sigma"]),
        (["compare.inputs=random", "--n", "1000000000"], ["compare.n", "GiB", "--n"]),
        (["model=tiny"], ["model = tiny", "no trained weights", "compare.inputs=random"]),
        ([*TRAINING, "model=smollm2_135m"], ["model = smollm2_135m", "model.architecture", "tiny"]),
        ([*TRAINING, "compare.train=['bias=alibi']"], ["compare.train", "bias=alibi"]),
        ([*TRAINING, "compare.train=['seed=3']"], ["compare.train", "seed=3"]),
        ([*TRAINING, "compare.train=['experiment=miniature']"], ["compare.train", "experiment=miniature"]),
        ([*TRAINING, "--n", "64"], ["compare.n = 64", "no effect at level=training", "matrix"]),
        ([*TRAINING, "--texts", "7"], ["compare.texts = 7", "no effect at level=training", "attention"]),
        (["--level", "matrix", "--layers", "3"], ["compare.layers", "no effect at level=matrix"]),
        (["compare.inputs=random", "--layers", "1"], ["compare.layers", "attention with compare.inputs=random"]),
        (["compare.heads=4"], ["compare.heads = 4", "attention with compare.inputs=captured", "attention on random"]),
        (["compare.processes=4"], ["compare.processes = 4", "training"]),
        (["--level", "matrix", "--sigma", "5e-324"], ["bias.sigma[0]", "at least 1e-30", "--sigma"]),
        (["--level", "matrix", "--sigma", "1.7e308"], ["bias.sigma[0]", "at most 1e+30", "--sigma"]),
        ([*TRAINING, "compare.train=['train.stepz=3']"], ["unknown key train.stepz", "train.steps"]),
        ([*TRAINING, "compare.train=['train.steps=x']"], ["train.steps = x"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_one_message(plsh, tmp_path, words, told):
    done = plsh("compare", "logger.mode=disabled", *words)
    assert done.code == 2, done.text
    assert done.err.count("plsh: ") == 1
    assert len(done.err.strip().splitlines()) == 1
    for word in told:
        assert word in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare.texts=9"], ["compare.texts = 9", "4 documents", "--texts"]),
        (["compare.n=999"], ["compare.n = 999", "--n"]),
        (["compare.layers=[7]"], ["compare.layers = 7", "--layers"]),
        (["data.document=9"], ["data.document = 9"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_inputs_that_are_not_there(plsh, llama, corpus, words, told):
    chosen = {"model.path": llama, "data.document": 0, "compare.n": 127, "logger.mode": "disabled"}
    chosen |= dict(word.split("=") for word in words)
    done = plsh("compare", "--dry-run", *(f"{key}={value}" for key, value in chosen.items()))
    assert done.code == 2, done.text
    for word in told:
        assert word in done.err


def test_a_document_that_is_too_short_is_said_in_the_words_of_compare(plsh, llama, corpus):
    done = plsh(
        *("compare", "logger.mode=disabled", f"model.path={llama}", "data.document=0"),
        *("compare.texts=4", "compare.n=127", "device=cpu", "--s", "2", "--layers", "0"),
    )
    assert done.code == 2, done.text
    assert "compare.texts = 4: only 3 of the 4 documents" in done.text
    assert "--texts" in done.text
