"""`plsh_cli.models.load`: whole models and adapters come back under the bias that they were trained under."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import adapter_cases as cases
import pytest
import torch
from adapter_cases import BIASES, assert_close, ids, logits

from plsh_cli.errors import MessageError, UserError
from plsh_cli.models import BiasSpec, handle_of, load, use_bias
from plsh_cli.models.adapter import RECORD, read_record
from plsh_cli.models.fingerprint import fingerprint

WORDS = ids()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Folders of a base per family and tying, made once."""
    made: dict[tuple, Path] = {}

    def get(name="llama", **changes):
        key = (name, *sorted(changes.items()))
        if key not in made:
            made[key] = cases.save_base(tmp_path_factory.mktemp("base"), name, **changes)
        return made[key]

    return get


def by_hand(base, folder, bias, rope):
    """The model put together from its parts, without plsh_cli.models.load."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True, dtype=torch.float32)
    if BIASES[bias] is not None:
        use_bias(model, BIASES[bias], rope=rope)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
        return PeftModel.from_pretrained(model, folder).eval()


@pytest.mark.parametrize("rope", ["keep", "drop"])
@pytest.mark.parametrize("bias", sorted(BIASES))
@pytest.mark.parametrize(("name", "tied"), [("llama", False), ("qwen3", True)])
def test_an_adapter_comes_back_under_its_bias(bases, tmp_path, name, tied, bias, rope):
    if bias == "original" and rope == "drop":
        pytest.skip("the model's own attention keeps its RoPE")
    base = bases(name, tie_word_embeddings=tied)
    cases.save_adapter(tmp_path / "a", base, bias, rope)
    wanted = logits(by_hand(base, tmp_path / "a", bias, rope), WORDS)
    model, tokenizer = load(tmp_path / "a")
    assert tokenizer("abc")["input_ids"][-3:] == [97, 98, 99]
    assert not model.training
    assert torch.equal(logits(model, WORDS), wanted)
    merged, _ = load(tmp_path / "a", merge=True)
    assert type(merged) is type(model)
    assert not [key for key in merged.state_dict() if "lora" in key or "base_layer" in key]
    assert_close(logits(merged, WORDS), wanted)


def test_the_adapter_and_the_bias_both_matter(bases, tmp_path):
    base = bases()
    cases.save_adapter(tmp_path / "a", base)
    mine = logits(load(tmp_path / "a")[0], WORDS)
    for other in (load(base)[0], load(tmp_path / "a")[0]):
        if other.config._attn_implementation == "plsh":
            with use_bias(other, BiasSpec("alibi")):
                moved = logits(other, WORDS)
            # Leaving the other bias brings back its own.
            assert torch.equal(logits(other, WORDS), mine)
        else:
            moved = logits(other, WORDS)
        assert float((moved - mine).abs().max()) > 0.1


def test_draws_are_the_same_at_every_load_and_can_be_set(bases, tmp_path):
    cases.save_adapter(tmp_path / "a", bases())
    one, two = load(tmp_path / "a")[0], load(tmp_path / "a")[0]
    wanted = logits(one, WORDS)
    assert torch.equal(logits(two, WORDS), wanted)
    handle_of(two).set(BiasSpec("plsh", num_samples=7, seed=4))
    assert not torch.equal(logits(two, WORDS), wanted)
    assert torch.equal(logits(one, WORDS), wanted)


def test_two_adapters_of_one_base_at_once(bases, tmp_path):
    base = bases()
    cases.save_adapter(tmp_path / "a", base, "alibi", seed=1)
    cases.save_adapter(tmp_path / "b", base, "plsh", "drop", seed=2)
    alone = [logits(load(tmp_path / name)[0], WORDS) for name in "ab"]
    both = [load(tmp_path / name)[0] for name in "ab"]
    for model, wanted in zip((*both, *reversed(both)), (*alone, *reversed(alone)), strict=True):
        assert torch.equal(logits(model, WORDS), wanted)


@pytest.mark.parametrize("merge", [False, True])
def test_it_writes_with_a_cache_what_it_writes_without(bases, tmp_path, merge):
    cases.save_adapter(tmp_path / "a", bases(), "plsh", "drop")
    model, _ = load(tmp_path / "a", merge=merge)
    with torch.inference_mode():
        texts = [
            model.generate(
                WORDS[:1, :20], max_new_tokens=17, do_sample=False, use_cache=cache, pad_token_id=0, eos_token_id=256
            )
            for cache in (True, False)
        ]
    assert torch.equal(*texts)
    assert texts[0].shape[1] > 21


def test_loading_leaves_the_programs_random_numbers_alone(bases, tmp_path):
    cases.save_adapter(tmp_path / "a", bases())
    before = torch.random.get_rng_state()
    load(tmp_path / "a")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_types(bases, tmp_path):
    """As it was trained, else as asked for; the adapter stays in float32."""
    from safetensors.torch import load_file

    cases.save_adapter(tmp_path / "a", bases(), dtype="bfloat16")
    model, _ = load(tmp_path / "a")
    kinds = {(name, str(weight.dtype)) for name, weight in model.named_parameters()}
    saved = load_file(tmp_path / "a" / "adapter_model.safetensors")
    mine = {name.replace(".default", ""): value for name, value in model.named_parameters()}
    assert all(torch.equal(mine[name.removeprefix("base_model.model.")], value) for name, value in saved.items())
    assert {kind for name, kind in kinds if "lora" in name} == {"torch.float32"}
    assert {kind for name, kind in kinds if "lora" not in name} == {"torch.bfloat16"}
    assert load(tmp_path / "a", dtype="float32")[0].dtype == torch.float32
    with pytest.raises(UserError, match=r"dtype = int8: must be one of float32"):
        load(tmp_path / "a", dtype="int8")


def test_a_whole_model_comes_back_under_its_bias(bases, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(bases(), local_files_only=True, dtype=torch.float32).eval()
    with use_bias(model, BIASES["plsh"], rope="drop"):
        wanted = logits(model, WORDS)
        model.save_pretrained(tmp_path / "m")
    shutil.copy(bases() / "tokenizer.json", tmp_path / "m")
    shutil.copy(bases() / "tokenizer_config.json", tmp_path / "m")
    assert torch.equal(logits(load(tmp_path / "m")[0], WORDS), wanted)
    with pytest.raises(MessageError, match="holds a whole model, base is for adapters"):
        load(tmp_path / "m", base=bases())


def test_a_run_by_folder_and_by_name(bases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = cases.save_run(Path("runs"), bases())
    wanted = logits(load(run / "model")[0], WORDS)
    for place in (run, str(run.absolute()), run.name, run.name[-6:]):
        assert torch.equal(logits(load(place)[0], WORDS), wanted)


def test_loading_writes_nothing(bases, tmp_path):
    base = cases.save_base(tmp_path / "base")
    run = cases.save_run(tmp_path / "runs", base)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    load(run)
    load(run, merge=True)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


def test_an_unmerged_model_saves_its_adapter_and_a_merged_one_itself(bases, tmp_path):
    cases.save_adapter(tmp_path / "a", bases())
    model, _ = load(tmp_path / "a")
    try:
        model.save_pretrained(tmp_path / "again")
    except ValueError as error:
        assert "version of PEFT" in str(error)  # noqa: PT017 (either is right, by the versions that are installed)
    else:
        assert (tmp_path / "again" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "again" / "model.safetensors").exists()
    merged, tokenizer = load(tmp_path / "a", merge=True)
    merged.save_pretrained(tmp_path / "whole")
    tokenizer.save_pretrained(tmp_path / "whole")
    assert torch.equal(logits(load(tmp_path / "whole")[0], WORDS), logits(merged, WORDS))


# What cannot be loaded.


def test_another_base(bases, tmp_path):
    cases.save_adapter(tmp_path / "a", bases())
    other = cases.save_base(tmp_path / "other", seed=7)
    with pytest.raises(
        MessageError, match=r"does not hold the model that the adapter was made for .*right one with base="
    ):
        load(tmp_path / "a", base=other)
    smaller = cases.save_base(tmp_path / "smaller", intermediate_size=31)
    with pytest.raises(MessageError, match="does not hold the model"):
        load(tmp_path / "a", base=smaller)
    with pytest.raises(MessageError, match="base: there is no folder"):
        load(tmp_path / "a", base=tmp_path / "nowhere")


def test_a_base_that_moved(tmp_path):
    base = cases.save_base(tmp_path / "base")
    cases.save_adapter(tmp_path / "a", base)
    wanted = logits(load(tmp_path / "a")[0], WORDS)
    base.rename(tmp_path / "moved")
    with pytest.raises(MessageError, match=r"base was in .*/base, which is not there any more: .* base=\"FOLDER\""):
        load(tmp_path / "a")
    assert torch.equal(logits(load(tmp_path / "a", base=tmp_path / "moved")[0], WORDS), wanted)


def edit(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def damage(folder, how):
    from safetensors.torch import load_file, save_file

    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    first = min(weights)
    if how == "short":
        file.write_bytes(file.read_bytes()[:-100])
    elif how == "noise":
        file.write_bytes(b"\xff" * 1000)
    elif how == "gone":
        file.unlink()
    elif how == "nan":
        save_file(weights | {first: weights[first] * float("nan")}, file)
    elif how == "fewer":
        save_file({name: value for name, value in weights.items() if name != first}, file)
    elif how == "more":
        save_file(weights | {f"{first}.more": weights[first].clone()}, file)
    elif how == "rank":
        edit(folder / "adapter_config.json", r=5)
    elif how == "kind":
        edit(folder / "adapter_config.json", peft_type="IA3")
    elif how == "modules":
        edit(folder / "adapter_config.json", target_modules=["c_attn"])
    elif how == "settings":
        (folder / "adapter_config.json").write_text("[")
    elif how == "record":
        (folder / RECORD).write_text("{}")
    elif how == "no record":
        (folder / RECORD).unlink()
    elif how == "newer":
        edit(folder / RECORD, format=2)
    elif how == "heads":
        edit(folder / RECORD, bias=BiasSpec("alibi", parameters=SEVEN).to_dict())
    elif how == "import":
        edit(folder / "adapter_config.json", megatron_config={"a": 1}, megatron_core="antigravity")


SEVEN = tuple((2.0,) for _ in range(7))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("short", r"adapter_model\.safetensors is damaged"),
        ("noise", r"adapter_model\.safetensors is no safetensors file"),
        ("gone", r"there is no adapter_model\.safetensors"),
        ("nan", "holds NaN or infinity"),
        ("fewer", "does not fit LlamaForCausalLM: 1 tensors are missing, such as base_model"),
        ("more", "does not fit LlamaForCausalLM: 1 tensors have no place, such as base_model"),
        ("rank", "does not fit LlamaForCausalLM: .*size mismatch"),
        ("kind", "of peft's type IA3; plsh reads adapters of type LORA"),
        ("modules", "does not fit LlamaForCausalLM: .*c_attn"),
        ("settings", "cannot be read as the settings of an adapter"),
        ("record", r"plsh\.json is damaged: KeyError: 'rope'"),
        ("no record", r"an adapter without plsh\.json"),
        ("newer", "is of format 2, this version of plsh knows format 1"),
        ("heads", "its bias does not fit LlamaForCausalLM: .*7"),
        ("import", "of peft's type LORA with Megatron's settings"),
    ],
)
def test_damaged_adapters(bases, tmp_path, how, told):
    cases.save_adapter(tmp_path / "a", bases())
    damage(tmp_path / "a", how)
    with pytest.raises(MessageError, match=told) as caught:
        load(tmp_path / "a")
    assert "\n" not in str(caught.value)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("state", "command", "told"),
    [
        ("running", "finetune", r"no finished model \(state: running\)$"),
        ("failed", "finetune", r"no finished model \(state: failed\); go on with plsh finetune --resume"),
        ("done", "approx", "is a run of plsh approx, which trains no model"),
    ],
)
def test_runs_without_a_model(bases, tmp_path, state, command, told):
    run = cases.save_run(tmp_path / "runs", bases(), state=state, command=command)
    with pytest.raises(MessageError, match=told):
        load(run)


def test_places_that_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MessageError, match="no run 'nothing'"):
        load("nothing")
    with pytest.raises(MessageError, match="holds neither a run"):
        load(tmp_path)


def test_the_record_says_everything(bases, tmp_path):
    record = cases.save_adapter(tmp_path / "a", bases(), "window", "drop", "bfloat16")
    assert read_record(tmp_path / "a") == record


# What identifies a base.


def test_a_fingerprint_is_of_the_model_and_not_of_its_files(tmp_path):
    from transformers import AutoModelForCausalLM

    base = cases.save_base(tmp_path / "base")
    first = fingerprint(base)
    copied = shutil.copytree(base, tmp_path / "copied")
    assert fingerprint(copied) == first
    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True)
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert fingerprint(tmp_path / "shards") == first
    edit(copied / "config.json", transformers_version="0")
    assert fingerprint(copied) == first
    edit(copied / "config.json", rms_norm_eps=1e-3)
    assert fingerprint(copied) != first


def test_a_fingerprint_sees_every_tensor(tmp_path):
    from safetensors.torch import load_file, save_file

    base = cases.save_base(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    seen = {fingerprint(base)}
    for name, value in weights.items():
        changed = value.clone()
        changed.view(-1)[-1] += 1
        save_file(weights | {name: changed}, base / "model.safetensors", {"format": "pt"})
        seen.add(fingerprint(base))
    assert len(seen) == len(weights) + 1


def test_a_fingerprint_of_torchs_own_format_and_of_no_weights(tmp_path):
    base = cases.save_base(tmp_path / "base")
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    first = fingerprint(base)
    content = bytearray((base / "pytorch_model.bin").read_bytes())
    content[-1] ^= 1
    (base / "pytorch_model.bin").write_bytes(content)
    assert fingerprint(base) != first
    (base / "pytorch_model.bin").unlink()
    with pytest.raises(MessageError, match="holds no weights"):
        fingerprint(base)
    (base / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(MessageError, match="no safetensors file"):
        fingerprint(base)


def test_importing_the_package_imports_no_peft():
    code = "import sys, plsh_cli.models.restore\nprint({'torch', 'transformers', 'peft'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "set()"
