"""The Triton kernels compile for NVIDIA GPUs, and only once: checked without a GPU, by the compiler alone.

Triton's interpreter takes programs that the compiler refuses, so passing in one says little about the other. A process
of its own, because the interpreter is switched on for a whole process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = """
import sys
sys.path[:0] = {path!r}
import plsh_cli.attention
plsh_cli.attention.__path__[:0] = {package!r}
import numpy as np, torch, triton
from triton.backends.compiler import GPUTarget
from plsh_cli.attention import triton_attention as operator, triton_kernels as kernels
from plsh_cli.attention.triton_draws import Draws
from plsh_cli.positional import kernels as bias, samplers

class Device:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=None: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 80, 32))

def compile_only(kernel, positions, lines, arguments, data, compiled):
    kernel.run(*arguments, **data, **compiled, grid=(1,), warmup=True)

triton.runtime.driver.set_active(Device())
operator._launch = compile_only
for step in range(20):
    n = 40 + step
    draws = Draws(samplers.draw(bias.alibi(3.0), n, 1 + step, np.random.default_rng(step)))
    keep = torch.ones(1, n, dtype=torch.bool).view(torch.uint8)
    documents = operator._documents(np.array([0, 7, n]), torch.device("cpu"))
    pairs = operator._pairs(draws, documents, keep, torch.device("cpu"))
    q, k, v = (torch.randn(1, heads, n, 64, dtype=torch.bfloat16, requires_grad=True) for heads in (2, 1, 1))
    out, lse = operator._Triton.apply(q, k, v, operator._Task(pairs, draws, True, 0.125, 0))
    (out.sum() + lse.sum()).backward()
names = ("forward_kernel", "delta_kernel", "dq_kernel", "dkv_kernel")
print("compiled", *(len(getattr(kernels, name).device_caches[0][0]) for name in names))
"""


def test_kernels_compile_without_a_gpu_once_for_20_steps_of_fresh_draws(tmp_path):
    import plsh_cli.attention as package

    script = SCRIPT.format(path=sys.path, package=list(package.__path__))
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["compiled", "1", "1", "1", "1"]
