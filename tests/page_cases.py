"""Run folders for the tests of the report: real results where they are quick, else ones written by hand."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from plsh_cli.config.compose import compose
from plsh_cli.experiments import approx, train_claims
from plsh_cli.experiments.harness import Run
from plsh_cli.rundir import RunFolder
from plsh_cli.tracking import Tracker

GOLDEN = Path(__file__).parent / "golden"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="48" height="32"><circle cx="24" cy="16" r="9"/></svg>'
SMALL = ["approx.n=[61]", "approx.heads=4", "approx.num_samples=[3,9]", "approx.seeds=3", "approx.bootstrap=50"]


def run_folder(
    out: Path,
    command: str,
    rows: Sequence[dict[str, Any]],
    summary: dict[str, Any],
    *,
    name: str | None = None,
    number: int = 0,
    state: str = "done",
    hash_: str = "a" * 16,
    timing: dict[str, Any] | None = None,
    overrides: Sequence[str] = (),
    figures: dict[str, bytes] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """A run folder as the harness leaves it; `number` makes its name and start its own."""
    name = name or command
    started = f"2026-01-{1 + number // 1440 % 28:02d}T{number // 60 % 24:02d}:{number % 60:02d}:00Z"
    stamp = started.replace("-", "").replace(":", "")
    folder = RunFolder(out / command.replace("_", "-") / f"{stamp}-{name}-{number:06x}")
    folder.path.mkdir(parents=True)
    status = {"state": state, "reason": None, "command": command, "config_hash": hash_, "started": started}
    if state in ("failed", "killed"):
        status["reason"] = "ValueError: it did not work"
    if state == "running":  # of another machine, so that its process cannot be looked up
        status |= {"host": "elsewhere", "pid": 1}
    else:
        status["ended"] = started.replace(":00Z", ":42Z")
    _quick(folder.path / "status.json", status)
    _quick(folder.path / "config.yaml", {"command": command, "name": name, "seed": 0, **(config or {})})
    _quick(folder.path / "git.json", {"of": "package source", "commit": COMMIT, "dirty": False, "diff": ""})
    _quick(folder.path / "env.json", {"processor": "a processor", "cores": 2, "packages": {"torch": "2.13.0"}})
    (folder.path / "overrides.txt").write_text("".join(f"{line}\n" for line in overrides), encoding="utf-8")
    if state == "done":
        record = {"schema": 1, "command": command, "name": name, "rows": rows, "summary": summary}
        _quick(folder.path / "result.json", {**record, "timing": timing or {}})
    for title, content in ({"a_figure": SVG} if figures is None else figures).items():
        (folder.path / "figures").mkdir(exist_ok=True)
        (folder.path / "figures" / (title if "." in title else f"{title}.svg")).write_bytes(content)
    return folder.path


def _quick(file: Path, value: object) -> None:
    """Without flushing to disk, which takes long for hundreds of runs. JSON is YAML, too."""
    file.write_text(json.dumps(value), encoding="utf-8")


@cache
def approx_result(*overrides: str) -> dict[str, Any]:
    """Rows and summary of a small `plsh approx`."""
    with tempfile.TemporaryDirectory() as folder:
        target = RunFolder(Path(folder))
        result = approx.run(
            compose("approx", [*SMALL, *overrides]), Run(target, Tracker(target, None, "disabled"), print)
        )
        path = target.write_json("result.json", {"rows": result.rows, "summary": result.summary})
        return json.loads(path.read_text(encoding="utf-8"))


def study(values: dict[str, float], seeds: int = 3, noise: float = 0.01) -> tuple[list[dict], dict[str, Any]]:
    """Rows and summary of a study of `plsh train` whose variants have these bits per byte at every length."""
    results = []
    for place, (variant, bits) in enumerate(values.items()):
        bias = "plsh" if variant.startswith("plsh") else variant
        for seed in range(seeds):
            for n in (64, 128, 256):
                results.append(
                    {
                        "variant": variant,
                        "seed": seed,
                        "run": f"runs/train/{variant}-{seed}",
                        "bias": bias,
                        "own": True,
                        "n": n,
                        "tokens": 1000,
                        "bits_per_byte": bits + noise * ((seed * 7 + place * 3) % 5 - 2) / 2,
                        "perplexity": 2.0**bits,
                        "top1": 0.5,
                        "mrr": 0.6,
                    }
                )
    summary = {
        "kind": "study",
        "model": "tiny",
        "context": 64,
        "steps": 10,
        "tokens_per_step": 128,
        "data": "sotu",
        "seeds": seeds,
        "seed_first": 0,
        "claims": train_claims.claims(results, 64),
        "runs": {},
    }
    return train_claims.rows(results, values), summary


def sweep_folder(out: Path, over: dict[int, tuple[float, float | None]]) -> Path:
    """The folder of a sweep of `plsh finetune` over s: per s, perplexity over ALiBi's and its half-width."""
    rows = [
        {
            "bias": "plsh",
            "setting": "",
            "num_samples": size,
            "n": 128,
            "jobs": 3,
            "seeds": 3 if half is not None else 1,
            "seed_first": 0,
            "perplexity": 20.0 + value,
            "perplexity_ci95": half,
            "bits_per_byte": 1.0,
            "bits_per_byte_ci95": half,
            "over_alibi": value,
            "over_alibi_ci95": half,
            "over_alibi_seeds": 3,
            "over_fixed_blocks": value - 5.0,
            "over_fixed_blocks_ci95": half,
            "over_fixed_blocks_seeds": 3,
        }
        for size, (value, half) in over.items()
    ]
    summary = {
        "model": "smollm2_135m",
        "data": "sotu",
        "context": 128,
        "num_samples": list(over),
        "seeds": [0, 1, 2],
        "settings": [""],
        "baselines": ["alibi", "fixed_blocks"],
        "jobs": 3 * len(over),
        "failed": [],
        "runs": [],
    }
    folder = RunFolder(out / "sweeps" / "20260103T000000Z-abcdef")
    folder.write_json("sweep.json", {"command": "finetune", "overrides": ["bias.num_samples=5,40"], "jobs": []})
    folder.write_json("summary.json", {"schema": 1, "command": "finetune_sweep", "rows": rows, "summary": summary})
    (folder.path / "perplexity_against_s.svg").write_bytes(SVG)
    return folder.path


def golden_rows(path: str) -> list[dict[str, Any]]:
    """The rows of a committed rows.csv, with numbers as numbers and empty cells as None."""
    with open(GOLDEN / path, encoding="utf-8", newline="") as handle:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(handle)]


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def bench_attention(out: Path, **more: Any) -> Path:
    """A run of `plsh bench attention` with the committed rows and claims."""
    told = json.loads((GOLDEN / "bench_attention" / "claims.json").read_text(encoding="utf-8"))
    fit = {"method": "fused plsh s=20", "dtype": "float32", "causal": True, "passes": "forward", "n_first": 16384}
    fit |= {"n_last": 262144, "exponent": 0.978, "exponent_ci95": 0.038}
    rows = golden_rows("bench_attention/targets_rows.csv")
    return run_folder(out, "bench_attention", rows, {"claims": told["claims"], "exponents": [fit]}, **more)


def attn_error(out: Path, met: bool = True, **more: Any) -> Path:
    """A run of `plsh attn-error` with the committed rows, which are those of groups of layers only."""
    rows = golden_rows("attn_error/rows.csv")
    bound = {"claim": "no row is beyond", "met": met, "rows": 1000, "largest_ratio": 0.2, "informative": 0.4}
    slopes = [{"group": "all", "layer": None, "slope": -0.496, "slope_ci95": 0.083, "over": "seeds", "count": 3}]
    return run_folder(out, "attn_error", rows, {"claims": [bound], "slopes": slopes, "layers": [0, 1]}, **more)


def library_of_runs(out: Path) -> None:
    """One run of every kind, and folders that are none."""
    result = approx_result()
    run_folder(out, "approx", result["rows"], result["summary"], overrides=["approx.num_samples=[3,9]"])
    gains = approx_result("approx.samplers=[iid,stratified]")
    run_folder(
        out,
        "approx",
        gains["rows"],
        gains["summary"],
        number=1,
        name="gain",
        hash_="b" * 16,
        config={"approx": {"samplers": ["iid", "stratified"]}},
    )
    attn_error(out, number=2)
    rows, summary = study({"plsh_10": 2.05, "plsh_20": 2.01, "alibi": 2.0, "original": 2.2, "fixed_blocks": 2.4})
    run_folder(out, "train", rows, summary, number=3, name="study")
    sweep_folder(out, {5: (2.0, 0.1), 40: (0.2, 0.1)})
    bench_attention(out, number=4)
    run_folder(out, "unheard_of", [{"x": 1.5, "y": None, "z": "<b>"}], {}, number=5)
    run_folder(out, "train", [], {}, number=6, state="failed")
    run_folder(out, "train", [], {}, number=7, state="running", hash_="c" * 16)
    (out / "notes").mkdir()
    (out / "approx" / "not a run").mkdir()
