"""Fetching from the Hugging Face hub into its own cache, with every file compared with the hub's checksums.

huggingface_hub keeps finished files of an interrupted download and begins the unfinished one anew.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plsh_cli.assets.manifest import Hub
from plsh_cli.errors import MessageError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

Value = TypeVar("Value")

#: How long one answer of the hub may take, and how long the first question in all, looking up its address included.
_ANSWER_SECONDS = 5
_DEADLINE_SECONDS = 12

#: Weights in the order of preference, then what else transformers reads of a causal language model.
_WEIGHTS = (r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?")
_BESIDE = ("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json")
_BESIDE += ("vocab*", "merges.txt", "*.model", "*.tiktoken", "chat_template*")


class NotFromHub(MessageError):
    """The hub does not give it: `reason` says why, the whole text also what to do."""

    def __init__(self, reason: str, advice: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {advice}" if advice else reason)


@dataclass(frozen=True)
class Snapshot:
    """Files of one commit in the hub's cache: each file's name below the repository, and where it lies."""

    commit: str
    files: dict[str, Path]


def is_offline() -> bool:
    """Whether the environment forbids asking the hub."""
    asked = (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper()
    return asked in ("1", "ON", "YES", "TRUE")


def in_hub_cache(source: Hub) -> Snapshot | None:
    """A model that another program has fetched already, without asking the hub; None where it is not complete."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repo, "config.json", revision=source.revision)
    if source.kind != "model" or not isinstance(found, str):
        return None
    folder = Path(found).parent
    names = [path.name for path in folder.iterdir() if path.is_file()]
    try:
        chosen = _needed(source, names)
    except NotFromHub:
        return None
    wanted = {shard for name in chosen if name.endswith(".index.json") for shard in _shards(folder / name)}
    return Snapshot(folder.name, {name: folder / name for name in chosen}) if wanted <= set(names) else None


def snapshot(source: Hub, say: Callable[[str], None]) -> Snapshot:
    """The files of `source` in the hub's cache, downloaded where they are not there, all with the hub's checksums.

    Raises NotFromHub where the hub is not to be asked, cannot be reached or refuses, within seconds.
    """
    if is_offline():
        raise NotFromHub("HF_HUB_OFFLINE forbids asking the Hugging Face hub", f"unset it, or {_instead(source)}")
    info = _asked(source, lambda: _info(source))
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    names = _needed(source, siblings)
    if info.gated and _token() is None:
        raise _locked(source)
    size = sum(siblings[name].size or 0 for name in names)
    say(f"{source.repo}: fetching {len(names)} files ({size / 1e6:,.0f} MB) of commit {info.sha[:12]} from the hub")
    for attempt in (1, 2):
        folder = _asked(source, lambda: _download(source, info.sha, names))
        files = {name: folder / name for name in names}
        damaged = [name for name, path in files.items() if not _as_on_hub(path, siblings[name])]
        if not damaged:
            return Snapshot(info.sha, files)
        for name in damaged:
            # Its pointer and, behind it, the file itself: what is there is not downloaded again.
            files[name].resolve().unlink(missing_ok=True)
            files[name].unlink(missing_ok=True)
        if attempt == 1:
            say(f"{source.repo}: {damaged[0]} in the hub's cache is damaged; fetching it again")
    raise NotFromHub(f"{source.repo}: {damaged[0]} arrives with another checksum than the hub names; nothing was kept")


def _info(source: Hub) -> Any:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=_endpoint())
    ask = {"repo_type": source.kind, "revision": source.revision, "timeout": _ANSWER_SECONDS, "files_metadata": True}
    return _within(_DEADLINE_SECONDS, lambda: api.repo_info(source.repo, **ask))


def _download(source: Hub, commit: str, names: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            source.repo,
            repo_type=source.kind,
            revision=commit,
            allow_patterns=[re.sub(r"([*?\[])", r"[\1]", name) for name in names],
            etag_timeout=_ANSWER_SECONDS,
            endpoint=_endpoint(),
        )
    )


def _asked(source: Hub, ask: Callable[[], Value]) -> Value:
    """What the hub answers; NotFromHub, with what to do, where it refuses or cannot be reached."""
    from huggingface_hub import errors

    try:
        return ask()
    except errors.GatedRepoError as error:
        raise _locked(source) from error
    except errors.RepositoryNotFoundError as error:
        raise NotFromHub(
            f"the hub has no {source.kind} {source.repo} that can be seen {_whose()}",
            "check the spelling; a private one needs `hf auth login` or HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise NotFromHub(f"{source.repo} has no revision {source.revision} on the hub") from error
    # The bases of the hub's own error: OSError, and the root of the errors of the HTTP library that it uses.
    except errors.HfHubHTTPError.__bases__ as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            from huggingface_hub.constants import HF_HUB_CACHE

            raise MessageError(
                f"{source.repo}: the hub's cache folder {HF_HUB_CACHE} is full ({error}); set HF_HUB_CACHE (and "
                f"PLSH_CACHE, for what is prepared from it) to folders with more space"
            ) from error
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise NotFromHub(
            f"the Hugging Face hub cannot be reached at {_endpoint()} ({reason})",
            f"check network and proxy, set HF_ENDPOINT to a mirror, or {_instead(source)}",
        ) from error


def _within(seconds: float, work: Callable[[], Value]) -> Value:
    """The value of `work`; TimeoutError after `seconds`, which also ends a look-up of names that hangs."""
    ended: list[Value] = []
    failed: list[BaseException] = []

    def carry_out() -> None:
        try:
            ended.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=carry_out, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not ended:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return ended[0]


def _needed(source: Hub, names: Iterable[str]) -> list[str]:
    """The files to fetch; of a model its configuration, tokenizer and one kind of weights."""
    names = sorted(names)
    if source.files is not None:
        found = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in source.files)]
        if not found:
            raise NotFromHub(f"{source.repo} holds no {' or '.join(source.files)} on the hub")
        return found
    for pattern in _WEIGHTS:
        weights = [name for name in names if re.fullmatch(pattern, name)]
        if weights and "config.json" in names:
            beside = [n for n in names if "/" not in n and any(fnmatch.fnmatch(n, like) for like in _BESIDE)]
            return sorted({*weights, *beside})
    lacking = "weights (model.safetensors or pytorch_model.bin)" if "config.json" in names else "config.json"
    raise NotFromHub(f"{source.repo} is no model that transformers can load: it has no {lacking}")


def _shards(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return {str(index)}


def _as_on_hub(path: Path, sibling: RepoSibling) -> bool:
    """Whether a file has the checksum that the hub names: SHA-256 of large files, git's own of the others."""
    if sibling.lfs is not None:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest() == sibling.lfs.sha256
    data = path.read_bytes()
    return sibling.blob_id in (None, hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())


def _locked(source: Hub) -> NotFromHub:
    page = f"{_endpoint()}/{'datasets/' if source.kind == 'dataset' else ''}{source.repo}"
    if _token() is None:
        then = "then log in with `hf auth login` or set HF_TOKEN"
    else:
        then = "with the account of your token; it has no access yet"
    return NotFromHub(f"{source.repo} is gated", f"accept its licence at {page}, {then}")


def _instead(source: Hub) -> str:
    own = "a folder of your own as model.path=..." if source.kind == "model" else "data=text with files of your own"
    return f"use {own}"


def _whose() -> str:
    return "without an account" if _token() is None else "with the token that was found"


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
