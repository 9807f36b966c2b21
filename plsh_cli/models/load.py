"""Loading a causal language model and its tokenizer from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from plsh_cli.errors import MessageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load(folder: Path, dtype: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in evaluation mode and its tokenizer, from files alone: no network, no code from the folder.

    `dtype` is the name of a torch type ("float32", "bfloat16", "float16"). Raises MessageError where the folder holds
    no model or tokenizer that transformers can load, and where the tokenizer has ids without an embedding.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise MessageError(f"{folder} holds no model: there is no config.json in it")
    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise MessageError(
            f"{folder} cannot be loaded as a causal language model with its tokenizer: {reason}"
        ) from error
    embeddings = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > embeddings:
        raise MessageError(
            f"{folder}: the tokenizer has {len(tokenizer)} ids, the model only {embeddings} embeddings; "
            f"they do not belong together"
        )
    return model.eval(), tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' own progress bars from the terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
