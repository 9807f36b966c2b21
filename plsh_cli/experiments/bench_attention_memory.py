"""The memory that one pass of a method takes, as the high-water mark of a process that does nothing else.

The methods of one case share a process, one after the other: the mark is set back before each, and freed memory goes
back to the system at once. Run as `python -m plsh_cli.experiments.bench_attention_memory` with a request (JSON) on its
standard input, it prints a list of bytes, null where the system does not count them (anything but Linux on the CPU).
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plsh_cli.config.schema.biases import DrawsBias
from plsh_cli.errors import PlshError
from plsh_cli.experiments.bench_attention_plan import Case, Method

if TYPE_CHECKING:
    from plsh_cli.experiments.bench_attention_calls import Inputs, Setup

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# glibc keeps no freed memory of this size, so none of it hides what comes later.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
WARM_UP_N = 128


def extra_bytes(methods: Sequence[Method], case: Case, setup: Setup) -> list[int | None]:
    """Bytes that a pass needs beside q, k, v and, with backward, the output's gradient and the three gradients.

    So it counts what is prepared (draws, tables, a dense mask), the output, what is kept for backward, and scratch.
    Measured in a new process. PlshError if that fails.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    shared = {**setup.__dict__, "draws": setup.draws.model_dump()}
    request = {"methods": [asdict(method) for method in methods], "case": asdict(case), "setup": shared}
    done = subprocess.run(
        [sys.executable, "-m", "plsh_cli.experiments.bench_attention_memory"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, **ALLOCATOR, "PYTHONPATH": path},
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PlshError(f"measuring memory at {case.label} failed (exit code {done.returncode}): {last}")
    found: list[int | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_here(methods: Sequence[Method], case: Case, setup: Setup) -> list[int | None]:
    """The same in this process."""
    from plsh_cli.experiments.bench_attention_calls import make_inputs

    inputs = make_inputs(case, setup)
    return [_measure(method, case, setup, inputs) for method in methods]


def _measure(method: Method, case: Case, setup: Setup, inputs: Inputs) -> int | None:
    from plsh_cli.experiments.bench_attention_calls import make_inputs, one_pass, prepare

    def work(case: Case, inputs: Inputs) -> None:
        one_pass(prepare(method, case, setup, inputs), case, inputs)

    # A short case starts threads and loads libraries; what is compiled for a length must be compiled for this one.
    small = replace(case, n=case.n if method.backend in ("flex", "triton") else min(case.n, WARM_UP_N))
    work(small, inputs if small == case else make_inputs(small, setup))
    gc.collect()
    gradients = 3 * case.tensor_bytes if case.passes != "forward" else 0
    if setup.device.startswith("cuda"):
        return max(0, _on_cuda(lambda: work(case, inputs)) - gradients)
    before = _reset_peak()
    if before is None:
        return None
    work(case, inputs)
    return max(0, _status("VmHWM") - before - gradients)


def _on_cuda(work: Callable[[], None]) -> int:
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


def _reset_peak() -> int | None:
    """Set the high-water mark back to what is resident now; that many bytes, or None where this cannot be done."""
    try:
        CLEAR.write_text("5")
        return _status("VmRSS")
    except OSError:
        return None


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise OSError(f"{STATUS} has no {field}")
    return int(found[1]) * 1024


def _main() -> None:
    from plsh_cli.experiments.bench_attention_calls import Setup

    request = json.loads(sys.stdin.read())
    setup = Setup(**request["setup"] | {"draws": DrawsBias(**request["setup"]["draws"])})
    methods = [Method(**method) for method in request["methods"]]
    print(json.dumps(measure_here(methods, Case(**request["case"]), setup)))


if __name__ == "__main__":
    _main()
