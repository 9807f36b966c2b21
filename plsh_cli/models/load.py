"""Loading a causal language model and its tokenizer from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from plsh_cli.errors import MessageError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def load(folder: Path, dtype: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in evaluation mode and its tokenizer, from files alone: no network, no code from the folder.

    `dtype` is the name of a torch type ("float32", "bfloat16", "float16"). Raises MessageError where the folder holds
    no decoder with a language model head that transformers can load, no or not all of its weights, no tokenizer, or a
    tokenizer with ids that have no embedding.
    """
    _require_decoder(folder)
    model = _model(folder, dtype)
    tokenizer = _tokenizer(folder)
    embeddings = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > embeddings:
        raise MessageError(
            f"{folder}: the tokenizer has {len(tokenizer)} ids, the model only {embeddings} embeddings; "
            f"they do not belong together"
        )
    return model.eval(), tokenizer


def _require_decoder(folder: Path) -> None:
    """MessageError unless config.json describes a decoder and there is a file of weights."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise MessageError(f"{folder} holds no model: there is no config.json in it")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MessageError(f"{folder}: its config.json cannot be used: {_first_line(error)}") from error
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


def _model(folder: Path, dtype: str) -> PreTrainedModel:
    import torch
    from safetensors import SafetensorError
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
    # RuntimeError: weights of other shapes than config.json says, or a .bin file that is no file of torch's.
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise MessageError(f"{folder} cannot be loaded as a causal language model: {_first_line(error)}") from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise MessageError(
            f"{folder}: {len(missing)} of the model's weights are not in its files, such as {missing[0]}; "
            f"with random numbers in their place nothing could be measured"
        )
    return model


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception for a file that it cannot read
        raise MessageError(f"{folder} holds no tokenizer that can be loaded: {_first_line(error)}") from error


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


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]
