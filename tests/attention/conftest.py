"""Without a CUDA device Triton's kernels run in its interpreter, which must be chosen before triton is imported.

The tests of this folder need torch, numpy, scipy and pytest alone. On a machine with nothing else, from the checkout:

    PYTHONPATH=. python -m pytest -W ignore::pytest.PytestConfigWarning tests/attention

(the option is for the time limit of pytest-timeout, which pytest does not know without it).
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
