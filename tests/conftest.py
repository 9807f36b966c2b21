"""What every test shares: no network, no W&B account, no leftovers in the checkout."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
if "PYTEST_XDIST_WORKER" in os.environ:
    # Side by side, threads that wait for one another take many times as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Everything it printed, white space folded, so that line breaks do not matter."""
        return re.sub(r"\s+", " ", self.out + self.err)


@pytest.fixture
def plsh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Runs the command line in this process, in an empty working folder."""
    from typer.testing import CliRunner

    from plsh_cli.cli import app

    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Finished:
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Finished(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def only_run(tmp_path: Path) -> Callable[[], Path]:
    """The one run folder under the working folder's runs/."""

    def find() -> Path:
        (config,) = tmp_path.glob("runs/*/*/config.yaml")
        return config.parent

    return find


@pytest.fixture(scope="session")
def fetched() -> Callable[..., list[Path]]:
    """Folders of named models and corpora; skips where one cannot be had (with PLSH_REQUIRE_ASSETS=1 that fails)."""
    from plsh_cli import assets
    from plsh_cli.errors import PlshError

    def get(*names: str) -> list[Path]:
        try:
            return [assets.fetch(name) for name in names]
        except PlshError as error:
            if os.environ.get("PLSH_REQUIRE_ASSETS") == "1":
                raise
            pytest.skip(f"needs {', '.join(names)}: {error}")

    return get
