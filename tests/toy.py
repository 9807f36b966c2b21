"""The smallest sensible runs, shared by tests."""

from __future__ import annotations

#: Overrides of plsh approx: one scale, two s, two seeds.
TOY = ["approx.n=64", "bias.sigma=[2.0]", "approx.num_samples=[2,4]", "approx.seeds=2", "approx.bootstrap=100"]

#: Sizes of the toy models: three layers, nine query heads over three key heads, head dim 8.
VOCABULARY, HEADS, GROUPS, LAYERS, DIM, POSITIONS = 97, 9, 3, 3, 8, 128

#: Models whose attention goes through transformers' interface, and those that have code of their own.
THROUGH_INTERFACE = ("llama", "qwen3", "mistral", "gemma3", "phi", "smollm3", "llama4")
OWN_CODE = ("bloom", "mpt", "falcon", "falcon_mqa", "falcon_new")

_GROUPED = {
    "vocab_size": VOCABULARY,
    "hidden_size": HEADS * DIM,
    "intermediate_size": 53,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": DIM,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_MOE = {"num_local_experts": 2, "num_experts_per_tok": 1}
# Powers of two as slopes: Falcon rounds its bias to bfloat16.
_FALCON = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
_TOYS = {
    "llama": ("LlamaForCausalLM", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", _GROUPED),
    "mistral": ("MistralForCausalLM", _GROUPED | {"sliding_window": 100}),
    "gemma2": ("Gemma2ForCausalLM", _GROUPED),
    "gemma3": ("Gemma3ForCausalLM", _GROUPED | {"layer_types": _MIXED, "sliding_window": 100}),
    "phi": ("PhiForCausalLM", {**_GROUPED, "partial_rotary_factor": 0.5}),
    "smollm3": ("SmolLM3ForCausalLM", _GROUPED | {"no_rope_layers": [1, 0, 1]}),
    "llama4": (
        "Llama4ForCausalLM",
        _GROUPED | _MOE | {"intermediate_size_mlp": 53, "attention_chunk_size": 16, "no_rope_layers": [1, 0, 1]},
    ),
    "gpt_oss": ("GptOssForCausalLM", _GROUPED | _MOE | {"layer_types": _MIXED}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": VOCABULARY, "n_embd": 72, "n_layer": LAYERS, "n_head": HEADS}),
    "bert": (
        "BertForMaskedLM",
        {key: _GROUPED[key] for key in _GROUPED if key not in ("head_dim", "num_key_value_heads")},
    ),
    "bloom": ("BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 72, "n_layer": LAYERS, "n_head": HEADS}),
    "mpt": (
        "MptForCausalLM",
        {"vocab_size": VOCABULARY, "d_model": 72, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": POSITIONS},
    ),
    "falcon": ("FalconForCausalLM", _FALCON | {"alibi": True, "multi_query": False}),
    "falcon_mqa": ("FalconForCausalLM", _FALCON | {"alibi": True, "multi_query": True}),
    "falcon_new": ("FalconForCausalLM", _FALCON | {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_rope": (
        "FalconForCausalLM",
        _FALCON | {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
}


def toy_model(name, implementation=None, **changes):
    """A model of the family with random weights of standard deviation 0.2, in evaluation mode.

    implementation: of its attention, None for the one that transformers chooses.
    """
    import torch
    import transformers

    architecture, values = _TOYS[name]
    kind = getattr(transformers, architecture)
    config = kind.config_class(**{"initializer_range": 0.2, **values, **changes})
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return kind(config).eval()
