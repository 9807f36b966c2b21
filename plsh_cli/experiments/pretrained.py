"""Pretrained models for experiments: from the model section of a configuration to a loaded model.

A name of the manifest, a folder, a hub id, or a run of this program: `shape_of` and `to_fetch` say what a plan needs
without network or torch, `open_model` fetches and loads. Runs are looked for by name below the folder `out`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import assets
from plsh_cli.config.schema.sections import Model, OpenedModel
from plsh_cli.errors import MessageError, UserError
from plsh_cli.models import restore
from plsh_cli.models.bases import base_folder, base_here
from plsh_cli.models.saved import FIELD, NAME
from plsh_cli.models.shape import Shape, shape_of_config, shape_of_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plsh_cli.models.adapter import Base

__all__ = ["Opened", "Shape", "base_of", "fetched_folder", "folder_here", "open_model", "shape_of", "to_fetch"]

_A_PATH = (
    "must be a folder with a model (config.json, weights, tokenizer), a finished run of plsh train or finetune, "
    "or a hub id such as Qwen/Qwen3-0.6B"
)
#: How the user says where an adapter's base is.
BASE = "model.base=FOLDER"


@dataclass(frozen=True)
class Opened:
    """A loaded model on its device. `details` go into result.json: what it is, where it comes from, its sizes.

    details: name; origin (hub, package index, folder or run); source (in words); revision and commit (hub);
    source_sha256 (package index); quantisation (null: as published); licence; weights_sha256 (of several files: of
    their checksums, in the files' order); dtype; bias (name of the one that it was saved under; null: its own
    attention); base (of an adapter: what it was made for; null: a whole model), whose revision .. weights_sha256 these
    are; layers, query_heads, key_value_heads, head_dim, positions, vocab, parameters.
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
        made = f", adapter on {self.details['base']['label']}" if self.details["base"] else ""
        under = f", under {self.details['bias']}" if self.details["bias"] else ""
        return f"{self.details['name']} ({self.details['origin']}{commit}{made}{under}, {kept})"


@dataclass(frozen=True)
class _Place:
    """Where a model is: a folder, an asset of the manifest, a repository of the hub, or an adapter.

    saved: of a run, whose folder is that of its model, or of an adapter, which has none. `beside` ends the message
    where it cannot be fetched.
    """

    folder: Path | None = None
    asset: str | None = None
    repo: str | None = None
    revision: str | None = None
    beside: str = ""
    saved: restore.Saved | None = None

    def ready(self) -> Path | None:
        """Its folder on this machine, if it is there; MessageError for an adapter, which is no whole model."""
        if self.folder is not None:
            return self.folder
        self.check_whole()
        return assets.cached(self.asset) if self.asset else assets.cached_repo(str(self.repo), self.revision)

    def check_whole(self) -> None:
        """Raise MessageError where it is an adapter, from which nothing goes on as from a model."""
        if self.folder is None and self.saved is not None:
            raise MessageError(
                f"{self.saved.folder} holds an adapter, not a whole model: write one with "
                f"plsh export {self.saved.run or self.saved.folder} --merge --to FOLDER and give model.path=FOLDER"
            )


def shape_of(model: Model, out: str = "runs") -> Shape:
    """What is known of the model's sizes without network and torch.

    Of a repository of the hub that is not fetched yet all is None, unless the hub's own cache has its config.json.
    Raises UserError for an unknown name and for a path that is neither a folder with a model nor a hub id nor a run;
    MessageError for a run without a model, and for an adapter's base that is not there or another one.
    """
    place = _place(model, out)
    if place.saved is not None:
        return place.saved.shape(_base(model), BASE)
    if place.asset is not None:
        return Shape(**assets.find(place.asset).shape)
    folder = place.ready()
    if folder is None:
        return Shape()
    try:
        return shape_of_folder(folder)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        raise UserError("model.path", str(model.path), _A_PATH) from None


def to_fetch(model: Model, out: str = "runs") -> str | None:
    """What opening the model would fetch, in words; None where everything is on this machine."""
    place = _place(model, out)
    if place.saved is not None and place.saved.record is not None:
        base = place.saved.record.base
        return None if base_here(base, _base(model), BASE) else f"{base.label}, the base of {place.saved.name}"
    if place.ready() is not None:
        return None
    if place.asset is None:
        return f"{place.repo} from the hub, at {place.revision or 'main'}"
    sources = assets.find(place.asset).sources
    ways = [
        f"{source.words} ({(source.download_bytes or 0) / 1e6:,.0f} MB{', gated' * source.gated})" for source in sources
    ]
    return f"{place.asset}: {', else '.join(ways)}"


def folder_here(model: Model) -> Path | None:
    """The folder of the model where it is on this machine already, None where it is still to be fetched."""
    return _place(model).ready()


def fetched_folder(model: Model, say: Callable[[str], None]) -> Path:
    """The folder of the model, fetched where it is not there. Raises as `open_model` does for what cannot be had."""
    return _fetched(_place(model), say)


def base_of(model: Model, folder: Path) -> Base:
    """What an adapter says of the model in `folder` that it is for; MessageError for weights that cannot be read."""
    from plsh_cli.models.adapter import Base
    from plsh_cli.models.fingerprint import fingerprint

    path = None if model.path is None else str(folder) if _place(model).folder else model.path
    commit = (assets.describe(folder) or {}).get("commit")
    return Base(model.name if path is None else None, path, model.revision, commit, fingerprint(folder))


def open_model(model: Model, device: str, say: Callable[[str], None], out: str = "runs") -> Opened:
    """Fetch what is missing and load the model onto `device` (a torch device) with its tokenizer, in evaluation mode.

    A run's comes under the bias that it was trained under. Raises UserError as `shape_of` does; MessageError where it
    cannot be fetched, holds no decoder with all its weights, or has a tokenizer that does not belong to it.
    """
    from plsh_cli.models.loading import load

    place = _place(model, out)
    if place.saved is not None:
        return open_saved(place.saved, model.dtype, _base(model), device, say)
    if _base(model) is not None:
        raise UserError("model.base", _base(model), f"belongs to adapters; {model.path or model.name} is a whole model")
    folder = _fetched(place, say)
    loaded, tokenizer = load(folder, model.dtype, say)
    loaded.to(device)
    return Opened(loaded, tokenizer, _details(model.dtype, folder, loaded))


def open_saved(
    saved: restore.Saved, dtype: str | None, base: str | None, device: str, say: Callable[[str], None]
) -> Opened:
    """The model of a run, or an adapter on its base, as `open_model` gives it; dtype None: as it was trained."""
    loaded, tokenizer = restore.restore(saved, dtype, base=base, say=say, option=BASE)
    loaded.to(device)
    record = saved.record
    folder = saved.folder if record is None else base_folder(record.base, base, say, BASE)
    details = _details(dtype or saved.dtype, folder, loaded) | {
        "name": saved.name,
        "origin": "run" if saved.run else "folder",
        "source": str(saved.run or saved.folder),
        "base": {**asdict(record.base), "label": record.base.label} if record else None,
    }
    return Opened(loaded, tokenizer, details)


def _base(model: Model) -> str | None:
    return model.base if isinstance(model, OpenedModel) else None


def _place(model: Model, out: str = "runs") -> _Place:
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
    folder = Path(os.path.expanduser(model.path)).absolute()
    is_saved = restore.is_saved(model.path, out)
    if is_saved or folder.is_dir():
        if model.revision is not None:
            raise UserError("model.revision", model.revision, f"belongs to models of the hub; {model.path} is a folder")
        saved = restore.find(model.path, out) if is_saved else None
        return (
            _Place(folder=folder)
            if saved is None
            else _Place(saved.folder if saved.record is None else None, saved=saved)
        )
    if folder.exists() or not assets.is_hub_id(model.path):
        raise UserError("model.path", model.path, _A_PATH)
    return _Place(repo=model.path, revision=model.revision, beside=f" (there is no folder {model.path} here either)")


def _fetched(place: _Place, say: Callable[[str], None]) -> Path:
    if place.folder is not None:
        return place.folder
    place.check_whole()
    if place.asset is not None:
        return assets.fetch(place.asset, say)
    try:
        return assets.fetch_repo(str(place.repo), place.revision, say)
    except MessageError as error:
        raise MessageError(f"{error}{place.beside}") from error


def _details(dtype: str, folder: Path, loaded: PreTrainedModel) -> dict[str, Any]:
    config = loaded.config.get_text_config()
    bias = getattr(config, FIELD, None) if config._attn_implementation == NAME else None
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
        "dtype": dtype,
        "bias": bias["name"] if bias else None,
        "base": None,
        "query_heads": sizes.pop("heads"),
        "key_value_heads": sizes.pop("kv_heads"),
        **sizes,
    }


def _weights_sha256(files: dict[str, dict[str, Any]]) -> str | None:
    found = [item["sha256"] for name, item in sorted(files.items()) if name.endswith((".safetensors", ".bin"))]
    if len(found) < 2:
        return found[0] if found else None
    return hashlib.sha256("".join(found).encode()).hexdigest()
