"""The measures of `plsh attn-error` as one array, and how the dense path fills it.

Axes: field, input, seed, subject (see attn_error_subjects), layer, head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.errors import MessageError
from plsh_cli.experiments import attn_error_dense as dense
from plsh_cli.experiments.attn_error_kernels import head_kernels, takes_slopes
from plsh_cli.experiments.attn_error_metrics import BOUND, OUTPUT, ROW, SLACK, measures
from plsh_cli.experiments.attn_error_subjects import Facts, Subject, Weights, all_weights, seeds, subjects
from plsh_cli.positional.kernels import Kernel
from plsh_cli.positional.matrices import l_star

if TYPE_CHECKING:
    from plsh_cli.experiments.attn_error_inputs import Inputs
    from plsh_cli.models.capture import Captured

MATRIX = tuple(one.name for one in fields(Facts))
FIELDS = (*MATRIX, *OUTPUT, *BOUND)
#: Bias matrices held at a time, in bytes.
MATRICES_BYTES = 1 << 29
#: Rows of every head kept for the figure of the bound.
_PICKED = 16


@dataclass(eq=False)
class Values:
    """All measures, NaN where one does not apply; `kernels` has one per head; tokens and perplexities one per
    input.

    method: dense or fused; computed_by: what computed the outputs, in words. own_slopes: the model's own ALiBi slopes
    per head, where the kernels are made of them. picked_error, picked_bound: of the first input and seed, (subject,
    layer, head, row), at the rows `picked`, over the largest norm of a value that the row sees.
    """

    subjects: list[Subject]
    layers: list[int]
    heads: int
    tokens: list[int]
    seeds: int
    method: str
    computed_by: str = "dense float64"
    values: np.ndarray = field(init=False)
    kernels: list[Kernel] = field(default_factory=list)
    perplexities: list[float] = field(default_factory=list)
    own_slopes: list[float] | None = None

    def __post_init__(self) -> None:
        shape = (len(self.subjects), len(self.layers), self.heads)
        self.values = np.full((len(FIELDS), self.inputs, self.seeds, *shape), np.nan)
        self.picked = np.unique(np.linspace(0, self.n - 1, min(_PICKED, self.n)).round().astype(np.int64))
        self.picked_error, self.picked_bound = (np.full((*shape, self.picked.size), np.nan) for _ in range(2))

    @property
    def inputs(self) -> int:
        """How many texts."""
        return len(self.tokens)

    @property
    def n(self) -> int:
        """Tokens of the longest text."""
        return max(self.tokens)

    def take_kernels(self, cfg: AttnErrorCommand, layer: Captured, n: int) -> list[Kernel]:
        """Note and return the kernels of the heads, for texts of n tokens."""
        if layer.slopes is not None and takes_slopes(cfg):
            self.own_slopes = layer.slopes.tolist()
        self.kernels = head_kernels(cfg, self.heads, n, layer.slopes)
        return self.kernels

    def put(self, weights: Weights, index: int, layer: int, head: int, rows: np.ndarray, symmetric: bool) -> None:
        """Enter one head's rows (metrics.ROW, n); layer is its place in `layers`.

        Raises MessageError for NaN or infinity in outputs or errors; only the bound on a row may be infinite.
        """
        if not np.isfinite(np.delete(rows, ROW.index("bound"), axis=0)).all():
            bias = self.subjects[weights.subject].bias
            raise MessageError(
                f"the outputs of layer {self.layers[layer]}, head {head}, under {bias} are not finite: "
                f"its Q, K or V are too large for {self.computed_by}"
            )
        found = measures(rows, symmetric, SLACK[self.method])
        facts = [np.nan if (value := getattr(weights.facts, name)) is None else value for name in MATRIX]
        every = slice(None) if weights.seed is None else weights.seed
        column = np.concatenate([facts, found])
        target = self.values[:, index, every, weights.subject, layer, head]
        target[...] = column if target.ndim == 1 else column[:, None]
        if index == 0 and weights.seed in (None, 0):
            inside = self.picked < rows.shape[1]
            place = (weights.subject, layer, head, inside)
            largest = rows[ROW.index("value"), self.picked[inside]]
            self.picked_error[place] = rows[ROW.index("error"), self.picked[inside]] / largest
            self.picked_bound[place] = rows[ROW.index("bound"), self.picked[inside]] / largest


def empty(cfg: AttnErrorCommand, inputs: Inputs, method: str) -> Values:
    """The array for a run, with nothing measured yet."""
    return Values(
        subjects=subjects(cfg),
        layers=inputs.layers,
        heads=inputs.num_heads,
        tokens=[one.shape[1] for one in inputs.ids],
        seeds=len(seeds(cfg)),
        method=method,
    )


def measure_dense(cfg: AttnErrorCommand, inputs: Inputs, values: Values, advance: Callable[[int], None]) -> None:
    """Fill the array by dense float64 attention; advance(number of heads measured under one bias matrix)."""
    paper = cfg.protocol == "paper"
    known: dict[tuple[Kernel, int], list[Weights]] = {}
    with dense.few_threads(values.n):
        for index, ids in enumerate(inputs.ids):
            n = ids.shape[1]
            captured = inputs.captured(index, "before" if paper else "after")
            kernels = values.take_kernels(cfg, captured[0], n)
            for kernel, cells, key in _groups(kernels, len(captured), index, paper):
                every = known.get((kernel, n)) if not paper else None
                if every is None:
                    every = all_weights(cfg, kernel, n, not paper, *key)
                if not paper:
                    known[kernel, n] = every
                for batch in _batches(every, n):
                    _measure_batch(batch, kernel, captured, cells, index, values, paper, inputs.device)
                    advance(len(batch) * len(cells))


def _groups(
    kernels: Sequence[Kernel], layers: int, index: int, paper: bool
) -> Iterator[tuple[Kernel, list[tuple[int, int]], tuple[str | int, ...]]]:
    """Yield a kernel, the (layer, head) cells that share its draws, and the key of these draws."""
    if paper:
        for layer in range(layers):
            for head, kernel in enumerate(kernels):
                yield kernel, [(layer, head)], ("input", index, "layer", layer, "head", head)
        return
    for kernel in dict.fromkeys(kernels):
        yield (
            kernel,
            [(layer, head) for layer in range(layers) for head, one in enumerate(kernels) if one == kernel],
            (),
        )


def _batches(every: Sequence[Weights], n: int) -> Iterator[Sequence[Weights]]:
    size = max(1, MATRICES_BYTES // (8 * n * n))
    for start in range(0, len(every), size):
        yield every[start : start + size]


def _measure_batch(
    batch: Sequence[Weights],
    kernel: Kernel,
    captured: Sequence[Captured],
    cells: Sequence[tuple[int, int]],
    index: int,
    values: Values,
    paper: bool,
    device: str,
) -> None:
    n = captured[0].q.shape[1]
    exact = _tensor(l_star(kernel, n), device)
    matrices = [_tensor(one.matrix(kernel, n), device) for one in batch]
    if paper:
        matrices = [matrix.clamp_(min=dense.PAPER_ZERO) for matrix in matrices]
    errors = [one.facts.max_error for one in batch]
    for layer, head in cells:
        numbers = dense.row_numbers(dense.head_of(captured[layer], head, paper), exact, matrices, errors, not paper)
        for one, rows in zip(batch, numbers, strict=True):
            values.put(one, index, layer, head, rows.cpu().numpy(), symmetric=paper)


def _tensor(matrix: np.ndarray, device: str) -> Any:
    import torch

    return torch.from_numpy(matrix).to(device)
