"""A training run of seconds: a model of 29 thousand parameters on 12 documents of made-up words."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

MODEL = [
    "model.architecture.hidden_size=32",
    "model.architecture.num_hidden_layers=2",
    "model.architecture.num_attention_heads=2",
    "model.architecture.num_key_value_heads=2",
    "model.architecture.intermediate_size=64",
]
#: 23 steps of 5 windows of 31 tokens make an epoch of the toy text (see `texts`).
TRAIN = [
    "train.context=31",
    "train.batch=5",
    "train.eval_every=5",
    "train.save_every=5",
    "train.eval_windows=4",
    "train.heldout=0.3",
    "train.threads=1",
    "final.max_tokens=200",
    "final.lengths=[31,62]",
    "device=cpu",
]


def own_cache(folder: Path) -> str:
    """A cache folder of its own for a test, with nothing in it but the compiled kernels, which take long to make."""
    from plsh_cli.attention.build import build

    compiled = build()
    folder.mkdir(parents=True, exist_ok=True)
    here = folder / compiled.name
    if not here.exists():
        here.symlink_to(compiled)
    return str(folder)


def texts(folder: Path, documents: int = 12, words: int = 100) -> Path:
    """A folder of text files whose words follow one another by a fixed rule, so that there is something to learn."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(7)
    names = ["".join(generator.choice(list("abcdefgh"), 3)) for _ in range(13)]
    for number in range(documents):
        place, found = int(generator.integers(13)), []
        for _ in range(words):
            place = (3 * place + int(generator.integers(2))) % 13
            found.append(names[place])
        (folder / f"{number:02d}.txt").write_text(" ".join(found), encoding="utf-8")
    return folder


def words(folder: Path, steps: int, *more: str, logger: str = "disabled") -> list[str]:
    """The words of a toy run's command line after `plsh`; `more` takes the place of settings with the same key."""
    given = {text.partition("=")[0] for text in more}
    settings = [*MODEL, *TRAIN, "data=text", f"data.path={folder}", f"train.steps={steps}", f"logger.mode={logger}"]
    return ["train", *(text for text in settings if text.partition("=")[0] not in given), *more]


def records(run: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl that are about steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "loss" in line]


def losses(run: Path) -> list[tuple[int, float, float | None]]:
    """Step, training loss and held-out loss of every record, to the bit."""
    return [(record["step"], record["loss"], record.get("eval_loss")) for record in records(run)]


def runs(folder: Path, command: str = "train") -> list[Path]:
    """The run folders of a command below a working folder's runs/."""
    return sorted(path.parent for path in folder.glob(f"runs/{command}/*/config.yaml"))


def stopped(run: Path, folder: Path, step: int) -> Path:
    """A copy of a finished run as it was when it was killed some steps after the checkpoint of `step`."""
    copy = folder / "runs" / run.parent.name / f"stopped-{step}"
    shutil.copytree(run, copy)
    for checkpoint in copy.glob("checkpoints/*"):
        if int(checkpoint.name.rpartition("-")[2]) > step:
            shutil.rmtree(checkpoint)
    shutil.rmtree(copy / "model")
    (copy / "result.json").unlink()
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[: step + 1]) + lines[step + 1][:20])
    status = json.loads((copy / "status.json").read_text())
    (copy / "status.json").write_text(json.dumps({**status, "state": "killed"}))
    return copy


def same(one: Path, other: Path) -> None:
    """Two runs have the same losses, draws, weights and rows, to the bit."""
    assert losses(one) == losses(other)
    assert [record.get("block_mean") for record in records(one)] == [
        record.get("block_mean") for record in records(other)
    ]
    (weights,) = (one / "model").glob("*.safetensors")
    assert weights.read_bytes() == (other / "model" / weights.name).read_bytes()
    assert (one / "rows.csv").read_text() == (other / "rows.csv").read_text()


def start(words: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """`plsh` in a process of its own, in a working folder."""

    def heard() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts background jobs with it ignored

    return subprocess.Popen(
        [sys.executable, "-m", "plsh_cli", *words],
        cwd=folder,
        preexec_fn=heard,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def torchrun(words: list[str], folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    """`plsh` in two processes that torchrun starts, in a working folder."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    return subprocess.run(
        [*launcher, "-m", "plsh_cli", *words],
        cwd=folder,
        env={**os.environ, "PLSH_CACHE": own_cache(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
