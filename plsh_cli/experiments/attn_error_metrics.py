"""The measures of one head's outputs under a bias matrix W against those under L*, from numbers per row.

E is exp(scores) with every row scaled to sum 1 over the keys that it sees (the softmax without bias): that changes no
normalised output, and unlike the raw exponential it cannot overflow. T~ are the outputs under W, T* those under L*.

Fields: unnormalised_error_frobenius and _max of (E o L*)V - (E o W)V; of the outputs output_error_frobenius
||T~ - T*||_F, output_error_relative (see `relative`), row_error_median, row_error_p90 and row_error_p99 (quantiles over
rows of the same relative error of a row), cosine (mean over rows of the cosine between T~_i and T*_i). Of the bound
2 eta max_j ||v_j|| / sum_j E_ij W_ij on a row's ||T~_i - T*_i||, eta = max |W - L*| and j over the keys that the row
sees: row_bound_ratio_max (largest measured over bound), row_bound_violated (share of rows beyond it) and
row_bound_informative (share of rows where it is below 2 max_j ||v_j||, which holds for any two outputs).

NaN in any number of a row makes the measures that depend on it NaN, never 0 or 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

#: What is known of every row: norms of T~_i - T*_i, T*_i, T~_i; their scalar product; norm and largest entry of the row
#: of (E o L*)V - (E o W)V; the bound; the largest norm of a value that the row sees.
ROW = ("error", "exact", "approximate", "dot", "unnormalised", "unnormalised_max", "bound", "value")
OUTPUT = (
    "unnormalised_error_frobenius",
    "unnormalised_error_max",
    "output_error_frobenius",
    "output_error_relative",
    "row_error_median",
    "row_error_p90",
    "row_error_p99",
    "cosine",
)
BOUND = ("row_bound_ratio_max", "row_bound_violated", "row_bound_informative")
#: Rounding of an output, as a share of the largest value that its row sees.
SLACK = {"dense": 1e-12, "fused": 1e-5}


def numbers_of_rows(
    got: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor], eta: float, value: torch.Tensor
) -> torch.Tensor:
    """The numbers of ROW, (ROW, n), from outputs (n, e) and the masses sum_j E_ij W_ij (n, 1), under W and under L*.

    eta: max |W - L*|; value: the largest norm of a value that each row sees, (n,).
    """
    import torch

    (a, mass), (b, exact_mass) = got, wanted
    unnormalised = b * exact_mass - a * mass
    bound = torch.where(mass[:, 0] > 0, 2.0 * eta * value / mass[:, 0], torch.inf)
    return torch.stack(
        [
            (a - b).norm(dim=1),
            b.norm(dim=1),
            a.norm(dim=1),
            (a * b).sum(dim=1),
            unnormalised.norm(dim=1),
            unnormalised.abs().amax(dim=1),
            bound,
            value,
        ]
    )


def measures(rows: np.ndarray, symmetric: bool, slack: float) -> np.ndarray:
    """The fields OUTPUT and BOUND, in that order, of one head: rows is (ROW, n) in float64.

    slack: what the bound is given for rounding, as a share of a row's largest value.
    """
    row = dict(zip(ROW, rows, strict=True))
    of_rows = relative(row["error"], row["approximate"], row["exact"], symmetric)
    whole = {name: np.linalg.norm(row[name]) for name in ("error", "approximate", "exact", "unnormalised")}
    lengths = row["approximate"] * row["exact"]
    cosines = np.divide(row["dot"], lengths, out=np.ones_like(lengths), where=~(lengths <= 0.0))
    rounding = slack * row["value"]
    unknown = np.isnan(row["error"]) | np.isnan(row["bound"])
    tested = unknown | (row["bound"] > rounding)
    ratios = np.divide(row["error"], row["bound"], out=np.zeros_like(lengths), where=tested)
    violated = np.where(unknown, np.nan, row["error"] > row["bound"] + rounding)
    informative = np.where(unknown, np.nan, row["bound"] < 2.0 * row["value"])
    return np.array(
        [
            whole["unnormalised"],
            row["unnormalised_max"].max(),
            whole["error"],
            relative(whole["error"], whole["approximate"], whole["exact"], symmetric),
            *np.quantile(of_rows, [0.5, 0.9, 0.99]),
            cosines.mean(),
            ratios.max(),
            violated.mean(),
            informative.mean(),
        ]
    )


def relative(error: np.ndarray, approximate: np.ndarray, exact: np.ndarray, symmetric: bool) -> np.ndarray:
    """||a - b|| / ||b||, or the paper's 2 ||a - b|| / (||a|| + ||b||); 0 where both are zero."""
    base = np.asarray((approximate + exact) / 2.0 if symmetric else exact)
    return np.divide(error, base, out=np.where(np.asarray(error) > 0.0, np.inf, error), where=~(base <= 0.0))
