"""From the model section to a model: names, folders, hub ids; what plans know, results say, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from loopback import serving
from loopback_hub import REPO, Repository, hub_online  # noqa: F401

from plsh_cli import assets
from plsh_cli.config.schema.sections import Model
from plsh_cli.errors import MessageError, PlshError, UserError
from plsh_cli.experiments import pretrained
from plsh_cli.models.shape import Shape

WORDS = 97


def section(**keys):
    return Model(
        **{"name": "smollm2_135m", "path": None, "revision": None, "dtype": "float32", "architecture": None} | keys
    )


@pytest.fixture
def folder(tmp_path):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    sizes = {"hidden_size": 40, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64}
    path = tmp_path / "mine"
    MistralForCausalLM(MistralConfig(vocab_size=WORDS, **sizes)).save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(path)
    return path


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))


def shape_in_folder(folder):
    import torch
    from safetensors.torch import load_file

    count = sum(torch.numel(value) for value in load_file(folder / "model.safetensors").values())
    return Shape(layers=2, heads=5, kv_heads=1, head_dim=8, positions=64, vocab=WORDS, parameters=count)


def test_a_plan_knows_every_named_model_without_network_or_torch(empty):
    code = (
        "import sys; from plsh_cli.config.compose import compose; from plsh_cli.experiments import pretrained\n"
        "for name in sys.argv[1:]:\n"
        "    model = compose('attn_error', ['model=' + name]).model\n"
        "    print(model.name, pretrained.shape_of(model).layers, pretrained.to_fetch(model))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'a plan must stay light'\n"
    )
    names = [name for name, asset in assets.ASSETS.items() if asset.kind == "model"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[name, str(assets.ASSETS[name].shape["layers"])] for name in names]
    assert "gated" in lines[names.index("llama4_scout")]
    assert "93 MB" in lines[names.index("smollm2_135m")]


def test_a_folder(folder, empty):
    model = section(path=str(folder))
    assert pretrained.shape_of(model) == shape_in_folder(folder)
    assert pretrained.to_fetch(model) is None
    opened = pretrained.open_model(model, "cpu", print)
    assert opened.shape == shape_in_folder(folder)
    assert opened.tokenizer("w3 w5")["input_ids"] == [3, 5]
    assert opened.label == "mine (folder, float32)"
    assert opened.details["source"] == str(folder)
    assert opened.details["commit"] is opened.details["quantisation"] is opened.details["weights_sha256"] is None


def test_a_relative_folder_that_looks_like_a_hub_id(folder, empty, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    path = f"{folder.parent.name}/{folder.name}"
    assert assets.is_hub_id(path)
    assert pretrained.shape_of(section(path=path)) == shape_in_folder(folder)


def held(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.usefixtures("online")
def test_a_hub_id_and_what_results_say_of_it(folder, monkeypatch):
    model = section(path=REPO, dtype="bfloat16")
    assert pretrained.shape_of(model) == Shape()
    assert pretrained.to_fetch(model) == f"{REPO} from the hub, at main"
    repository = Repository(held(folder))
    with serving(repository.answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        opened = pretrained.open_model(model, "cpu", print)
    assert opened.details["origin"] == "hub"
    assert opened.details["name"] == REPO.partition("/")[2]
    assert len(opened.details["commit"]) == 40
    assert len(opened.details["weights_sha256"]) == 64
    assert opened.label == f"Some-Model_1.5 (hub {opened.details['commit'][:12]}, bfloat16)"
    assert pretrained.shape_of(model) == opened.shape == shape_in_folder(folder)
    assert pretrained.to_fetch(model) is None


@pytest.mark.usefixtures("online")
def test_a_name_comes_from_the_hub_first_and_says_so(folder, monkeypatch):
    """The two sources of smollm2_135m hold different weights: results must tell them apart."""
    asset = assets.ASSETS["smollm2_135m"]
    on_hub = replace(asset.sources[0], repo=REPO, revision="main")
    monkeypatch.setitem(assets.ASSETS, "smollm2_135m", replace(asset, sources=(on_hub, asset.sources[1])))
    repository = Repository(held(folder))
    with serving(repository.answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        opened = pretrained.open_model(section(), "cpu", print)
    assert (opened.details["name"], opened.details["origin"]) == ("SmolLM2-135M", "hub")
    assert opened.details["quantisation"] is None


def test_another_revision_of_a_named_model_comes_from_its_repository(empty):
    assert pretrained.to_fetch(section(revision="v1")) == "HuggingFaceTB/SmolLM2-135M from the hub, at v1"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "gpt5"}, r"model\.name = gpt5: must be one of smollm2_135m, mistral_7b, llama4_scout"),
        ({"name": "sotu"}, r"model\.name = sotu: must be one of smollm2_135m"),
        ({"path": "nowhere"}, r"model\.path = nowhere: must be a folder with a model .* or a hub id"),
        ({"path": "a/b/c"}, r"model\.path = a/b/c"),
        ({"path": "../up"}, r"model\.path = \.\./up"),
        ({"path": "."}, r"model\.path = \."),
        ({"path": ".", "revision": "main"}, r"model\.revision = main: belongs to models of the hub"),
    ],
)
def test_a_plan_refuses(keys, said, empty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        pretrained.shape_of(section(**keys))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"path": "org/none"}, r"org/none: HF_HUB_OFFLINE forbids .*there is no folder org/none here either"),
        ({"name": "mistral_7b"}, "mistral_7b: HF_HUB_OFFLINE forbids"),
        ({"path": "."}, r"no config\.json"),
    ],
)
def test_what_cannot_be_opened(keys, said, empty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MessageError, match=said):
        pretrained.open_model(section(**keys), "cpu", print)


def test_the_checksum_of_several_files_depends_on_each():
    files = {f"model-0000{i}-of-00002.safetensors": {"sha256": str(i) * 64} for i in (1, 2)}
    both = pretrained._weights_sha256(files)
    assert len(both) == 64
    assert pretrained._weights_sha256(files | {"tokenizer.json": {"sha256": "3" * 64}}) == both
    changed = files | {"model-00002-of-00002.safetensors": {"sha256": "4" * 64}}
    assert pretrained._weights_sha256(changed) != both


@pytest.fixture(scope="module")
def real():
    """Skips where the model cannot be had; with PLSH_REQUIRE_ASSETS=1 that is a failure."""
    try:
        return assets.fetch("smollm2_135m")
    except PlshError as error:
        if os.environ.get("PLSH_REQUIRE_ASSETS") == "1":
            raise
        pytest.skip(f"needs the real model: {error}")


def test_the_real_model_is_what_the_manifest_says(real):
    opened = pretrained.open_model(section(), "cpu", print)
    assert opened.shape == pretrained.shape_of(section())
    assert opened.details["origin"] in ("hub", "package index")
    four_bit = opened.details["origin"] == "package index"
    assert ("Instruct" in opened.details["name"]) == ("4-bit" in (opened.details["quantisation"] or "")) == four_bit
    assert len(opened.details["weights_sha256"]) == 64
