"""Compiling the CPU kernels: the cache, two processes at once, a compiler that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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
    (library,) = cache.glob("[!.]*")
    assert str(library).encode() == printed.pop().strip()
    before = library.stat().st_mtime_ns
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert library.stat().st_mtime_ns == before


def test_processes_at_once_compile_once(cache, tmp_path):
    """The compiler is a script that counts its links; the others wait for the first one and take its library."""
    calls = tmp_path / "calls"
    wrapper = tmp_path / "counting"
    real = " ".join(build.find_compiler())
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) echo link >> {calls};; esac\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    environment = {
        **os.environ,
        "PLSH_KERNEL_FLAGS": "-O0",
        "CXX": str(wrapper),
        "PLSH_CACHE": str(tmp_path / "kernels"),
    }
    script = SCRIPT.format(path=[str(Path(build.__file__).parent)])
    many = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) for _ in range(4)]
    printed = {process.communicate()[0] for process in many}
    assert [process.returncode for process in many] == [0] * 4
    assert len(printed) == 1
    assert calls.read_text().split() == ["link"]


def test_what_killed_builds_left_is_removed_after_an_hour(cache, monkeypatch):
    old, new = cache / "build-old", cache / "build-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "forward.o").write_bytes(b"half")
    hours_ago = time.time() - 2 * 3600
    os.utime(old, (hours_ago, hours_ago))
    monkeypatch.setattr(build, "_compile", lambda compiler, flags, work, log: (work / "fused.so").write_bytes(b"whole"))
    assert build.build().read_bytes() == b"whole"
    assert not old.exists()
    assert new.exists()
    assert [path.name for path in cache.glob("build-*")] == ["build-new"]


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


ATTEND = r"""
import sys, warnings
sys.path[:0] = {path!r}
import torch
from plsh_cli.attention.api import attention, choose_backend
from plsh_cli.attention.bias import Alibi
x = [torch.randn(1, 2, 33, 5) for _ in range(3)]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    first, second = (attention(*x, Alibi(4.0)) for _ in range(2))
assert choose_backend(x[0], Alibi(4.0)) == "blocks"
assert torch.equal(first, second)
assert (first - attention(*x, Alibi(4.0), backend="reference")).abs().max() < 1e-5
print(*(str(one.message) for one in said), sep="\n")
"""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"CXX": "/nonexistent"}, "no C++ compiler found (looked for /nonexistent)"),
        ({"CXX": "false"}, "false could not compile the CPU attention kernels; its messages are in "),
        ({"PLSH_KERNEL_FLAGS": "-include no_such_header.h"}, "could not compile the CPU attention kernels"),
    ],
)
def test_without_kernels_blocks_runs_and_says_so_once(cache, changes, text):
    script = ATTEND.format(path=[p for p in sys.path if p])
    environment = {**os.environ, **changes}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (said,) = done.stdout.splitlines()
    assert text in said
    assert said.endswith("; the slower backend blocks runs instead")
    if "messages are in" in said:
        log = Path(said.split("messages are in ")[1].split(";")[0])
        assert log.parent == cache
        assert log.exists()


@pytest.mark.parametrize("plain", [(), ("-DPLSH_PLAIN",)])
def test_the_sources_compile_without_warnings(plain, tmp_path):
    # The build itself hides warnings: those of gcc 12 about its own headers say nothing to a user.
    try:
        compiler = build.find_compiler()
    except build.KernelBuildError as error:
        pytest.skip(str(error))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *build.native_flags(compiler), *plain]
    for source in sorted(build.SOURCES.glob("*.cpp")):
        done = subprocess.run([*compiler, *flags, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    # Headers stand alone, in any order and twice.
    for header in sorted(build.SOURCES.glob("*.h")):
        alone = tmp_path / "alone.cpp"
        alone.write_text(f'#include "{header}"\n#include "{header}"\n')
        done = subprocess.run([*compiler, *flags, str(alone)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_other_flags_and_other_cpus_get_other_libraries(cache, monkeypatch):
    compiler = build.find_compiler()
    here = build._key(compiler, ("-O3",))
    assert build._key(compiler, ("-O2",)) != here
    monkeypatch.setattr(build, "cpu_description", lambda: "another CPU")
    assert build._key(compiler, ("-O3",)) != here
