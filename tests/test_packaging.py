"""The wheel carries conf/ and works from any folder; the rooms of the house import one way."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from toy import TOY

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_holds_every_configuration_file_and_no_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"plsh_cli/conf/{file.relative_to(ROOT / 'conf').as_posix()}" for file in (ROOT / "conf").rglob("*.yaml")
    }
    assert expected
    assert expected <= names
    assert "plsh_cli/report/page/page.css" in names
    assert not [name for name in names if name.startswith(("tests/", "runs/"))]


def test_the_installed_wheel_runs_in_another_folder(wheel, tmp_path):
    target, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, "-P", "-m", "plsh_cli", "approx", *TOY, "logger.mode=disabled"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(elsewhere.glob("runs/approx/*/result.json"))) == 1
    command = [sys.executable, "-P", "-c", "import plsh_cli; print(plsh_cli.__file__)"]
    where = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True).stdout
    assert where.startswith(str(target))


def test_import_contracts_hold():
    command = [
        sys.executable,
        "-c",
        "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 kept, 0 broken" in done.stdout
