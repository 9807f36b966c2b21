"""Memory that runs out is one message that says what to change."""

from __future__ import annotations

import pytest
import torch

from plsh_cli.errors import MessageError, PlshError
from plsh_cli.experiments.memory import exhaustion_explained


def test_an_allocation_that_the_processor_refuses():
    with (
        pytest.raises(PlshError, match=r"out of memory \(\d+ bytes more could not be had\): eat less") as caught,
        exhaustion_explained("eat less"),
    ):
        torch.empty(2**58, dtype=torch.uint8)
    assert caught.value.exit_code == 1


def test_an_allocation_that_a_gpu_refuses():
    text = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 9 GiB"
    with pytest.raises(PlshError, match=r"\(2\.50 GiB more could not be had\)"), exhaustion_explained("eat less"):
        raise torch.OutOfMemoryError(text)


def test_pythons_own_and_one_that_loading_has_wrapped():
    with pytest.raises(PlshError, match=r"out of memory \(no more could be had\)"), exhaustion_explained("eat less"):
        raise MemoryError
    with pytest.raises(PlshError, match="out of memory") as caught, exhaustion_explained("eat less"):
        raise MessageError("model cannot be loaded") from RuntimeError("DefaultCPUAllocator: can't allocate memory")
    assert caught.value.exit_code == 1


def test_other_errors_stay_what_they_are():
    with pytest.raises(MessageError, match="no memory of it"), exhaustion_explained("eat less"):
        raise MessageError("no memory of it")
    with pytest.raises(KeyboardInterrupt), exhaustion_explained("eat less"):
        raise KeyboardInterrupt
