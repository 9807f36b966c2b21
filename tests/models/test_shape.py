"""Sizes from files alone are those of the model that transformers builds."""

from __future__ import annotations

import json

import pytest

from plsh_cli import assets
from plsh_cli.models.shape import Shape, shape_of_config, shape_of_folder


def test_a_folder_says_everything_without_loading(tiny_llama, tmp_path):
    tiny_llama.save_pretrained(tmp_path)
    count = sum(parameter.numel() for parameter in tiny_llama.parameters())
    assert shape_of_folder(tmp_path) == Shape(3, 9, 3, 8, 128, 97, count)
    assert shape_of_folder(tmp_path) == shape_of_config(tiny_llama.config.to_dict(), count)


def test_weights_in_several_files_and_none(tiny_llama, tmp_path):
    tiny_llama.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert shape_of_folder(tmp_path).parameters == sum(p.numel() for p in tiny_llama.parameters())
    for file in tmp_path.glob("model*"):
        file.unlink()
    assert shape_of_folder(tmp_path).parameters is None


def test_damaged_weights_leave_their_number_unknown(tiny_llama, tmp_path):
    tiny_llama.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x05\x00\x00\x00\x00\x00\x00\x00nojso")
    assert shape_of_folder(tmp_path) == Shape(3, 9, 3, 8, 128, 97, None)


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1\n", b"\xff" * 100, b"\x02" + b"\x00" * 7 + b"[]", b""]
)
def test_no_more_is_read_than_the_file_holds(tiny_llama, tmp_path, content):
    tiny_llama.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert shape_of_folder(tmp_path).parameters is None


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_no_configuration(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011
        shape_of_folder(tmp_path)


def test_falcons_key_heads():
    falcon = {"model_type": "falcon", "num_attention_heads": 71, "hidden_size": 4544}
    assert shape_of_config(falcon).kv_heads == 1
    assert shape_of_config(falcon | {"multi_query": False}).kv_heads == 71
    assert shape_of_config(falcon | {"new_decoder_architecture": True, "num_kv_heads": 8}).kv_heads == 8


# What the configurations of the hub hold beside the manifest's sizes (hidden sizes, tied embeddings, biases).
SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "tie_word_embeddings": True}
MISTRAL = {"hidden_size": 4096, "intermediate_size": 14336}
QWEN3 = {"hidden_size": 1024, "intermediate_size": 3072, "tie_word_embeddings": True}
LLAMA4 = {"hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16}
FALCON = {"hidden_size": 2048, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}


def _common(shape, **more):
    sizes = {"num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"], "vocab_size": shape["vocab"]}
    sizes |= {"num_key_value_heads": shape["kv_heads"], "head_dim": shape["head_dim"]}
    return sizes | {"max_position_embeddings": shape["positions"]} | more


def configurations():
    import transformers as t

    shapes = {name: asset.shape for name, asset in assets.ASSETS.items() if asset.kind == "model"}
    bloom, mpt, falcon = shapes["bloom_560m"], shapes["mpt_7b"], shapes["falcon_rw_1b"]
    return {
        "smollm2_135m": t.LlamaConfig(**_common(shapes["smollm2_135m"], **SMOLLM2)),
        "mistral_7b": t.MistralConfig(**_common(shapes["mistral_7b"], **MISTRAL)),
        "qwen3_0.6b": t.Qwen3Config(**_common(shapes["qwen3_0.6b"], **QWEN3)),
        "llama4_scout": t.Llama4TextConfig(**_common(shapes["llama4_scout"], **LLAMA4)),
        "bloom_560m": t.BloomConfig(
            vocab_size=bloom["vocab"], hidden_size=1024, n_layer=bloom["layers"], n_head=bloom["heads"]
        ),
        "mpt_7b": t.MptConfig(
            d_model=4096, n_heads=mpt["heads"], n_layers=mpt["layers"], vocab_size=mpt["vocab"], no_bias=True
        ),
        "falcon_rw_1b": t.FalconConfig(
            num_hidden_layers=falcon["layers"],
            num_attention_heads=falcon["heads"],
            vocab_size=falcon["vocab"],
            **FALCON,
        ),
    }


@pytest.mark.parametrize("name", [name for name, asset in assets.ASSETS.items() if asset.kind == "model"])
def test_the_manifests_sizes_are_those_of_the_model(name):
    """Built without memory; the numbers of parameters are the models' own."""
    import torch
    from transformers import AutoModelForCausalLM

    config = configurations()[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    written = json.loads(config.to_json_string())
    assert shape_of_config(written, count) == Shape(**assets.ASSETS[name].shape)
