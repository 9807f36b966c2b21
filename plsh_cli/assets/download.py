"""Downloading one file so that an interrupted download goes on where it stopped, also in another process."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

from plsh_cli import console
from plsh_cli.errors import MessageError

_CHUNK_BYTES = 1 << 20
#: A server that sends nothing for this long is given up.
_TIMEOUT_SECONDS = 15
#: Attempts in a row that brought nothing new.
_FRUITLESS = 2

Opener = urllib.request.OpenerDirector


class Broken(Exception):
    """The connection broke, or the server answered with an error; what was downloaded is kept."""


def download(url: str, file: Path, opener: Opener, sha256: str | None = None) -> None:
    """Fill `file` with what `url` holds; it exists only when it is complete and has the checksum.

    What has been downloaded stays beside it as `<file>.part` and is continued by an HTTP range, here after a broken
    connection or in a later call; a server without ranges, or with another file by now, is read from the beginning.
    Raises Broken where two attempts in a row bring nothing, MessageError for another checksum (nothing is kept then),
    OSError where the disk is full.
    """
    part = file.with_name(f"{file.name}.part")
    fruitless = 0
    if sha256 is not None and file.is_file() and _sha256(file) == sha256:
        return
    while True:
        before = _size(part)
        try:
            _go_on(url, part, opener, continuable=sha256 is not None)
            break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            fruitless = 0 if _size(part) > before else fruitless + 1
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or fruitless == _FRUITLESS:
                raise Broken(f"{url}: {error}") from error
    if sha256 is not None:
        found = _sha256(part)
        if found != sha256:
            _forget(part)
            raise MessageError(f"{url} has sha256 {found}, expected {sha256}; nothing was kept, try again")
    os.replace(part, file)
    _forget(part)


def _go_on(url: str, part: Path, opener: Opener, continuable: bool) -> None:
    """Download what is missing of `part`. Without a checksum at the end, only where the server names the version."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    have, version = _size(part), _version(part, url)
    if have and (version or continuable):
        request.add_header("Range", f"bytes={have}-")
        if version:
            request.add_header("If-Range", version)
    try:
        answer = opener.open(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        _forget(part)
        return _go_on(url, part, opener, continuable)
    with answer:
        begin = _begin(answer)
        if begin not in (0, have):
            _forget(part)
            raise OSError(f"the server sent bytes from {begin}, not from {have}")
        _note_version(part, url, answer)
        return _append(answer, part, begin)


def _append(answer: http.client.HTTPResponse, part: Path, begin: int) -> None:
    length = answer.headers.get("Content-Length")
    total = None if length is None else begin + int(length)
    name = part.name.removesuffix(".part")
    with (
        open(part, "r+b" if part.exists() else "wb") as handle,
        console.progress((total or 0) / 1e6, f"{name} (MB)") as counter,
    ):
        handle.truncate(begin)
        handle.seek(begin)
        counter.advance(begin / 1e6)
        # What has arrived, not whole chunks: a process that is killed has kept it.
        while chunk := answer.read1(_CHUNK_BYTES):
            handle.write(chunk)
            handle.flush()
            counter.advance(len(chunk) / 1e6)
    if total is not None and _size(part) != total:
        raise OSError(f"the connection closed after {_size(part)} of {total} bytes")


def _begin(answer: http.client.HTTPResponse) -> int:
    """The first byte that the answer holds: of a partial one what it says, else 0."""
    if answer.status != http.client.PARTIAL_CONTENT:
        return 0
    span = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(span) if span.isdigit() else -1


def _note_version(part: Path, url: str, answer: http.client.HTTPResponse) -> None:
    """Keep what tells this version of the file from another: a strong ETag, else the time of its change."""
    tag = answer.headers.get("ETag", "")
    version = tag if tag.startswith('"') else answer.headers.get("Last-Modified")
    _note(part).write_text(json.dumps({"url": url, "version": version}), encoding="utf-8")


def _version(part: Path, url: str) -> str | None:
    try:
        noted = json.loads(_note(part).read_text(encoding="utf-8"))
        return noted["version"] if noted["url"] == url else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _forget(part: Path) -> None:
    for leftover in (part, _note(part)):
        leftover.unlink(missing_ok=True)
