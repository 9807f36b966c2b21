"""What conf/ holds: where it is, and its groups, options and experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Experiment:
    """A preset: `plsh <command> experiment=<name>`."""

    name: str
    command: str | None
    description: str


def conf_dir() -> Path:
    """The folder of configuration files: inside the installed package, or beside it in a source checkout."""
    installed, checkout = PACKAGE / "conf", PACKAGE.parent / "conf"
    return installed if installed.is_dir() else checkout


def groups(extra: Path | None = None) -> dict[str, list[str]]:
    """Each configuration group with the names of its options, those of the user's own folder `extra` included."""
    found: dict[str, set[str]] = {}
    for root in (conf_dir(), extra):
        if root is None:
            continue
        for file in root.rglob("*.yaml"):
            group = file.parent.relative_to(root).as_posix()
            if group != ".":
                found.setdefault(group, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(found.items())}


def experiments(extra: Path | None = None) -> list[Experiment]:
    """The presets under conf/experiment. Comment lines `# for: <command>` and `# about: <one line>` describe each."""
    found = []
    for root in (conf_dir(), extra):
        if root is None:
            continue
        for file in sorted((root / "experiment").glob("*.yaml")):
            notes = {}
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("# ") and ":" in line:
                    key, _, text = line[2:].partition(":")
                    notes.setdefault(key.strip(), text.strip())
            found.append(Experiment(file.stem, notes.get("for"), notes.get("about", "")))
    return found
