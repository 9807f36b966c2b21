"""Loading a causal language model and its tokenizer from a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from plsh_cli.errors import MessageError
from plsh_cli.models.shape import weights_fault

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("*token*", "*tekken*", "vocab*", "merges.txt", "*.model", "*.tiktoken")
#: Buffers that older versions of transformers saved; today's models compute them.
_COMPUTED = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias)$|(^|\.)inv_freq$")


def load(
    folder: Path, dtype: str, say: Callable[[str], None] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in evaluation mode and its tokenizer, from files alone: no network, no code from the folder.

    `dtype` is the name of a torch type ("float32", "bfloat16", "float16"); `say` is told of weights outside the
    decoder that are left unused, such as an image tower. Raises MessageError where the folder holds no decoder with a
    language model head that transformers can load, no or not all of its weights, weights of layers that config.json
    does not have, no tokenizer, or a tokenizer with ids that have no embedding.
    """
    model = load_model(folder, dtype, say)
    return model, load_tokenizer(folder, model)


def load_model(folder: Path, dtype: str, say: Callable[[str], None] | None = None) -> PreTrainedModel:
    """The model alone, in evaluation mode; arguments and errors are those of `load`."""
    _require_decoder(folder)
    return _model(folder, dtype, say).eval()


def load_tokenizer(folder: Path, model: PreTrainedModel | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder; MessageError where there is none, or it has ids that the model has no embedding of."""
    tokenizer = _tokenizer(folder)
    if model is None:
        return tokenizer
    embeddings = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > embeddings:
        raise MessageError(
            f"{folder}: the tokenizer has {len(tokenizer)} ids, the model only {embeddings} embeddings; "
            f"they do not belong together"
        )
    return tokenizer


def _require_decoder(folder: Path) -> None:
    """MessageError unless config.json describes a decoder and there is a file of weights."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise MessageError(f"{folder} holds no model: there is no config.json in it")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # wrong numbers end in whatever the arithmetic of the configuration raises
        raise MessageError(f"{folder}: its config.json cannot be used: {_reason(error)}") from error
    problem = _no_decoder(config)
    if problem:
        raise MessageError(f"{folder} holds no causal language model: {problem}")
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise MessageError(
            f"{folder} holds no weights: there is neither a safetensors file nor pytorch_model.bin in it"
        )


def _no_decoder(config: PreTrainedConfig) -> str | None:
    """Why a configuration is not that of a decoder with a language model head; None if it is."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return f"{kind} has an encoder beside its decoder"
    # The same classes serve as encoders and, rarely, as decoders.
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        return f"{kind} is an encoder, whose tokens see what comes after them"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return f"transformers has no causal language model of type {kind}"
    return None


def _model(folder: Path, dtype: str, say: Callable[[str], None] | None) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with quiet():
            model, found = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # of transformers, torch, safetensors, pickle, or the arithmetic of the sizes
        raise MessageError(f"{folder} cannot be loaded as a causal language model: {_why(folder, error)}") from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise MessageError(
            f"{folder}: {len(missing)} of the model's weights are not in its files, such as {missing[0]}; "
            f"with random numbers in their place nothing could be measured"
        )
    _require_all_used(folder, model, set(found["unexpected_keys"]), say)
    return model


def _why(folder: Path, error: Exception) -> str:
    """The reason of a failed load: a file that cannot be weights, else what the error says."""
    from safetensors import SafetensorError

    for file in sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern) if file.is_file()):
        fault = weights_fault(file)
        if fault:
            return f"{file.name} is {fault}"
    # torch's text advises to load the file in a way that runs code from it.
    if isinstance(error, UnpicklingError) or "weights_only" in str(error):
        return "a pytorch_model.bin in it is damaged, or no file of weights alone (what else it holds is not run)"
    # What transformers checks itself it explains; the rest comes from sizes that make no sense.
    explained = isinstance(error, OSError | ValueError | ImportError | RuntimeError | SafetensorError)
    return _reason(error) if explained else f"the numbers in its config.json cannot be used: {_reason(error)}"


def _require_all_used(
    folder: Path, model: PreTrainedModel, unused: set[str], say: Callable[[str], None] | None
) -> None:
    """MessageError where weights of the decoder's layers are unused: what is loaded is not the model of the files."""
    from torch.nn import ModuleList

    lists = {name for name, module in model.named_modules() if isinstance(module, ModuleList)}

    def in_layers(key: str) -> bool:
        # Files of a model without its head leave the prefix out.
        return any(full.startswith(f"{name}.") for name in lists for full in (key, f"{model.base_model_prefix}.{key}"))

    unused = {key for key in unused if not _COMPUTED.search(key) and not _is_tied_head(model, key)}
    inside = sorted(filter(in_layers, unused))
    if inside:
        raise MessageError(
            f"{folder}: {len(inside)} tensors of its files would be unused, such as {inside[0]}; its config.json "
            f"describes another model, perhaps one of fewer layers"
        )
    if unused and say is not None:
        say(f"{folder}: {len(unused)} tensors of its files are not part of the decoder, such as {min(unused)}")


def _is_tied_head(model: PreTrainedModel, key: str) -> bool:
    return key == "lm_head.weight" and bool(getattr(model.config, "tie_word_embeddings", False))


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception for a file that it cannot read
        there = any(next(folder.glob(pattern), None) for pattern in _TOKENIZERS)
        reason = _reason(error) if there else "there are no tokenizer files in the folder"
        raise MessageError(f"{folder} holds no tokenizer that can be loaded: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' own progress bars and load reports from the terminal."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _reason(error: Exception) -> str:
    """The first line of an error, with the next one where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    # Of these the text alone says nothing: "integer modulo by zero", "'rope_type'".
    bare = isinstance(error, ArithmeticError | LookupError | AttributeError)
    return (f"{type(error).__name__}: {text}" if bare else text)[:300]
