"""Compiling the CPU kernels: the cache, two processes at once, a compiler that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plsh_cli.attention import build

SCRIPT = "import sys; sys.path[:0] = {path!r}; import build; print(build.build())"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path))
    return tmp_path


def test_two_processes_build_at_once_and_the_third_finds_the_result(cache):
    script = SCRIPT.format(path=[str(Path(build.__file__).parent)])
    # -O0 comes later than -O3 and wins: this is about files, not speed.
    environment = {**os.environ, "PLSH_KERNEL_FLAGS": "-O0"}
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    printed = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(printed) == 1
    (library,) = cache.iterdir()
    assert str(library).encode() == printed.pop().strip()
    before = library.stat().st_mtime_ns
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert library.stat().st_mtime_ns == before


def test_failing_compiler_names_the_log(cache, monkeypatch):
    monkeypatch.setenv("PLSH_KERNEL_FLAGS", "-include no_such_header.h")
    with pytest.raises(build.KernelBuildError, match=r"messages are in .*\.log"):
        build.build()
    (log,) = cache.glob("*.log")
    assert "no_such_header.h" in log.read_text()
    assert not list(cache.glob("build-*"))
    assert not list(cache.glob("*.so"))


def test_missing_compiler_is_named(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.KernelBuildError, match="no-such-compiler"):
        build.build()


def test_other_flags_and_other_cpus_get_other_libraries(cache, monkeypatch):
    compiler = build.find_compiler()
    here = build._key(compiler, ("-O3",))
    assert build._key(compiler, ("-O2",)) != here
    monkeypatch.setattr(build, "cpu_description", lambda: "another CPU")
    assert build._key(compiler, ("-O3",)) != here
