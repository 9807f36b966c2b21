"""What `plsh attn-error` measures on: a model, a text, and Q, K and V of the chosen layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import assets
from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plsh_cli.data.corpus import Document
    from plsh_cli.models.capture import Captured


@dataclass(frozen=True)
class Shape:
    """What is known of the model before it is loaded; None where only the model itself can say."""

    layers: int | None
    heads: int | None
    to_fetch: list[str]


@dataclass(frozen=True)
class Inputs:
    """`captured` has one entry per layer in `layers`; `model` and `text` name what their details describe."""

    layers: list[int]
    captured: list[Captured]
    num_heads: int
    perplexity: float
    device: str
    model: str
    model_details: dict[str, object]
    text: str
    text_details: dict[str, object]


def shape_before_loading(cfg: AttnErrorCommand) -> Shape:
    """Layers and query heads from the manifest or the folder's config.json, and which assets are still to be fetched.

    Raises UserError for unknown names, a folder without config.json, a document that is not there, and more tokens
    than the model takes.
    """
    corpus = assets.find(cfg.data.name, "corpus", "data.name")
    _document_index(cfg, corpus.shape["documents"])
    wanted = [corpus.name]
    if cfg.model.path is None:
        known: dict[str, Any] = assets.find(cfg.model.name, "model", "model.name").shape
        wanted.insert(0, cfg.model.name)
    else:
        known = _shape_of_folder(cfg.model.path)
    _check_positions(cfg, known.get("positions"))
    missing = [name for name in wanted if assets.cached(name) is None]
    return Shape(known.get("layers"), known.get("heads"), missing)


def chosen_layers(cfg: AttnErrorCommand, count: int) -> list[int]:
    """The layers asked for, else the first, the middle and the last of `count`; UserError for one that is not there."""
    asked = cfg.attn_error.layers
    if asked is None:
        return sorted({0, count // 2, count - 1})
    outside = [layer for layer in asked if layer >= count]
    if outside:
        raise UserError(
            "attn_error.layers", outside[0], f"must lie in 0 .. {count - 1}: the model has {count} layers", "--layers"
        )
    return sorted(asked)


def chosen_device(name: str) -> str:
    """The torch device: auto is the first CUDA device where there is one, else the CPU."""
    if name == "cpu":
        return "cpu"
    if name == "mps":
        raise UserError(
            "device", name, "has no double precision, in which errors are measured; use cpu or cuda", "--device"
        )
    import torch

    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda:0" if count else "cpu"
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        raise UserError("device", name, f"{count} CUDA devices were found; use cpu", "--device")
    return f"cuda:{index}"


def prepare(cfg: AttnErrorCommand, say: Callable[[str], None]) -> Inputs:
    """Fetch what is missing, load the model, read the text, take Q, K and V from one forward pass.

    Raises UserError for a text shorter than asked for, layers that are not there and more tokens than the model takes;
    MessageError where model or corpus cannot be had or loaded.
    """
    from plsh_cli.models.capture import capture_qkv
    from plsh_cli.models.load import load
    from plsh_cli.models.perplexity import perplexity

    index, document = _document(cfg, say)
    folder = assets.fetch(cfg.model.name, say) if cfg.model.path is None else _folder(cfg.model.path)
    model, tokenizer = load(folder, cfg.model.dtype)
    layers = chosen_layers(cfg, model.config.get_text_config().num_hidden_layers)
    device = chosen_device(cfg.device)
    ids = _token_ids(cfg, model, tokenizer, document).to(device)
    model.to(device)
    found = perplexity(model, ids)
    captured = capture_qkv(model, ids, layers)
    details = _model_details(cfg, folder, model)
    inputs = Inputs(
        layers=layers,
        captured=[captured[layer] for layer in layers],
        num_heads=model.config.get_text_config().num_attention_heads,
        perplexity=found,
        device=device,
        model=f"{details['name']} ({details['quantisation'] or details['dtype']})",
        model_details=details,
        text=f"{document.name} ({document.president}, {document.date}), first {cfg.attn_error.tokens:,} tokens",
        text_details=_text_details(cfg, document, index),
    )
    say(f"{inputs.model} on {inputs.text}: perplexity {found:.2f}")
    return inputs


def _document(cfg: AttnErrorCommand, say: Callable[[str], None]) -> tuple[int, Document]:
    from plsh_cli.data.corpus import read_documents

    corpus = assets.find(cfg.data.name, "corpus", "data.name")
    documents = read_documents(assets.fetch(corpus.name, say) / corpus.file)
    index = _document_index(cfg, len(documents))
    return index, documents[index]


def _token_ids(
    cfg: AttnErrorCommand, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, document: Document
) -> torch.Tensor:
    from plsh_cli.data.tokens import first_tokens

    wanted = cfg.attn_error.tokens
    _check_positions(cfg, getattr(model.config.get_text_config(), "max_position_embeddings", None))
    ids = first_tokens(tokenizer, document.text, wanted)
    if ids.shape[1] < wanted:
        allowed = (
            f"document {document.name} has only {ids.shape[1]} tokens; use fewer, or data.document=... for another"
        )
        raise UserError("attn_error.tokens", wanted, allowed, "--tokens")
    return ids


def _document_index(cfg: AttnErrorCommand, count: int) -> int:
    index = cfg.data.document
    if not -count <= index < count:
        raise UserError(
            "data.document", index, f"must lie in {-count} .. {count - 1}: {cfg.data.name} has {count} documents"
        )
    return index % count


def _check_positions(cfg: AttnErrorCommand, positions: int | None) -> None:
    if positions is not None and cfg.attn_error.tokens > positions:
        raise UserError(
            "attn_error.tokens",
            cfg.attn_error.tokens,
            f"must be at most {positions}, the longest input of the model",
            "--tokens",
        )


def _folder(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _shape_of_folder(path: str) -> dict[str, Any]:
    try:
        config = json.loads((_folder(path) / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
    except (OSError, ValueError, AttributeError):
        raise UserError(
            "model.path", path, "must be a folder with a model: config.json, safetensors and tokenizer"
        ) from None
    return {
        "layers": config.get("num_hidden_layers"),
        "heads": config.get("num_attention_heads"),
        "positions": config.get("max_position_embeddings"),
    }


def _model_details(cfg: AttnErrorCommand, folder: Path, model: PreTrainedModel) -> dict[str, object]:
    record = assets.describe(folder) or {}
    config = model.config.get_text_config()
    weights = record.get("files", {}).get("model.safetensors", {})
    return {
        "name": record.get("title", folder.name),
        "source": record.get("source", str(folder)),
        "source_sha256": record.get("source_sha256"),
        "quantisation": record.get("quantisation"),
        "licence": record.get("licence"),
        "weights_sha256": weights.get("sha256"),
        "dtype": cfg.model.dtype,
        "layers": config.num_hidden_layers,
        "query_heads": config.num_attention_heads,
        "key_value_heads": getattr(config, "num_key_value_heads", config.num_attention_heads),
    }


def _text_details(cfg: AttnErrorCommand, document: Document, index: int) -> dict[str, object]:
    corpus = assets.find(cfg.data.name)
    return {
        "corpus": corpus.title,
        "source": corpus.source,
        "document": document.name,
        "index": index,
        "date": document.date,
        "president": document.president,
        "form": document.form,
        "tokens": cfg.attn_error.tokens,
    }
