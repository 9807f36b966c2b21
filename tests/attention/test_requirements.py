"""What attention and its tests are made of: torch, numpy, scipy and pytest, so that a bare GPU machine can run them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import plsh_cli

PACKAGE = Path(plsh_cli.__file__).parent
TESTS = Path(__file__).parent.parent
# filelock comes with torch, which needs it itself; triton's own tests are skipped without it.
ALLOWED = {"torch", "filelock", "numpy", "scipy", "pytest", "triton"}
HERE = {"plsh_cli", "attention_oracle", "triton_cases"}


def imported(path: Path) -> set[str]:
    """Return the first part of every module name that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def test_nothing_else_is_imported():
    files = [*PACKAGE.glob("attention/**/*.py"), *PACKAGE.glob("positional/**/*.py"), *TESTS.glob("attention/*.py")]
    files += [TESTS / f"{name}.py" for name in HERE - {"plsh_cli"}]
    assert len(files) > 30
    for path in files:
        others = imported(path) - set(sys.stdlib_module_names) - ALLOWED - HERE
        assert not others, f"{path} imports {others}"


def test_the_package_itself_imports_only_the_standard_library():
    for path in PACKAGE.glob("*.py"):
        if path.name in ("__init__.py", "when_imported.py"):
            assert imported(path) <= {*sys.stdlib_module_names, "plsh_cli"}, path
