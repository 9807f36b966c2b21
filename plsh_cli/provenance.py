"""Where a result comes from: the machine and versions, and the state of the source."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "plsh-cli",
    "torch",
    "numpy",
    "scipy",
    "transformers",
    "accelerate",
    "hydra-core",
    "omegaconf",
    "pydantic",
    "typer",
    "rich",
    "wandb",
    "matplotlib",
    "gguf",
    "triton",
    "peft",
    "datasets",
    "lm-eval",
)
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "CUDA_VISIBLE_DEVICES")
_MAX_DIFF_BYTES = 1_000_000


def environment() -> dict[str, object]:
    """Python, platform, processor, cores, memory (bytes), versions of the packages that matter, thread settings."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "packages": {name: version(name) for name in PACKAGES},
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
        "arguments": sys.argv[1:],
    }


def source() -> dict[str, object]:
    """The git commit, whether the tree differs from it, and the difference.

    Of the checkout that the package runs from; where it is installed, of the working folder's repository (`of` says
    which).
    """
    package = Path(__file__).resolve().parent
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is not None:
        return {"of": "package source", **_state(package)}
    if _git(Path.cwd(), "rev-parse", "HEAD") is not None:
        return {"of": "working folder", **_state(Path.cwd())}
    return {"of": None, "commit": None, "dirty": None, "diff": None}


def version(package: str) -> str | None:
    """An installed package's version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Physical memory in bytes, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _state(folder: Path) -> dict[str, object]:
    diff = _git(folder, "diff", "HEAD", "--no-color", "--no-ext-diff") or ""
    status = _git(folder, "status", "--porcelain") or ""
    return {
        "commit": (_git(folder, "rev-parse", "HEAD") or "").strip() or None,
        "dirty": bool(status.strip()),
        "diff": diff[:_MAX_DIFF_BYTES],
        "diff_cut": len(diff) > _MAX_DIFF_BYTES,
    }


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
