"""Pretrained models for experiments: from the model section of a configuration to a loaded model.

A name of the manifest, a folder, or a hub id: `shape_of` and `to_fetch` say what a plan needs without network or torch,
`open_model` fetches and loads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import assets
from plsh_cli.config.schema.sections import Model
from plsh_cli.errors import MessageError, UserError
from plsh_cli.models.shape import Shape, shape_of_config, shape_of_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Opened", "Shape", "open_model", "shape_of", "to_fetch"]

_A_PATH = "must be a folder with a model (config.json, weights, tokenizer) or a hub id such as Qwen/Qwen3-0.6B"


@dataclass(frozen=True)
class Opened:
    """A loaded model on its device. `details` go into result.json: what it is, where it comes from, its sizes.

    details: name; origin (hub, package index or folder); source (in words); revision and commit (hub); source_sha256
    (package index); quantisation (null: as published); licence; weights_sha256 (of several files: of their checksums,
    in the files' order); dtype; layers, query_heads, key_value_heads, head_dim, positions, vocab, parameters.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    details: dict[str, Any]

    @property
    def shape(self) -> Shape:
        """The model's sizes, all known."""
        names = {"heads": "query_heads", "kv_heads": "key_value_heads"}
        return Shape(**{field: self.details[names.get(field, field)] for field in Shape.__dataclass_fields__})

    @property
    def label(self) -> str:
        """One line that tells it from other copies: name, origin, and how its weights were kept."""
        kept = self.details["quantisation"] or self.details["dtype"]
        commit = f" {self.details['commit'][:12]}" if self.details["commit"] else ""
        return f"{self.details['name']} ({self.details['origin']}{commit}, {kept})"


@dataclass(frozen=True)
class _Place:
    """Where a model is: a folder, an asset of the manifest, or a repository of the hub.

    `beside` ends the message where it cannot be fetched.
    """

    folder: Path | None = None
    asset: str | None = None
    repo: str | None = None
    revision: str | None = None
    beside: str = ""

    def ready(self) -> Path | None:
        """Its folder on this machine, if it is there."""
        if self.folder is not None:
            return self.folder
        return assets.cached(self.asset) if self.asset else assets.cached_repo(str(self.repo), self.revision)


def shape_of(model: Model) -> Shape:
    """What is known of the model's sizes without network and torch.

    Of a repository of the hub that is not fetched yet all is None, unless the hub's own cache has its config.json.
    Raises UserError for an unknown name and for a path that is neither a folder with a model nor a hub id.
    """
    place = _place(model)
    if place.asset is not None:
        return Shape(**assets.find(place.asset).shape)
    folder = place.ready()
    if folder is None:
        return Shape()
    try:
        return shape_of_folder(folder)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        raise UserError("model.path", str(model.path), _A_PATH) from None


def to_fetch(model: Model) -> str | None:
    """What opening the model would fetch, in words; None where everything is on this machine."""
    place = _place(model)
    if place.ready() is not None:
        return None
    if place.asset is None:
        return f"{place.repo} from the hub, at {place.revision or 'main'}"
    sources = assets.find(place.asset).sources
    ways = [
        f"{source.words} ({(source.download_bytes or 0) / 1e6:,.0f} MB{', gated' * source.gated})" for source in sources
    ]
    return f"{place.asset}: {', else '.join(ways)}"


def open_model(model: Model, device: str, say: Callable[[str], None]) -> Opened:
    """Fetch what is missing and load the model onto `device` (a torch device) with its tokenizer, in evaluation mode.

    Raises UserError as `shape_of` does; MessageError where it cannot be fetched, holds no decoder with all its weights,
    or has a tokenizer that does not belong to it.
    """
    from plsh_cli.models.load import load

    place = _place(model)
    folder = _fetched(place, say)
    loaded, tokenizer = load(folder, model.dtype, say)
    loaded.to(device)
    return Opened(loaded, tokenizer, _details(model, folder, loaded))


def _place(model: Model) -> _Place:
    if model.path is None:
        asset = assets.find(model.name, "model", "model.name")
        if model.revision is None:
            return _Place(asset=asset.name)
        repo = next((source.repo for source in asset.sources if isinstance(source, assets.Hub)), None)
        if repo is None:
            raise UserError(
                "model.revision", model.revision, f"belongs to models of the hub; {asset.name} is not there"
            )
        return _Place(repo=repo, revision=model.revision)
    folder = Path(model.path).expanduser().absolute()
    if folder.is_dir():
        if model.revision is not None:
            raise UserError("model.revision", model.revision, f"belongs to models of the hub; {model.path} is a folder")
        return _Place(folder=folder)
    if folder.exists() or not assets.is_hub_id(model.path):
        raise UserError("model.path", model.path, _A_PATH)
    return _Place(repo=model.path, revision=model.revision, beside=f" (there is no folder {model.path} here either)")


def _fetched(place: _Place, say: Callable[[str], None]) -> Path:
    if place.folder is not None:
        return place.folder
    if place.asset is not None:
        return assets.fetch(place.asset, say)
    try:
        return assets.fetch_repo(str(place.repo), place.revision, say)
    except MessageError as error:
        raise MessageError(f"{error}{place.beside}") from error


def _details(model: Model, folder: Path, loaded: PreTrainedModel) -> dict[str, Any]:
    record = assets.describe(folder) or {}
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    sizes = asdict(shape_of_config(loaded.config.to_dict(), parameters))
    return {
        "name": record.get("title", folder.name),
        "origin": record.get("origin", "folder"),
        "source": record.get("source", str(folder)),
        "revision": record.get("revision"),
        "commit": record.get("commit"),
        "source_sha256": record.get("source_sha256"),
        "quantisation": record.get("quantisation"),
        "licence": record.get("licence"),
        "weights_sha256": _weights_sha256(record.get("files", {})),
        "dtype": model.dtype,
        "query_heads": sizes.pop("heads"),
        "key_value_heads": sizes.pop("kv_heads"),
        **sizes,
    }


def _weights_sha256(files: dict[str, dict[str, Any]]) -> str | None:
    found = [item["sha256"] for name, item in sorted(files.items()) if name.endswith((".safetensors", ".bin"))]
    if len(found) < 2:
        return found[0] if found else None
    return hashlib.sha256("".join(found).encode()).hexdigest()
