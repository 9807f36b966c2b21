"""Memory grows with n: measured as the peak of a process, beyond what inputs and the first small call took.

Linux only. Not by getrusage: there a process starts with the peak of the one that started it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

SCRIPT = """
import json, sys
sys.path[:0] = {path!r}
import torch
from attention_oracle import partition
from plsh_cli.attention.api import attention
from plsh_cli.attention.bias import Plsh

def status(name):
    return 1024 * int(open("/proc/self/status").read().split(name + ":")[1].split()[0])

def call(n, backward):
    parts = partition(sigma, n, 20, pitch="integer")
    x = [torch.ones(1, len(sigma), n, dim, requires_grad=backward) for _ in range(3)]
    before = status("VmRSS")
    out = attention(*x, Plsh(parts), backend=backend)
    if backward:
        out.backward(torch.ones_like(out))
    return status("VmHWM") - before

torch.set_num_threads(1)
backend, dim, sigma, backward = sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5] == "backward"
call(128, backward)
print(call(int(sys.argv[1]), backward))
"""
SLACK = 12 << 20  # bytes that two equal processes differ by


def measured(backend: str, n: int, dim: int, sigma: list[float], direction: str) -> int:
    """Return the bytes that a call with 20 draws takes beyond its inputs, tables of its blocks included."""
    script = SCRIPT.format(path=[p for p in sys.path if p])
    command = [sys.executable, "-c", script, str(n), backend, str(dim), json.dumps(sigma), direction]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize(
    ("backend", "direction", "n"),
    [
        ("fused", "forward", 131_072),
        ("fused", "backward", 131_072),
        ("blocks", "forward", 131_072),
        ("blocks", "backward", 32_768),
    ],
)
def test_memory_doubles_with_n(backend, direction, n):
    half, whole = (measured(backend, size, 32, [4.0, 32.0], direction) for size in (n // 2, n))
    assert half > n // 2 * 2 * 32 * 4  # the output alone: something was measured
    assert whole <= 2.2 * half + SLACK, (half, whole)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_fused_takes_at_most_6_kb_per_token(direction):
    # 8 heads of 64 in float32. Backward: beyond the gradients of q, k and v.
    n, dim, sigma = 32_768, 64, [2.0**i for i in range(1, 9)]
    gradients = 0 if direction == "forward" else 3 * n * 8 * dim * 4
    assert measured("fused", n, dim, sigma, direction) - gradients <= 6_000 * n + SLACK
