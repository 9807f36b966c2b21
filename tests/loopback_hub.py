"""The Hugging Face hub with one repository, played by a server on this machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from loopback import Served, send

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "some-org/Some-Model_1.5"
CONFIG = b'{"model_type": "llama", "num_hidden_layers": 3}'
WEIGHTS = bytes(range(256)) * 40


@dataclass
class Repository:
    """What the hub holds. large: names in LFS; refused: every download is; wrong: what is sent in a file's place."""

    files: dict[str, bytes]
    large: tuple[str, ...] = ("model.safetensors",)
    gated: str | bool = False
    refused: bool = False
    wrong: dict[str, bytes] = field(default_factory=dict)
    server: Served | None = None

    def answer(self, handler):
        path = urlsplit(handler.path).path
        parts = path.split(REPO)
        if len(parts) != 2:
            return send(handler, b"{}", {"X-Error-Code": "RepoNotFound"}, 404)
        if parts[1].startswith("/revision/"):
            if parts[1] not in ("/revision/main", f"/revision/{COMMIT}"):
                return send(handler, b"{}", {"X-Error-Code": "RevisionNotFound"}, 404)
            return self._json(handler, {"id": REPO, "sha": COMMIT, "gated": self.gated, "siblings": self._siblings()})
        if parts[1].startswith("/tree/"):
            return self._json(handler, self._tree())
        if self.refused:
            return send(handler, b"{}", {"X-Error-Code": "GatedRepo"}, 403)
        return self._file(handler, parts[1].removeprefix(f"/resolve/{COMMIT}/"))

    def _json(self, handler, value):
        send(handler, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _siblings(self):
        return [
            {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            | ({"lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 130}} if name in self.large else {})
            for name, data in self.files.items()
        ]

    def _tree(self):
        return [
            {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
            | ({"lfs": {"oid": sha256(data), "size": len(data), "pointerSize": 130}} if name in self.large else {})
            for name, data in self.files.items()
        ]

    def _file(self, handler, name):
        data = self.files[name]
        tag = sha256(data) if name in self.large else git_sha1(data)
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{tag}"'}
        send(handler, self.wrong.get(name, data), headers | {"X-Linked-Size": str(len(data))})


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.fixture(name="online")
def hub_online(tmp_path, monkeypatch):
    """huggingface_hub with an empty cache, no token, and leave to use the network; our cache empty too."""
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "tokens"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))
