"""The sections of the report: where a run belongs, in the order of the paper."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from plsh_cli.report.library import SWEEPS, Record


@dataclass(frozen=True)
class Section:
    """A part of the report. key: its anchor. about: one sentence on what its numbers are."""

    key: str
    title: str
    about: str


SECTIONS = (
    Section(
        "matrix",
        "Matrix approximation",
        "How far the mean M~ of s random block masks is from the bias matrix L* of ALiBi, beside the paper's bounds.",
    ),
    Section(
        "output",
        "Attention output",
        "How far attention under M~ is from attention under L*, on a trained model's own queries, keys and values.",
    ),
    Section("scratch", "Training from scratch", "Models trained under each bias, scored on held-out text."),
    Section("finetune", "Fine-tuning", "Pretrained models trained further under each bias, scored on held-out text."),
    Section("speed", "Speed and memory", "Times, memory and errors as ratios within one run on one machine."),
    Section(
        "beyond",
        "Beyond the paper",
        "Other kernels and samplers than the paper's, and comparisons at equal cost.",
    ),
    Section("other", "Other runs", "Scored models and whatever else lies there."),
)

_OF_COMMAND = {
    "attn_error": "output",
    "train": "scratch",
    "finetune": "finetune",
    "finetune_sweep": "finetune",
    "bench_attention": "speed",
    "bench_matrix": "speed",
    "compare": "beyond",
}


def section_of(record: Record) -> str:
    """The key of the section that a run belongs to."""
    if record.command == "approx":
        return "matrix" if _as_in_the_paper(record) else "beyond"
    settings = record.config.get("eval")
    if record.command == "eval" and isinstance(settings, dict) and settings.get("run"):
        return "scratch"
    return _OF_COMMAND.get(record.command, "other")


def command_line(record: Record) -> str:
    """The line that makes the run again, of its overrides but for where it was kept and logged."""
    command, sweep = record.command, record.path.parent.name == SWEEPS
    command = command.removesuffix("_sweep") if sweep else command
    words = command.replace("_", " ", 1) if command.startswith("bench_") else command.replace("_", "-")
    overrides = [line for line in record.overrides if not line.startswith(("out=", "logger."))]
    return f"plsh {words} {shlex.join([*overrides, *(['--multirun'] if sweep else [])])}".rstrip()


def _as_in_the_paper(record: Record) -> bool:
    """Whether an approx run has the paper's kernel and nothing but its sampler and widths."""
    bias, settings = record.config.get("bias"), record.config.get("approx")
    bias = bias if isinstance(bias, dict) else {}
    samplers = settings.get("samplers") if isinstance(settings, dict) else None
    paper = {"kernel": "alibi", "pitch": "real", "sampler": "iid"}
    return all(bias.get(key, value) == value for key, value in paper.items()) and samplers in (None, ["iid"])
