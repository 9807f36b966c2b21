"""What can be known of a model from its files alone, without loading it or torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; None where they are not known before the model is loaded.

    heads: query heads; positions: the longest input in tokens (None also where any length can be read); vocab: ids
    with an embedding; parameters: numbers in the weights, tied ones once.
    """

    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    positions: int | None = None
    vocab: int | None = None
    parameters: int | None = None


def shape_of_folder(folder: Path) -> Shape:
    """The sizes that config.json and the headers of the safetensors files give.

    Raises OSError or ValueError where config.json cannot be read as a model's configuration.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError("config.json holds no mapping")
    return shape_of_config(config, _parameters(folder))


def shape_of_config(config: dict[str, Any], parameters: int | None = None) -> Shape:
    """The sizes in a configuration of transformers, whose keys differ from model to model."""
    text = config.get("text_config") or config

    def first(*keys: str) -> int | None:
        return next((text[key] for key in keys if isinstance(text.get(key), int)), None)

    heads, width = first("num_attention_heads", "n_head", "n_heads"), first("hidden_size", "n_embd", "d_model")
    head_dim = first("head_dim") or (width // heads if width and heads else None)
    return Shape(
        layers=first("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        heads=heads,
        kv_heads=_kv_heads(text, first("num_key_value_heads") or heads),
        head_dim=head_dim,
        positions=_positions(text, first("max_position_embeddings", "n_positions", "max_seq_len")),
        vocab=first("vocab_size"),
        parameters=parameters,
    )


def _kv_heads(text: dict[str, Any], otherwise: int | None) -> int | None:
    if text.get("model_type") != "falcon":
        return otherwise
    if text.get("new_decoder_architecture"):
        return text.get("num_kv_heads") or otherwise
    return 1 if text.get("multi_query", True) else otherwise


def _positions(text: dict[str, Any], otherwise: int | None) -> int | None:
    """BLOOM and Falcon with ALiBi form their bias for any length; MPT for as many tokens as it was trained on."""
    any_length = text.get("model_type") == "bloom" or (text.get("model_type") == "falcon" and text.get("alibi"))
    return None if any_length else otherwise


def _parameters(folder: Path) -> int | None:
    files = sorted(folder.glob("model*.safetensors"))
    try:
        return sum(map(_numbers_in, files)) if files else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _numbers_in(file: Path) -> int:
    """How many numbers a safetensors file holds: its header is a length of 8 bytes and then JSON."""
    return sum(prod(item["shape"]) for name, item in header_of(file).items() if name != "__metadata__")


def header_of(file: Path) -> dict[str, Any]:
    """The header of a safetensors file: of every tensor its type, shape and place. Raises OSError or ValueError."""
    with open(file, "rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        # What is no safetensors file may begin with any number: no more is read than there is.
        if length > file.stat().st_size - 8:
            raise ValueError("its header is longer than the file")
        header = json.loads(handle.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no mapping")
    return header


def weights_fault(file: Path) -> str | None:
    """Why a file of weights cannot be one; None where its beginning is in order, or its format has no header."""
    try:
        with open(file, "rb") as handle:
            if handle.read(len(_LFS_POINTER)) == _LFS_POINTER:
                return "a git-lfs pointer, fetch the file with git lfs pull"
        if file.suffix == ".safetensors":
            header_of(file)
    except (ValueError, RecursionError):
        return "no safetensors file, its header cannot be read"
    except OSError as error:
        return f"not readable ({error.strerror or error})"
    return None
