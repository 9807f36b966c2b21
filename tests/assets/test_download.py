"""Downloads that are interrupted go on where they stopped, and half a file never passes for a whole one."""

from __future__ import annotations

import errno
import hashlib
import random
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from loopback import send, serving

from plsh_cli.assets import download as module
from plsh_cli.assets.download import Broken, download
from plsh_cli.errors import MessageError

DATA = random.Random(0).randbytes(3_000_017)
SHA256 = hashlib.sha256(DATA).hexdigest()
OPENER = urllib.request.build_opener()


def ranged(handler, data=DATA, tag='"v1"'):
    """Answers as a server of files does: ranges, and the whole file where If-Range names another version."""
    asked, version = handler.headers.get("Range"), handler.headers.get("If-Range", tag)
    if asked is None or version != tag:
        return send(handler, data, {"ETag": tag})
    begin = int(asked.removeprefix("bytes=").removesuffix("-"))
    if begin >= len(data):
        return send(handler, b"", {"Content-Range": f"bytes */{len(data)}"}, 416)
    span = f"bytes {begin}-{len(data) - 1}/{len(data)}"
    return send(handler, data[begin:], {"ETag": tag, "Content-Range": span}, 206)


def cut_after(count):
    """A server that closes the connection after `count` bytes of what it announced."""

    def answer(handler):
        asked = handler.headers.get("Range")
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        handler.send_response(206 if asked else 200)
        handler.send_header("ETag", '"v1"')
        handler.send_header("Content-Length", str(len(DATA) - begin))
        if asked:
            handler.send_header("Content-Range", f"bytes {begin}-{len(DATA) - 1}/{len(DATA)}")
        handler.end_headers()
        handler.wfile.write(DATA[begin : begin + count])

    return answer


def test_a_whole_file(tmp_path):
    with serving(ranged) as server:
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert (tmp_path / "file").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_connection_that_closes_early_again_and_again(tmp_path):
    with serving(cut_after(1_000_000)) as server:
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert (tmp_path / "file").read_bytes() == DATA
    assert [headers.get("Range") for _, _, headers in server.asked] == [
        None,
        "bytes=1000000-",
        "bytes=2000000-",
        "bytes=3000000-",
    ]


def test_a_server_that_brings_nothing_is_given_up_and_what_arrived_is_kept(tmp_path):
    (tmp_path / "file.part").write_bytes(DATA[:1000])
    with serving(cut_after(0)) as server, pytest.raises(Broken, match="closed after 1000 of 3000017"):
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert (tmp_path / "file.part").read_bytes() == DATA[:1000]
    assert not (tmp_path / "file").exists()
    assert len(server.asked) == 2


def test_a_killed_process_leaves_what_the_next_one_goes_on_with(tmp_path):
    def slow(handler):
        handler.send_response(200)
        handler.send_header("ETag", '"v1"')
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        for begin in range(0, len(DATA), 1 << 18):
            handler.wfile.write(DATA[begin : begin + (1 << 18)])
            time.sleep(0.2)

    code = (
        "import sys, urllib.request; from pathlib import Path; from plsh_cli.assets.download import download\n"
        "download(sys.argv[1], Path(sys.argv[2]), urllib.request.build_opener(), sys.argv[3])"
    )
    part = tmp_path / "file.part"
    with serving(slow) as server:
        child = subprocess.Popen([sys.executable, "-c", code, server.url, str(tmp_path / "file"), SHA256])
        while child.poll() is None and not (part.exists() and part.stat().st_size):
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
    arrived = part.stat().st_size
    assert 0 < arrived < len(DATA)
    assert not (tmp_path / "file").exists()
    with serving(ranged) as server:
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert server.asked[0][2]["Range"] == f"bytes={arrived}-"
    assert (tmp_path / "file").read_bytes() == DATA


def test_another_version_by_now_is_read_from_the_beginning(tmp_path):
    with serving(cut_after(1000)) as server:
        url = server.url
        with pytest.raises(KeyboardInterrupt):
            download(url, tmp_path / "file", _interrupting(2), SHA256)
        assert (tmp_path / "file.part").read_bytes() == DATA[:1000]
    other = DATA[::-1]
    with serving(lambda handler: ranged(handler, other, '"v2"')) as server:
        # The note belongs to the address, which for this server is another one.
        note = module._note(tmp_path / "file.part")
        note.write_text(note.read_text().replace(url, server.url))
        download(server.url, tmp_path / "file", OPENER, hashlib.sha256(other).hexdigest())
    assert server.asked[0][2]["If-Range"] == '"v1"'
    assert (tmp_path / "file").read_bytes() == other


def _interrupting(call):
    """An opener whose `call`-th use is interrupted by the user."""

    class Interrupting:
        used = 0

        def open(self, request, timeout):
            self.used += 1
            if self.used == call:
                raise KeyboardInterrupt
            return OPENER.open(request, timeout=timeout)

    return Interrupting()


@pytest.mark.parametrize("part", [DATA[:1000], DATA + b"more"])
def test_a_server_without_ranges(tmp_path, part):
    (tmp_path / "file.part").write_bytes(part)
    with serving(lambda handler: send(handler, DATA)) as server:
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_part_that_is_longer_than_the_file(tmp_path):
    (tmp_path / "file.part").write_bytes(DATA + b"more")
    with serving(ranged) as server:
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert [headers.get("Range") for _, _, headers in server.asked] == ["bytes=3000021-", None]
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_damaged_part_is_found_by_the_checksum_and_not_kept(tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    with serving(ranged) as server:
        with pytest.raises(MessageError, match="nothing was kept"):
            download(server.url, tmp_path / "file", OPENER, SHA256)
        assert list(tmp_path.iterdir()) == []
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert (tmp_path / "file").read_bytes() == DATA


def test_without_checksum_and_version_nothing_is_continued(tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    with serving(ranged) as server:
        download(server.url, tmp_path / "file", OPENER)
    assert "Range" not in server.asked[0][2]
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_finished_file_is_not_downloaded_again(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    with serving(ranged) as server:
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert server.asked == []


@pytest.mark.parametrize(("status", "attempts"), [(404, 1), (403, 1), (503, 2)])
def test_an_error_of_the_server(tmp_path, status, attempts):
    with serving(lambda handler: send(handler, b"", status=status)) as server, pytest.raises(Broken, match=str(status)):
        download(server.url, tmp_path / "file", OPENER, SHA256)
    assert len(server.asked) == attempts


def test_a_server_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.2)
    with serving(lambda handler: time.sleep(1)) as server, pytest.raises(Broken, match="timed out"):
        download(server.url, tmp_path / "file", OPENER, SHA256)


def test_a_full_disk_is_no_broken_connection(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_append", full)
    with serving(ranged) as server, pytest.raises(OSError, match="No space left"):
        download(server.url, tmp_path / "file", OPENER, SHA256)
