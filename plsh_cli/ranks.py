"""Which of several processes this one is, as torchrun says in the environment."""

from __future__ import annotations

import os


def rank() -> int:
    """This process's number; 0 where it is the only one, or the main one."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    """How many processes work together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def main() -> bool:
    """Whether this process writes and prints for all."""
    return rank() == 0
