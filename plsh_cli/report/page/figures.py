"""A run's figures, checked before they go onto a page."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from plsh_cli.report.library import Record

_MOST_BYTES = 3_000_000
#: What the commands' figures show, by the beginning of the file's name; what follows it is told as it is.
_NAMES = {
    "error_time": "error against time",
    "error": "error against draws s",
    "picture": "exact matrix, mean of draws, and their difference",
    "block_sizes": "sizes of the blocks against their law",
    "gain": "gain of each sampler over i.i.d. draws",
    "output_error": "error of attention outputs against draws s",
    "layer_head": "error by layer and head",
    "row_bound": "errors of rows against their bound",
    "head_error": "error by head against its sigma",
    "baselines": "error beside window and fixed blocks of equal pairs",
    "time": "time against length",
    "ratios": "how many times faster, beside the targets",
    "pareto": "error against cost, with the frontier",
    "perplexity_against_s": "perplexity against draws s",
    "perplexity": "perplexity by bias",
    "position": "loss by tokens of left text",
    "loss": "loss by step",
    "length": "bits per byte against length",
}
_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Picture:
    """One figure: its file, its content, and what is wrong with it (then content is empty)."""

    path: Path
    content: bytes
    problem: str | None = None

    @property
    def name(self) -> str:
        """What it shows, in words."""
        stem = self.path.stem
        for begin, words in _NAMES.items():
            if stem == begin or stem.startswith(f"{begin}_"):
                rest = stem[len(begin) :].replace("_", " ").strip()
                return f"{words}{f': {rest}' if rest else ''}"
        return stem.replace("_", " ")

    @property
    def address(self) -> str:
        """The picture itself as a data address; a browser runs no scripts in it and loads nothing from it."""
        return f"data:{_TYPES[self.path.suffix]};base64,{base64.b64encode(self.content).decode('ascii')}"


def pictures(record: Record) -> list[Picture]:
    """The figures of a run, in order; damaged and oversized ones with the reason in place of the content."""
    return [_picture(file) for file in record.figures]


def _picture(file: Path) -> Picture:
    try:
        if file.stat().st_size > _MOST_BYTES:
            return Picture(file, b"", "too large for this page")
        content = file.read_bytes()
    except OSError as error:
        return Picture(file, b"", f"cannot be read ({error.strerror})")
    whole = _is_svg(content) if file.suffix == ".svg" else _is_png(content)
    return Picture(file, content) if whole else Picture(file, b"", "damaged")


def _is_png(content: bytes) -> bool:
    return content.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in content[-16:]


def _is_svg(content: bytes) -> bool:
    """Whether this is well-formed XML with svg at its root."""
    names: list[str] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, _: names.append(name)
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError):
        return False
    return bool(names) and names[0].rpartition(":")[2] == "svg"
