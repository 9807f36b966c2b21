"""Independent random streams, one per purpose, from one integer seed."""

from __future__ import annotations

import hashlib
import numbers

import numpy as np


def generator(seed: int, *key: str | int | float) -> np.random.Generator:
    """Return the random generator of the stream `key` under `seed`.

    The stream depends on nothing but `seed` and the key's values, so a program may add or reorder streams without
    moving the others, and every machine gets the same numbers (Python's hash() would differ between processes). `1` and
    `1.0` are different keys. `seed` is any integer >= 0. Raises ValueError for a negative seed or a key of another
    type.
    """
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise ValueError(f"seed = {seed!r}: must be an integer >= 0")
    digest = hashlib.blake2b(repr(tuple(_plain(part) for part in key)).encode(), digest_size=16).digest()
    words = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))
    # PCG64 by name: default_rng may change its bit generator between NumPy versions.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=words)))


def _plain(part: str | int | float) -> str | int | float:
    """Return a key part as a Python value, so that NumPy scalars and plain numbers name the same stream."""
    if isinstance(part, str):
        return str(part)
    if isinstance(part, numbers.Integral):
        return int(part)
    if isinstance(part, numbers.Real):
        return float(part)
    raise ValueError(f"key part {part!r}: must be text or a number")
