"""Where the base of an adapter is found: named assets and repositories of the hub, in the cache or fetched."""

from __future__ import annotations

import adapter_cases as cases
import pytest

from plsh_cli import assets
from plsh_cli.errors import MessageError
from plsh_cli.models import bases
from plsh_cli.models.adapter import Base
from plsh_cli.models.fingerprint import fingerprint


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of one shape."""
    home = tmp_path_factory.mktemp("bases")
    return [cases.save_base(home / f"seed{seed}", seed=seed) for seed in (0, 1)]


def named(folder, **more):
    return Base(
        **{"name": "smollm2_135m", "path": None, "revision": None, "commit": None} | more,
        fingerprint=fingerprint(folder),
    )


@pytest.fixture
def cache(monkeypatch):
    """What the cache holds of smollm2_135m, by origin, and what fetching gives; all fetching is noted."""
    held, asked = {}, []
    monkeypatch.setattr(bases, "home", lambda source: held[source.origin])
    monkeypatch.setattr(bases, "ready", lambda source: source.origin in held)
    monkeypatch.setattr(assets, "cached_repo", lambda repo, revision=None: held.get((repo, revision)))

    def fetch(name, say=print, origin=None):
        asked.append(name)
        return held["fetched"]

    def fetch_repo(repo, revision=None, say=print):
        asked.append((repo, revision))
        return held["fetched"]

    monkeypatch.setattr(assets, "fetch", fetch)
    monkeypatch.setattr(assets, "fetch_repo", fetch_repo)
    return held, asked


def test_of_two_copies_the_fine_tuned_one(cache, folders):
    held, asked = cache
    held |= {"hub": folders[0], "package index": folders[1]}
    for folder in folders:
        assert bases.base_folder(named(folder), None, print) == folder
    assert asked == []


def test_one_that_is_not_here_is_fetched_and_checked(cache, folders):
    held, asked = cache
    held["fetched"] = folders[0]
    assert bases.base_here(named(folders[0])) is None
    assert bases.base_folder(named(folders[0]), None, print) == folders[0]
    with pytest.raises(MessageError, match=r"does not hold the model .* \(smollm2_135m\)"):
        bases.base_folder(named(folders[1]), None, print)
    assert asked == ["smollm2_135m"] * 2


def test_a_repository_of_the_hub_is_asked_for_its_commit(cache, folders):
    held, asked = cache
    mine = named(folders[0], name=None, path="some/model", revision="main", commit="c0ffee")
    assert bases.base_here(mine) is None
    held["fetched"] = folders[0]
    bases.base_folder(mine, None, print)
    assert asked == [("some/model", "c0ffee")]
    held["some/model", "main"], held["some/model", "c0ffee"] = folders[1], folders[0]
    assert bases.base_here(mine) == folders[0]


def test_a_name_at_a_revision_is_the_hubs(cache, folders):
    held, asked = cache
    held["fetched"] = folders[0]
    bases.base_folder(named(folders[0], revision="v2"), None, print)
    ((repo, revision),) = asked
    assert (repo.partition("/")[2], revision) == ("SmolLM2-135M", "v2")


def test_what_cannot_be_fetched_can_be_given(cache, folders, monkeypatch):
    def fetch(name, say=print, origin=None):
        raise MessageError("no network")

    monkeypatch.setattr(assets, "fetch", fetch)
    with pytest.raises(MessageError, match=r"base cannot be had: no network; give a copy of it with base=\"FOLDER\""):
        bases.base_folder(named(folders[0]), None, print)
    assert bases.base_folder(named(folders[0]), folders[0], print) == folders[0]


def test_sizes_of_a_base_that_is_not_here(cache, folders):
    assert bases.base_shape(named(folders[0]), None).layers == 30
    assert bases.base_shape(named(folders[0], name=None, path="some/model"), None).layers is None
    assert bases.base_shape(named(folders[0]), folders[0]).layers == 3
