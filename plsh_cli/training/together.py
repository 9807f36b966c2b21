"""Several processes as one: torch's process group, and what the main process tells the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from plsh_cli import ranks
from plsh_cli.errors import PlshError

Value = TypeVar("Value")


#: Words of gloo and NCCL where the other end of a connection is gone.
_LOST = ("connection closed by peer", "connection reset by peer", "connection refused", "broken pipe", "remote process")


class ProcessEnded(PlshError):
    """Another of the processes that train together has ended."""


@contextmanager
def group(cpu: bool) -> Iterator[None]:
    """Within the body, the processes that torchrun started can reach each other; nothing for a single one.

    Raises ProcessEnded where another one is gone.
    """
    if ranks.count() == 1:
        yield
        return
    import torch.distributed as distributed
    from accelerate import PartialState

    mine = not distributed.is_initialized()
    PartialState(cpu=cpu, **({"backend": "gloo"} if cpu else {}))
    try:
        yield
    except RuntimeError as error:
        if not _lost(error):
            raise
        raise ProcessEnded(f"{_other()} ended before training did; what it says itself is the reason") from error
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


def _lost(error: RuntimeError) -> bool:
    return any(words in str(error).lower() for words in _LOST)


def _other() -> str:
    """Which process it was, where that is known: of more than two, the error does not tell."""
    return f"process {1 - ranks.rank()}" if ranks.count() == 2 else f"one of the {ranks.count() - 1} other processes"
