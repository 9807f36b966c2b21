"""The compiled CPU kernels as a shared library: built on first use, cached per machine.

The cache folder is $PLSH_CACHE or ~/.cache/plsh/kernels. A library's name holds a hash of the sources, the compiler's
version, the flags and the CPU's feature list, so that code for one CPU is never run on another. $CXX names the compiler
(default: the first of c++, g++, clang++), $PLSH_KERNEL_FLAGS adds flags (-DPLSH_PLAIN: the portable path).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-w",
)
# Block boundaries are defined by a rounded product and a rounded sum: no fused multiply-add there.
FILE_FLAGS = {"partitions.cpp": ("-ffp-contract=off",)}
COMPILERS = ("c++", "g++", "clang++")
#: Older folders of builds are of processes that were killed.
LEFTOVER_SECONDS = 3600


class KernelBuildError(RuntimeError):
    """The CPU kernels could not be compiled; the text names the reason and the log."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded library; compiles it if the cache has none. Raises KernelBuildError."""
    outcome = _outcome()
    if isinstance(outcome, KernelBuildError):
        raise KernelBuildError(str(outcome))
    return ctypes.CDLL(str(outcome))


@functools.cache
def _outcome() -> Path | KernelBuildError:
    """Return the library's path or why there is none: a compiler that fails is asked once per process."""
    try:
        return build()
    except KernelBuildError as error:
        return error


def build() -> Path:
    """Return the path of the library for this machine and compiler; raises KernelBuildError."""
    compiler = find_compiler()
    flags = (*COMMON_FLAGS, *native_flags(compiler), *shlex.split(os.environ.get("PLSH_KERNEL_FLAGS", "")))
    folder = cache_folder()
    path = folder / f"fused-{_key(compiler, flags)}.so"
    if path.exists():
        return path
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder))
            if path.exists():
                return path
            _remove_leftovers(folder)
            work = Path(tempfile.mkdtemp(prefix="build-", dir=folder))
        except OSError as error:
            raise KernelBuildError(
                f"cannot write to the kernel cache {folder} ({error}); set PLSH_CACHE to another folder"
            ) from error
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        _compile(compiler, flags, work, folder / f"{path.stem}.log")
        # A whole library gets its name at once, also where the file system knows no locks.
        os.replace(work / "fused.so", path)
    return path


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Within the body no other process builds in this folder; the lock ends with the process, however that ends."""
    from filelock import FileLock

    lock = FileLock(folder / ".build.lock")
    # Raised where the file system knows no locks: several processes then build the same.
    with contextlib.suppress(NotImplementedError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(folder: Path) -> None:
    """Delete the folders of builds that were killed; the caller holds the lock, a program without one gets an hour."""
    for leftover in folder.glob("build-*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


def cache_folder() -> Path:
    """Return the folder of compiled libraries."""
    chosen = os.environ.get("PLSH_CACHE")
    return Path(os.path.expanduser(chosen)) if chosen else Path.home() / ".cache" / "plsh" / "kernels"


def find_compiler() -> tuple[str, ...]:
    """Return the command that starts the C++ compiler; raises KernelBuildError where there is none."""
    chosen = os.environ.get("CXX")
    candidates = [tuple(shlex.split(chosen))] if chosen else [(name,) for name in COMPILERS]
    for command in candidates:
        if command and shutil.which(command[0]):
            return command
    wanted = chosen or ", ".join(COMPILERS)
    raise KernelBuildError(f"no C++ compiler found (looked for {wanted}); install one or set CXX")


@functools.cache
def native_flags(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flag that makes this compiler use all of this CPU, if it knows one."""
    for flag in ("-march=native", "-mcpu=native"):
        tried = subprocess.run([*compiler, flag, "-x", "c++", "-c", os.devnull, "-o", os.devnull], capture_output=True)
        if tried.returncode == 0:
            return (flag,)
    return ()


def cpu_description() -> str:
    """Return what tells CPUs with different instruction sets apart."""
    lines = [platform.machine(), platform.processor()]
    try:
        wanted = ("flags", "Features", "model name", "CPU part")
        lines += sorted({line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(wanted)})
    except OSError:
        asked = subprocess.run(["sysctl", "-a"], capture_output=True, text=True) if shutil.which("sysctl") else None
        if asked:
            wanted = ("machdep.cpu.brand", "machdep.cpu.features", "machdep.cpu.leaf7", "hw.optional")
            lines += sorted(line for line in asked.stdout.splitlines() if line.startswith(wanted))
    return "\n".join(lines)


def _key(compiler: tuple[str, ...], flags: tuple[str, ...]) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    digest = hashlib.sha256(repr((compiler, version, flags, FILE_FLAGS, cpu_description())).encode())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:20]


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], work: Path, log: Path) -> None:
    sources = sorted(SOURCES.glob("*.cpp"))
    commands = [
        [*compiler, *flags, *FILE_FLAGS.get(source.name, ()), "-c", str(source), "-o", str(work / f"{source.stem}.o")]
        for source in sources
    ]
    link = [*compiler, *flags, "-shared", *(command[-1] for command in commands), "-o", str(work / "fused.so")]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        done = list(pool.map(_run, commands))
    if all(code == 0 for code, _ in done):
        done.append(_run(link))
    if any(code != 0 for code, _ in done):
        log.write_text("\n".join(text for _, text in done))
        raise KernelBuildError(f"{compiler[0]} could not compile the CPU attention kernels; its messages are in {log}")


def _run(command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return 1, f"$ {shlex.join(command)}\n{error}"
    return done.returncode, f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}"
