"""The cache on this machine: folders that are complete or absent, each with a record of what it must hold."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plsh_cli.assets.manifest import Source

RECORD = "asset.json"
#: Raise it when what a prepared folder holds changes; older folders are then prepared anew.
_LAYOUT = 1
_CHUNK_BYTES = 1 << 22
#: Larger files are read through only where their time of change is not the recorded one: 14 GB take 10 s.
_ALWAYS_READ_BYTES = 1 << 30

Say = Callable[[str], None]


def cache_folder() -> Path:
    """Where assets are kept: the environment variable PLSH_CACHE, else plsh in the user's cache folder."""
    chosen = os.environ.get("PLSH_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen)).absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("plsh", appauthor=False))


def home(source: Source) -> Path:
    """The folder that the source's asset is kept in."""
    return cache_folder() / source.home


def describe(folder: Path) -> dict[str, Any] | None:
    """The record of a prepared folder: name, title, origin, source, licence, quantisation, files with checksums.

    None for a folder that this program did not prepare.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # Folders of the first version, which knew one origin only, do not name it.
    return {"origin": "package index", **record} if isinstance(record, dict) else None


def ready(source: Source) -> bool:
    """Whether the source's folder is there and undamaged."""
    return faults(home(source), source) == []


def faults(folder: Path, source: Source) -> list[str] | None:
    """What is wrong with a prepared folder; empty if nothing is, None if there is no such folder.

    Sizes and CRC-32 of every file are compared (0.2 s for 0.5 GB); of a file above 1 GiB the CRC-32 only where it has
    been changed since it was recorded.
    """
    if not folder.is_dir():
        return None
    record = describe(folder)
    if record is None or record.get("layout") != _LAYOUT or not source.made(record):
        return ["its record is missing or of another version"]
    files = record.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(item, dict) and {"bytes", "crc32"} <= set(item) for item in files.values()
    ):
        return ["its record is damaged"]
    for name, expected in files.items():
        fault = file_fault(folder / name, expected)
        if fault:
            return [f"{name} {fault}"]
    return []


def file_fault(path: Path, expected: dict[str, Any]) -> str | None:
    """What is wrong with one file, beside its record."""
    if not path.is_file():
        return "is missing"
    found = path.stat()
    if found.st_size != expected["bytes"]:
        return f"has {found.st_size} bytes, expected {expected['bytes']}"
    if found.st_size > _ALWAYS_READ_BYTES and found.st_mtime_ns == expected.get("mtime_ns"):
        return None
    return None if _crc32(path) == expected["crc32"] else "has another checksum"


def seal(folder: Path, source: Source, name: str, kind: str, licence: str, **more: object) -> None:
    """Record what the folder is and what every file in it must look like; written last."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    record = {
        "layout": _LAYOUT,
        "name": name,
        "kind": kind,
        "title": source.title,
        "origin": source.origin,
        "source": source.words,
        "licence": licence,
        "quantisation": source.quantisation,
        **more,
        "files": {path.relative_to(folder).as_posix(): checksums(path) for path in found},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def checksums(path: Path) -> dict[str, int | str]:
    """Size, SHA-256, CRC-32 and time of change of a file."""
    with open(path, "rb") as handle:
        sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
    found = path.stat()
    return {"bytes": found.st_size, "sha256": sha256, "crc32": _crc32(path), "mtime_ns": found.st_mtime_ns}


@contextmanager
def locked(folder: Path, say: Say) -> Iterator[None]:
    """Holds the lock of a cache folder, waiting for another process that has it."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is fetching {folder.name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _crc32(path: Path) -> int:
    """CRC-32 finds accidental damage and is four times faster than SHA-256, which matters at every start."""
    value = 0
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value
