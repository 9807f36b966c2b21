"""What attention under a bias cannot honour is refused with one message, never left out."""

from __future__ import annotations

import copy

import pytest
import torch
import toy
from model_biases import SIGMAS, draws

from plsh_cli.attention import Alibi, NoBias, Plsh
from plsh_cli.errors import MessageError
from plsh_cli.models import use_bias


@pytest.fixture
def model():
    return toy.toy_model("llama")


@pytest.mark.parametrize("name", toy.OWN_CODE)
def test_models_with_an_attention_or_alibi_of_their_own(name):
    # From transformers 5.25 on, Falcon's attention goes through the interface, and its ALiBi through the mask.
    why = "does not go through transformers' attention interface"
    if "falcon" in name:
        why += "|adds an ALiBi of its own to the attention mask"
    with pytest.raises(MessageError, match=why):
        use_bias(toy.toy_model(name), NoBias())


def test_falcon_with_rope_is_refused_or_computed_as_it_is(token_ids):
    model = toy.toy_model("falcon_rope")
    if not model._can_set_attn_implementation():
        with pytest.raises(MessageError, match="does not go through transformers' attention interface"):
            use_bias(model, NoBias())
        return
    wanted = model(token_ids).logits
    with use_bias(model, NoBias()):
        torch.testing.assert_close(model(token_ids).logits, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Electra"])
def test_encoders_are_refused_at_once(token_ids, name):
    import transformers

    sizes = {"vocab_size": 97, "hidden_size": 36, "embedding_size": 36, "intermediate_size": 40}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 9, "max_position_embeddings": 128}
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
    before = model(token_ids).logits
    with pytest.raises(MessageError, match="is an encoder, not a causal language model"):
        use_bias(model, NoBias())
    assert torch.equal(model(token_ids).logits, before)


def test_a_decoder_of_an_encoders_code_is_not_refused(token_ids):
    from transformers import BertConfig, BertLMHeadModel

    sizes = {"vocab_size": 97, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 2}
    config = BertConfig(**sizes, num_attention_heads=9, is_decoder=True, attention_probs_dropout_prob=0.0)
    model = BertLMHeadModel(config).eval()
    wanted = model(token_ids).logits
    with use_bias(model, NoBias()):
        torch.testing.assert_close(model(token_ids).logits, wanted, rtol=1e-5, atol=1e-5)


def test_encoder_decoders_are_refused_at_once():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=97, d_model=24, d_kv=8, d_ff=16, num_layers=1, num_heads=3)
    with pytest.raises(MessageError, match="not a causal language model"):
        use_bias(T5ForConditionalGeneration(config), NoBias())


@pytest.mark.parametrize(("name", "option"), [("gemma2", "softcap"), ("gpt_oss", "s_aux")])
def test_soft_caps_and_sinks(name, option, token_ids):
    model = toy.toy_model(name, "eager")
    with use_bias(model, NoBias()), torch.inference_mode(), pytest.raises(MessageError, match=option):
        model(token_ids)


def test_a_mask_of_the_callers_own(model, token_ids):
    mask = torch.ones(61, 61, dtype=torch.bool).tril()[None, None]
    with use_bias(model, NoBias()), pytest.raises(MessageError, match="4-D mask"):
        model(token_ids, attention_mask=mask)


def test_attention_weights(model, token_ids):
    with use_bias(model, NoBias()), pytest.raises(MessageError, match="output_attentions"):
        model(token_ids, output_attentions=True)


def test_dropout_in_training(token_ids):
    model = toy.toy_model("llama", attention_dropout=0.1)
    with use_bias(model, NoBias()):
        model(token_ids)
        model.train()
        with pytest.raises(MessageError, match=r"dropout of 0\.1"):
            model(token_ids)


def test_two_models_with_one_configuration_object(model, token_ids):
    other = type(model)(model.config).eval()
    with use_bias(model, NoBias()):
        model(token_ids)
        with pytest.raises(MessageError, match=r"copy\.deepcopy"):
            other(token_ids)
        with pytest.raises(ValueError, match="has a bias already"):
            use_bias(other, NoBias())
    other(token_ids)
    third = type(model)(copy.deepcopy(model.config)).eval()
    with use_bias(model, NoBias()):
        third(token_ids)
        assert third.config._attn_implementation == "sdpa"


def test_a_second_bias(model):
    with use_bias(model, NoBias()), pytest.raises(ValueError, match="has a bias already"):
        use_bias(model, NoBias())
    use_bias(model, NoBias()).remove()


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (Alibi(SIGMAS[:8]), "for 8 heads, the model has 9"),
        (draws(heads=4), "for 4 heads, the model has 9"),
        ([NoBias(), NoBias()], "2 given, must be one for all or 3"),
        ("alibi", r"bias = 'alibi': must be a bias of plsh_cli.attention, .* or BiasSpec\(\"alibi\"\)"),
        ("rotary", "bias = 'rotary': .* or a BiasSpec"),
        ([None] * 3, "must be a bias of plsh_cli.attention"),
    ],
)
def test_biases_that_do_not_fit(model, bias, message):
    with pytest.raises(ValueError, match=message):
        use_bias(model, bias)
    with use_bias(model, Plsh(draws().parts.head(0))) as handle, pytest.raises(ValueError, match=message):
        handle.set(bias)


@pytest.mark.parametrize(("option", "value"), [("rope", "half"), ("backend", "flash")])
def test_unknown_choices(model, option, value):
    with pytest.raises(ValueError, match=f"{option} = '{value}'"):
        use_bias(model, NoBias(), **{option: value})


def test_positions_that_are_not_rope_cannot_be_dropped(token_ids):
    model = toy.toy_model("gpt2")
    before = model(token_ids).logits
    with pytest.raises(MessageError, match="no RoPE that could be dropped"):
        use_bias(model, NoBias(), rope="drop")
    assert torch.equal(model(token_ids).logits, before)
