"""Loading from a folder, and perplexity, on a tiny model that is saved and read back."""

from __future__ import annotations

import json
import math

import pytest
import torch

from plsh_cli.errors import MessageError
from plsh_cli.models.loading import load
from plsh_cli.models.perplexity import perplexity


@pytest.fixture
def folder(tiny_llama, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(97)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tiny_llama.save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(tmp_path)
    return tmp_path


def test_reads_back_the_model_and_its_tokenizer(folder, tiny_llama, token_ids):
    model, tokenizer = load(folder, "float32")
    assert not model.training
    assert tokenizer("w5 w7")["input_ids"] == [5, 7]
    with torch.inference_mode():
        assert torch.equal(model(token_ids).logits, tiny_llama(token_ids).logits)
    assert load(folder, "bfloat16")[0].dtype == torch.bfloat16


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(MessageError, match=r"no config\.json"):
        load(tmp_path, "float32")


def test_a_configuration_that_cannot_be_used(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(MessageError, match=r"its config\.json cannot be used"):
        load(folder, "float32")
    (folder / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(MessageError, match="nonesuch"):
        load(folder, "float32")


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(MessageError, match="holds no weights"):
        load(folder, "float32")


def test_weights_in_torchs_own_format(folder, tiny_llama, token_ids):
    torch.save(tiny_llama.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with torch.inference_mode():
        assert torch.equal(load(folder, "float32")[0](token_ids).logits, tiny_llama(token_ids).logits)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("BertForMaskedLM", "bert is an encoder"),
        ("BertLMHeadModel", "bert is an encoder"),
        ("DistilBertForMaskedLM", "distilbert is an encoder"),
        ("T5ForConditionalGeneration", "t5 has an encoder beside its decoder"),
        ("ViTModel", "no causal language model of type vit"),
    ],
)
def test_an_encoder_is_refused_before_its_weights_are_read(tmp_path, name, reason):
    import transformers

    config = getattr(transformers, name).config_class()
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    with pytest.raises(MessageError, match=reason):
        load(tmp_path, "float32")


def test_weights_that_are_missing_are_not_made_up(folder, tiny_llama):
    from safetensors.torch import save_file

    kept = {name: value for name, value in tiny_llama.state_dict().items() if ".1.mlp" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        MessageError, match=r"3 of the model's weights are not in its files, such as model\.layers\.1\."
    ):
        load(folder, "float32")


def test_weights_of_other_shapes_than_the_configuration_says(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 59}))
    with pytest.raises(MessageError, match="cannot be loaded"):
        load(folder, "float32")


@pytest.mark.parametrize("text", [None, "{"])
def test_a_folder_without_a_tokenizer(folder, text):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    if text is not None:
        (folder / "tokenizer.json").write_text(text)
    with pytest.raises(MessageError, match="no tokenizer"):
        load(folder, "float32")


def test_damaged_weights(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(MessageError, match="cannot be loaded"):
        load(folder, "float32")


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("model.safetensors", LFS_POINTER, r"model\.safetensors is a git-lfs pointer, .* git lfs pull"),
        ("model.safetensors", b"\xff" * 1000, r"model\.safetensors is no safetensors file"),
        ("pytorch_model.bin", LFS_POINTER, r"pytorch_model\.bin is a git-lfs pointer"),
        ("pytorch_model.bin", b"\xff" * 1000, r"pytorch_model\.bin in it is damaged"),
    ],
)
def test_files_that_are_no_weights(folder, name, content, reason):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(MessageError, match=reason) as caught:
        load(folder, "float32")
    assert "weights_only" not in str(caught.value)


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize("heads", [0, 7, "nine"])
def test_wrong_numbers_in_the_configuration(folder, heads):
    edit_config(folder, num_attention_heads=heads)
    with pytest.raises(MessageError, match=r"config\.json"):
        load(folder, "float32")


def test_weights_of_more_layers_than_the_configuration_has(folder):
    edit_config(folder, num_hidden_layers=2)
    with pytest.raises(MessageError, match=r"9 tensors of its files would be unused, such as model\.layers\.2\."):
        load(folder, "float32")


def test_weights_beside_the_decoder_are_told_and_old_buffers_are_not(folder, tiny_llama):
    from safetensors.torch import save_file

    more = {"tower.patch.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(tiny_llama.state_dict() | more, folder / "model.safetensors", {"format": "pt"})
    said = []
    load(folder, "float32", said.append)
    assert [line.partition(": ")[2] for line in said] == [
        "1 tensors of its files are not part of the decoder, such as tower.patch.weight"
    ]


def test_no_tokenizer_files_at_all(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(MessageError, match="there are no tokenizer files in the folder"):
        load(folder, "float32")


def test_a_tokenizer_of_another_model(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"x{index}": 97 + index for index in range(5)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(MessageError, match=r"102 ids.*97 embeddings"):
        load(folder, "float32")


def test_perplexity_is_the_exponential_of_the_mean_loss(tiny_llama, token_ids):
    with torch.inference_mode():
        wanted = math.exp(float(tiny_llama(token_ids, labels=token_ids).loss))
    assert perplexity(tiny_llama, token_ids) == pytest.approx(wanted, rel=1e-5)


def test_perplexity_of_a_model_that_knows_nothing_is_the_size_of_its_vocabulary(tiny_llama, token_ids):
    torch.nn.init.zeros_(tiny_llama.lm_head.weight)
    assert perplexity(tiny_llama, token_ids) == pytest.approx(97, rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (5,)])
def test_perplexity_needs_one_text_of_two_tokens(tiny_llama, shape):
    with pytest.raises(ValueError, match="input_ids"):
        perplexity(tiny_llama, torch.zeros(shape, dtype=torch.int64))
