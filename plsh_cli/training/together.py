"""Several processes as one: torch's process group, and what the main process tells the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from plsh_cli import ranks

Value = TypeVar("Value")


@contextmanager
def group(cpu: bool) -> Iterator[None]:
    """Within the body, the processes that torchrun started can reach each other; nothing for a single one."""
    if ranks.count() == 1:
        yield
        return
    import torch.distributed as distributed
    from accelerate import PartialState

    mine = not distributed.is_initialized()
    PartialState(cpu=cpu, **({"backend": "gloo"} if cpu else {}))
    try:
        yield
    finally:
        if mine and distributed.is_initialized():
            distributed.destroy_process_group()


def from_main(value: Value | None) -> Value:
    """The main process's value, in every process; on the others `value` does not matter."""
    if ranks.count() == 1:
        return value
    import torch.distributed as distributed

    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def share_cores(threads: int | None) -> int:
    """Set how many processor threads torch uses here, by default an even share of the cores; the number."""
    import torch

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if threads is not None or local > 1:
        torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // local))
    return torch.get_num_threads()
