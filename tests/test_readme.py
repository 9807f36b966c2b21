"""Every plsh command in the README runs, and every file that it shows is there."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from toy import TOY

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


#: Commands that take minutes: here they are only planned; smaller ones of their kind run in tests/experiments.
LONG = ("bench attention", "eval", "train", "finetune", "attn-error --biases", "reproduce", "compare")


def _commands() -> list[str]:
    lines = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    words = [part.strip() for line in lines for part in line.split("&&")]
    return [word for word in words if word.startswith("plsh ")]


def test_the_readme_names_its_two_commands():
    assert "pip install . && plsh approx --s 10,20,40" in TEXT
    tests = (Path(__file__).parent.parent / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    assert tests.startswith("pytest")
    assert f"pip install '.[dev]' && {tests}\n" in TEXT


@pytest.mark.parametrize("command", _commands())
def test_a_command_of_the_readme(plsh, command):
    words = shlex.split(command)[1:]
    if any(command.startswith(f"plsh {long}") for long in LONG):
        words.append("--dry-run")
    if words[0] == "fetch" and "--list" not in words and not os.environ.get("PLSH_REQUIRE_ASSETS"):
        pytest.skip("fetches weights and text: set PLSH_REQUIRE_ASSETS=1 to do so")
    if words[0] == "runs":
        assert plsh("approx", *TOY, "logger.mode=disabled").code == 0
    done = plsh(*words)
    assert done.code == 0, done.text


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
def test_a_program_of_the_readme(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    if "use_bias" in names:
        assert names["handle"].calls > 0
    else:
        assert names["out"].shape == (1, 8, 1024, 64)
        names["out"].sum().backward()
        assert names["q"].grad.isfinite().all()


@pytest.mark.parametrize("path", re.findall(r"!\[[^\]]*\]\(([^)]+)\)", TEXT))
def test_a_figure_of_the_readme(path):
    assert (ROOT / path).stat().st_size > 1000
