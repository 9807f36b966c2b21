"""`plsh export`: folders for others, whose logits are the run's, in a process that only does what was printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import adapter_cases as cases
import pytest
import torch
from adapter_cases import BIASES, assert_close, ids, logits

from plsh_cli.errors import MessageError
from plsh_cli.models import export as exporting
from plsh_cli.models import load, restore, use_bias

WORDS = ids(37)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return cases.save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A model of another family whose head is its embedding."""
    return cases.save_base(tmp_path_factory.mktemp("tied"), "qwen3", tie_word_embeddings=True)


AFTER = """
import torch
words = torch.tensor({words})
with torch.inference_mode():
    torch.save(model.eval()(input_ids=words).logits.float(), {place!r})
print(tokenizer("ab")["input_ids"][-2:])
"""


def in_another_process(code, tmp_path):
    """The logits of the model that some lines of Python make."""
    place = str(tmp_path / "logits.pt")
    code += AFTER.format(words=WORDS.tolist(), place=place)
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[97, 98]"), done.stderr
    return torch.load(place, weights_only=True)


@pytest.mark.parametrize("rope", ["keep", "drop"])
@pytest.mark.parametrize("bias", sorted(BIASES))
def test_merged_logits_are_the_runs(base, tied, tmp_path, bias, rope):
    """To 1e-5 of the largest; in this process, for every bias; tied embeddings stay tied."""
    from transformers import AutoModelForCausalLM

    if bias == "original" and rope == "drop":
        pytest.skip("the model's own attention keeps its RoPE")
    for number, one in enumerate((base, tied)):
        run = cases.save_run(tmp_path / "runs", one, name=f"toy{number}", bias=bias, rope=rope)
        wanted = logits(load(run)[0], WORDS)
        to = tmp_path / f"out{number}"
        done = exporting.export(restore.find(run), to, merge=True, say=print)
        assert done.difference <= 1e-5 * done.largest
        ours = {} if bias == "original" else {"attn_implementation": "plsh"}
        model = AutoModelForCausalLM.from_pretrained(to, local_files_only=True, dtype=torch.float32, **ours)
        assert_close(logits(model.eval(), WORDS), wanted)
        assert model.config.tie_word_embeddings == (one == tied)
        assert ("attn_implementation" in (to / "config.json").read_text()) == (bias != "original")
        assert not list(to.glob("adapter*"))
        assert {file.stat().st_mode & 0o444 for file in to.iterdir()} == {0o444}


def test_logits_of_usual_sizes_agree_to_1e_5_outright(tmp_path):
    """With weights as models are initialised logits are about 1; the toys' are ten times that, and so is rounding."""
    base = cases.save_base(tmp_path / "base", initializer_range=0.02)
    run = cases.save_run(tmp_path / "runs", base)
    done = exporting.export(restore.find(run), tmp_path / "out", merge=True)
    wanted = logits(load(run)[0], WORDS)
    assert 0.3 < done.largest < 3.0
    assert float((logits(load(tmp_path / "out")[0], WORDS) - wanted).abs().max()) <= 1e-5
    assert done.difference <= 1e-5


@pytest.mark.parametrize(
    ("bias", "rope", "words"),
    [("plsh", "drop", ["--merge"]), ("original", "keep", ["--merge"]), ("plsh", "keep", []), ("alibi", "drop", [])],
)
def test_what_is_printed_is_enough(plsh, base, tmp_path, bias, rope, words):
    run = cases.save_run(tmp_path / "runs", base, bias=bias, rope=rope)
    wanted = logits(load(run)[0], WORDS)
    done = plsh("export", run.name, "--to", str(tmp_path / "out"), *words)
    assert done.code == 0, done.text
    code = textwrap.dedent("\n".join(line for line in done.out.splitlines() if line.startswith("    ")))
    assert ("RoPE dropped" in done.text) == (rope == "drop")
    assert (bias in done.text) == (bias != "original")
    assert code in (tmp_path / "out" / "README.md").read_text().replace("\n\n", "\n")
    # Nothing of the run is needed; of an adapter, its base is.
    run.rename(tmp_path / "moved")
    assert_close(in_another_process(code, tmp_path), wanted)


def test_an_adapter_alone_is_as_peft_has_it(plsh, base, tmp_path):
    run = cases.save_run(tmp_path / "runs", base)
    assert plsh("export", run.name, "--to", "out/adapter").code == 0
    to = tmp_path / "out" / "adapter"
    for name in ("adapter_model.safetensors", "adapter_config.json", "plsh.json", "tokenizer.json"):
        assert (to / name).read_bytes() == (run / "model" / name).read_bytes()
    assert not (to / "model.safetensors").exists()
    assert_close(logits(load(to)[0], WORDS), logits(load(run)[0], WORDS), 0.0)


def test_a_base_in_bfloat16(tmp_path):
    """Rounding merged weights to bfloat16 adds an error of the kind that the run's model has from its activations.

    Both are measured against the same weights in float32: the merged model's may be twice the run's, and one place of
    the largest logit, 2**-8 of it. Merged into float32 nothing is rounded.
    """
    base = cases.save_base(tmp_path / "base", dtype=torch.bfloat16)
    run = cases.save_run(tmp_path / "runs", base, dtype="bfloat16")
    exact, own = logits(load(run, dtype="float32")[0], WORDS), logits(load(run)[0], WORDS)
    low = exporting.export(restore.find(run), tmp_path / "low", merge=True)
    high = exporting.export(restore.find(run), tmp_path / "high", merge=True, dtype="float32")
    assert (low.dtype, high.dtype) == ("bfloat16", "float32")
    # What is said of a float32 copy is about its weights, not about the run's own rounding.
    assert high.difference <= 1e-5 * high.largest < low.difference
    merged, kept = (load(tmp_path / name)[0] for name in ("low", "high"))
    assert (merged.dtype, kept.dtype) == (torch.bfloat16, torch.float32)
    assert_close(logits(kept, WORDS), exact)
    budget = 2.0 * float((own - exact).abs().max()) + 2.0**-8 * float(exact.abs().max())
    assert 0.0 < float((logits(merged, WORDS) - exact).abs().max()) <= budget


def test_a_whole_model(plsh, base, tmp_path):
    """A fully fine-tuned one, or one of plsh train, is written whole, with or without --merge."""
    run = cases.save_run(tmp_path / "runs", base)
    model, tokenizer = load(run, merge=True)
    for file in (run / "model").iterdir():
        file.unlink()
    model.save_pretrained(run / "model")
    tokenizer.save_pretrained(run / "model")
    wanted = logits(model, WORDS)
    for name, words in {"one": ["--merge"], "two": []}.items():
        done = plsh("export", run.name, "--to", name, *words)
        assert done.code == 0, done.text
        assert ("nothing to merge" in done.text) == bool(words)
        assert "the whole model (float32), logits of 64 tokens are off the run's by at most 0.0e+00" in done.text
        assert torch.equal(logits(load(tmp_path / name)[0], WORDS), wanted)


def test_what_is_exported_can_be_put_under_another_bias(base, tmp_path):
    run = cases.save_run(tmp_path / "runs", base)
    exporting.export(restore.find(run), tmp_path / "out", merge=True)
    one, two = load(run)[0], load(tmp_path / "out")[0]
    with use_bias(one, BIASES["alibi"]), use_bias(two, BIASES["alibi"]):
        assert_close(logits(two, WORDS), logits(one, WORDS))


# What is refused.


def test_folders_that_are_not_empty(plsh, base, tmp_path):
    run = cases.save_run(tmp_path / "runs", base)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    refused = plsh("export", run.name, "--to", "full", "--merge")
    assert (refused.code, "exists and is not an empty folder" in refused.text) == (2, True)
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["mine"]
    assert plsh("export", run.name, "--to", "full/mine").code == 2
    (tmp_path / "empty").mkdir()
    assert plsh("export", run.name, "--to", "empty").code == 0


def test_links_lead_to_the_folder(plsh, base, tmp_path):
    run = cases.save_run(tmp_path / "runs", base)
    for name, there in (("empty", True), ("new", False)):
        if there:
            (tmp_path / name).mkdir()
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
        done = plsh("export", run.name, "--to", f"to-{name}")
        assert done.code == 0, done.text
        assert (tmp_path / f"to-{name}").is_symlink()
        assert (tmp_path / name / "adapter_model.safetensors").is_file()
    (tmp_path / "loop").symlink_to("loop")
    assert plsh("export", run.name, "--to", "loop").code == 2
    assert (tmp_path / "loop").is_symlink()


def test_a_base_that_moved_and_another_one(plsh, tmp_path):
    base = cases.save_base(tmp_path / "base")
    run = cases.save_run(tmp_path / "runs", base)
    base.rename(tmp_path / "moved")
    refused = plsh("export", run.name, "--to", "out", "--merge")
    assert (refused.code, "say where it is now with --base FOLDER" in refused.text) == (2, True)
    other = cases.save_base(tmp_path / "other", seed=3)
    refused = plsh("export", run.name, "--to", "out", "--merge", "--base", str(other))
    assert (refused.code, "does not hold the model" in refused.text) == (2, True)
    assert not (tmp_path / "out").exists()
    assert plsh("export", run.name, "--to", "out", "--merge", "--base", "moved").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing", "--to", "out"], "no run 'nothing'"),
        (["RUN", "--to", "out", "--dtype", "float32"], "a dtype is for whole models, with --merge"),
        (["RUN", "--to", "out", "--merge", "--dtype", "int4"], "dtype = int4: must be one of float32"),
        (["RUN"], "Missing option '--to'"),
    ],
)
def test_other_words(plsh, base, tmp_path, words, told):
    run = cases.save_run(tmp_path / "runs", base)
    refused = plsh("export", *(run.name if word == "RUN" else word for word in words))
    assert (refused.code, told in refused.text) == (2, True), refused.text
    assert not (tmp_path / "out").exists()


def test_runs_that_cannot_be_exported(plsh, base, tmp_path):
    run = cases.save_run(tmp_path / "runs", base, state="killed")
    refused = plsh("export", run.name, "--to", "out")
    assert (refused.code, "no finished model (state: killed)" in refused.text) == (2, True)
    run = cases.save_run(tmp_path / "runs", base, name="other", command="approx")
    refused = plsh("export", run.name, "--to", "out")
    assert (refused.code, "trains no model" in refused.text) == (2, True)


def test_a_damaged_adapter_is_not_handed_on(plsh, base, tmp_path):
    run = cases.save_run(tmp_path / "runs", base)
    file = run / "model" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    refused = plsh("export", run.name, "--to", "out")
    assert (refused.code, "is damaged" in refused.text, (tmp_path / "out").exists()) == (2, True, False)


FULL = """
import resource, sys
from plsh_cli.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv = ["plsh", "export", {run!r}, "--to", {to!r}, "--merge"]
main()
"""


def test_a_file_that_cannot_be_written_whole(base, tmp_path):
    """With the system's own limit on the size of a file, as on a full disk, nothing stays behind."""
    run = cases.save_run(tmp_path / "runs", base)
    (tmp_path / "place").mkdir()
    code = FULL.format(run=str(run), to=str(tmp_path / "place" / "out"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot be written" in done.stderr) == (2, True), done.stderr
    assert "nothing was kept" in done.stderr
    assert not list((tmp_path / "place").iterdir())


def test_a_merge_that_went_wrong_is_not_kept(base, tmp_path, monkeypatch):
    """The written folder is read back and compared."""
    from plsh_cli.errors import PlshError

    run = cases.save_run(tmp_path / "runs", base)
    save = exporting._save

    def forgetful(model, tokenizer, made):
        save(model, tokenizer, made)
        config = json.loads((made / "config.json").read_text())
        (made / "config.json").write_text(json.dumps(config | {"plsh": {"name": "none"}}))

    monkeypatch.setattr(exporting, "_save", forgetful)
    with pytest.raises(PlshError, match="logits are off by"):
        exporting.export(restore.find(run), tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_made(base, tmp_path):
    run = cases.save_run(tmp_path / "runs", base)
    (tmp_path / "file").write_text("")
    with pytest.raises(MessageError, match="cannot be written"):
        exporting.export(restore.find(run), tmp_path / "file" / "out", merge=True)
