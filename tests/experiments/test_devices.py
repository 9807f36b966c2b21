"""The device of a run: what auto means, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from plsh_cli.errors import UserError
from plsh_cli.experiments.devices import chosen_device


def machine(monkeypatch, cuda: int, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "double", "device"),
    [
        (2, True, None, "cuda"),
        (0, True, None, "mps"),
        (0, True, "which sums need", "cpu"),
        (1, False, "which sums need", "cuda"),
        (0, False, None, "cpu"),
    ],
)
def test_auto_is_the_fastest_that_does(monkeypatch, cuda, mps, double, device):
    machine(monkeypatch, cuda, mps)
    assert chosen_device("auto", double) == device


def test_a_device_that_is_there_is_taken_as_it_is_called(monkeypatch):
    machine(monkeypatch, 2, True)
    for name in ("cpu", "mps", "cuda", "cuda:0", "cuda:1"):
        assert chosen_device(name) == name


@pytest.mark.parametrize(
    ("name", "double", "message"),
    [
        ("mps", None, r"device = mps: is not there"),
        ("mps", "which sums need", r"device = mps: has no double precision, which sums need; use cpu or cuda"),
        ("cuda", None, r"device = cuda: 0 CUDA devices were found"),
        ("cuda:3", None, r"device = cuda:3: 0 CUDA devices were found"),
    ],
)
def test_a_device_that_is_not_there(monkeypatch, name, double, message):
    machine(monkeypatch, 0, False)
    with pytest.raises(UserError, match=message):
        chosen_device(name, double)


def test_of_the_cpu_torch_is_not_asked():
    code = (
        "import sys; from plsh_cli.experiments.devices import chosen_device\n"
        "chosen_device('cpu')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
