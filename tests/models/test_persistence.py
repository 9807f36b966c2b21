"""A saved model comes back under its bias and without the RoPE that was dropped, or does not come back at all."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
import toy
from model_biases import SIGMAS, draws

from plsh_cli.attention import Alibi, FixedBlocks, NoBias, Window
from plsh_cli.errors import MessageError
from plsh_cli.models import BiasSpec, capture_qkv, handle_of, use_bias

SPECS = {
    "plsh": BiasSpec("plsh", num_samples=3, sampler="stratified", pitch="integer", seed=5, key=("saved", 1)),
    "layers": BiasSpec("plsh", parameters=((7.0,),), share_layers=False, capacity=70),
    "log": BiasSpec("plsh", kernel="log", parameters=((1.0, 0.1),), num_samples=2, merge="mean"),
    "alibi": BiasSpec("alibi", parameters=tuple((sigma,) for sigma in SIGMAS)),
    "window": BiasSpec("window", eps=0.05),
    "fixed_blocks": BiasSpec("fixed_blocks"),
    "none": BiasSpec("none"),
}


@pytest.fixture
def model():
    return toy.toy_model("llama")


def logits(model, ids):
    with torch.inference_mode():
        return model(ids, use_cache=False).logits


def load(folder, **options):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **options).eval()


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("rope", ["keep", "drop"])
def test_a_saved_model_comes_back_under_its_bias(model, token_ids, tmp_path, name, rope):
    with use_bias(model, SPECS[name], rope=rope) as handle:
        wanted = logits(model, token_ids)
        assert len(handle.bias) == 3
        model.save_pretrained(tmp_path / "one")
    loaded = load(tmp_path / "one")
    assert torch.equal(logits(loaded, token_ids), wanted)
    assert handle_of(loaded).calls == 3
    loaded.save_pretrained(tmp_path / "two")
    assert torch.equal(logits(load(tmp_path / "two"), token_ids), wanted)
    assert torch.equal(logits(load(tmp_path / "one", attn_implementation="plsh"), token_ids), wanted)


@pytest.mark.parametrize("name", ["alibi", "plsh"])
@pytest.mark.parametrize("rope", ["keep", "drop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saving_again_without_running_keeps_the_bias(model, token_ids, tmp_path, name, rope, dtype):
    model.save_pretrained(tmp_path / "plain")
    plain = load(tmp_path / "plain", dtype=dtype)
    with use_bias(plain, SPECS[name], rope=rope):
        wanted = logits(plain, token_ids)
    with use_bias(model, SPECS[name], rope=rope):
        model.save_pretrained(tmp_path / "one")
    load(tmp_path / "one").to(dtype).save_pretrained(tmp_path / "two")
    load(tmp_path / "two", dtype=dtype).save_pretrained(tmp_path / "three")
    description = json.loads((tmp_path / "three" / "config.json").read_text())
    assert description["attn_implementation"] == "plsh"
    assert description["plsh"] == SPECS[name].to_dict()
    again = load(tmp_path / "three")
    assert (again.dtype, again.config._attn_implementation) == (dtype, "plsh")
    assert torch.equal(logits(again, token_ids), wanted)


@pytest.mark.parametrize("rope", ["keep", "drop"])
def test_the_text_part_of_a_model_with_a_vision_tower_keeps_its_bias(token_ids, tmp_path, rope):
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {"vocab_size": 97, "hidden_size": 72, "intermediate_size": 53, "num_hidden_layers": 2, "head_dim": 8}
    text |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 128}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1, image_token_index=96)
    model = Gemma3ForConditionalGeneration(config).eval()
    with use_bias(model, SPECS["plsh"], rope=rope):
        wanted = logits(model, token_ids)
        model.save_pretrained(tmp_path / "one")
    Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    again = Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "two").eval()
    assert again.config.text_config._attn_implementation == "plsh"
    assert again.config.vision_config._attn_implementation == "sdpa"
    assert torch.equal(logits(again, token_ids), wanted)
    assert handle_of(again).calls == 2


def test_a_plain_model_loaded_for_plsh_says_so_when_saved(model, tmp_path):
    model.save_pretrained(tmp_path / "one")
    assert "attn_implementation" not in json.loads((tmp_path / "one" / "config.json").read_text())
    load(tmp_path / "one", attn_implementation="plsh").save_pretrained(tmp_path / "two")
    assert load(tmp_path / "two").config._attn_implementation == "plsh"


@pytest.mark.parametrize(("spec", "rope", "warned"), [("plsh", "drop", 1), ("plsh", "keep", 0), ("none", "drop", 0)])
def test_another_attention_for_a_model_without_rope_is_warned_of_once(model, token_ids, tmp_path, spec, rope, warned):
    with use_bias(model, SPECS[spec], rope=rope):
        model.save_pretrained(tmp_path / "one")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(tmp_path / "one")
        assert not [one for one in caught if "without any positions" in str(one.message)]
        loaded = load(tmp_path / "one", attn_implementation="sdpa")
        logits(loaded, token_ids)
    mine = [one for one in caught if "without any positions" in str(one.message)]
    assert [one.category for one in mine] == [RuntimeWarning] * warned
    loaded.save_pretrained(tmp_path / "two")
    assert "attn_implementation" not in json.loads((tmp_path / "two" / "config.json").read_text())


@pytest.mark.parametrize("bias", [NoBias(), Alibi(SIGMAS), Alibi(3.0), Window(SIGMAS, 0.01)])
def test_biases_without_draws_describe_themselves(model, token_ids, tmp_path, bias):
    with use_bias(model, bias):
        wanted = logits(model, token_ids)
        model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path), token_ids), wanted)


def test_a_model_that_was_saved_after_removal_is_an_ordinary_one(model, token_ids, tmp_path):
    use_bias(model, SPECS["plsh"], rope="drop").remove()
    model.save_pretrained(tmp_path)
    assert "plsh" not in (tmp_path / "config.json").read_text()
    assert torch.equal(logits(load(tmp_path), token_ids), logits(model, token_ids))


def test_draws_without_a_description_do_not_come_back_as_others(model, token_ids, tmp_path):
    with use_bias(model, draws()):
        model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    with pytest.raises(MessageError, match="nobody described"):
        loaded(token_ids)
    with use_bias(model, draws()):
        wanted = logits(model, token_ids)
    with use_bias(loaded, draws()):
        assert torch.equal(logits(loaded, token_ids), wanted)


def test_draws_with_a_description_beside_them(model, token_ids, tmp_path):
    spec = SPECS["plsh"]
    with use_bias(model, spec.build(9, 128), spec=spec) as handle:
        wanted = logits(model, token_ids)
        handle.set(draws(seed=9), spec=spec)
        model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path), token_ids), wanted)


@pytest.mark.parametrize("way", ["save", "copy"])
@pytest.mark.parametrize(
    "bias", [Alibi(SIGMAS), Window(SIGMAS, 0.01), FixedBlocks(3.0), NoBias(), SPECS["plsh"], SPECS["layers"]]
)
def test_a_bias_that_was_set_comes_back(model, token_ids, tmp_path, bias, way):
    with use_bias(model, BiasSpec("none" if bias != NoBias() else "alibi"), rope="drop") as handle:
        handle.set(bias)
        wanted = logits(model, token_ids)
        model.save_pretrained(tmp_path)
        again = load(tmp_path) if way == "save" else copy.deepcopy(model)
    assert torch.equal(logits(again, token_ids), wanted)
    # A model that came back is set through `handle_of`, and nothing is written after removal.
    handle_of(again).set(Alibi(2.0))
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again"), token_ids), logits(again, token_ids))
    handle.set(bias)
    assert "plsh" not in vars(model.config)


def test_draws_that_were_set_without_a_description_do_not_come_back(model, token_ids, tmp_path):
    with use_bias(model, SPECS["plsh"]) as handle:
        handle.set(draws(seed=9))
        model.save_pretrained(tmp_path)
    with pytest.raises(MessageError, match="nobody described"):
        load(tmp_path)(token_ids)


def test_a_specification_that_was_set_serves_any_length(model, token_ids):
    with use_bias(model, NoBias()) as handle:
        handle.set(BiasSpec("plsh", capacity=61))
        wanted = logits(model, token_ids)
        handle.set(BiasSpec("plsh", capacity=10))
        assert torch.equal(logits(model, token_ids), wanted)


def test_equal_biases_of_layers_are_one_description(model, token_ids, tmp_path):
    with use_bias(model, [Alibi(list(SIGMAS)) for _ in range(3)]):
        wanted = logits(model, token_ids)
        model.save_pretrained(tmp_path / "same")
    assert torch.equal(logits(load(tmp_path / "same"), token_ids), wanted)
    with use_bias(model, [Alibi(1.0), Alibi(1.0), Alibi(2.0)]):
        model.save_pretrained(tmp_path / "other")
    with pytest.raises(MessageError, match="different biases"):
        load(tmp_path / "other")(token_ids)


def test_a_copy_of_a_model_has_the_described_bias(model, token_ids):
    with use_bias(model, SPECS["plsh"], rope="drop"):
        wanted = logits(model, token_ids)
        copied = copy.deepcopy(model)
    assert torch.equal(logits(copied, token_ids), wanted)


def test_a_plain_model_asked_for_plsh_says_what_it_runs_under(model, token_ids, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, attn_implementation="plsh")
    with pytest.warns(RuntimeWarning, match="positional LSH with 10 draws per head"):
        got = logits(loaded, token_ids)
    with use_bias(model, BiasSpec("plsh")):
        assert torch.equal(logits(model, token_ids), got)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logits(loaded, token_ids)


def test_a_handle_is_for_models_under_a_bias(model):
    with pytest.raises(ValueError, match="its attention is sdpa"):
        handle_of(model)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma3", "phi", "llama4"])
def test_dropped_rope_stays_dropped(name, token_ids, tmp_path):
    """The same token everywhere: without positions all rows of queries and keys are equal."""
    model, same = toy.toy_model(name), torch.full_like(token_ids, 5)
    with use_bias(model, NoBias(), rope="drop"):
        before = logits(model, token_ids)
        model.save_pretrained(tmp_path)
        for one in (model, load(tmp_path)):
            assert torch.equal(logits(one, token_ids), before)
            for q, k, *_ in capture_qkv(one, same, [0, 1, 2]).values():
                assert all(float((x[:, 1:] - x[:, :1]).abs().max()) < 1e-4 for x in (q, k))
    q, k, *_ = capture_qkv(model, same, [0])[0]
    assert min(float((x[:, 1:] - x[:, :1]).abs().max()) for x in (q, k)) > 0.1
    parameters = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    sets = list(parameters.values()) if name == "gemma3" else [parameters]
    assert [one["rope_type"] for one in sets] == ["plsh_none"] * len(sets)


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


LOAD = """
import warnings, torch
warnings.simplefilter("ignore")
{imports}
model = AutoModelForCausalLM.from_pretrained({folder!r}, attn_implementation="plsh")
print(float(model(torch.arange(61)[None]).logits.sum()))
"""
ORDERS = {
    "plsh first": "import plsh_cli\nfrom transformers import AutoModelForCausalLM",
    "transformers first": "from transformers import AutoModelForCausalLM\nimport plsh_cli",
    "models first": "from transformers import AutoModelForCausalLM, LlamaForCausalLM\nimport plsh_cli, plsh_cli",
}


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_importing_plsh_is_enough_whatever_was_imported_before(model, tmp_path, order):
    with use_bias(model, BiasSpec("plsh", seed=3), rope="drop"):
        wanted = float(logits(model, torch.arange(61)[None]).sum())
        model.save_pretrained(tmp_path)
    code, out, error = python(LOAD.format(imports=ORDERS[order], folder=str(tmp_path)))
    assert code == 0, error
    assert float(out) == pytest.approx(wanted, rel=1e-4)
    assert "Missing validation" not in error


@pytest.mark.parametrize("rope", ["keep", "drop"])
def test_without_plsh_such_a_model_does_not_load(model, tmp_path, rope):
    """Only RoPE and another attention asked for by name make it the model that it was before."""
    with use_bias(model, SPECS["plsh"], rope=rope):
        model.save_pretrained(tmp_path)
    code, out, error = python(WITHOUT_PLSH.format(folder=str(tmp_path)))
    assert code == 0, error
    first, second = out.splitlines()
    assert 'attn_implementation="plsh"' in first or "plsh_none" in first
    assert ("plsh_none" in second) == (rope == "drop")
    assert (second == "loads") == (rope == "keep")


WITHOUT_PLSH = """
from transformers import AutoModelForCausalLM
for options in ({{}}, {{"attn_implementation": "sdpa"}}):
    try:
        AutoModelForCausalLM.from_pretrained({folder!r}, **options)
        print("loads")
    except Exception as error:
        print(" ".join(str(error).split()))
"""


def test_importing_plsh_imports_neither_torch_nor_transformers():
    code, out, error = python("import sys, plsh_cli.models\nprint({'torch', 'transformers'} & set(sys.modules))")
    assert (code, out) == (0, "set()"), error


def test_the_modules_stay_what_they_are():
    code, out, error = python(
        "import plsh_cli, inspect, transformers.modeling_utils as m, sys\n"
        "print(inspect.getsource(m)[:2], type(m.__loader__).__name__, [f for f in sys.meta_path if 'plsh' in repr(f)])"
    )
    assert (code, out.split()[1:]) == (0, ["SourceFileLoader", "[]"]), error
