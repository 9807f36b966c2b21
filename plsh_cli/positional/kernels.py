"""Bias kernels phi(d): their values, and the law of block widths that has phi as its collision probability.

A random partition into blocks of width w with a uniform shift keeps two tokens at distance d together with probability
E[(1 - d/w)+]. That expectation is phi when the width has the survival function S:

    real widths     P[w > t] = phi(t) - t phi'(t)
    integer widths  P[m > M] = phi(M) + M (phi(M) - phi(M + 1))

for every phi with phi(0) = 1 that is convex and decreasing (on the reals; on the integers). Paper symbols: `phi` is the
Laplacian kernel exp(-d / sigma) of Wolfson & Wagner 2026 (arXiv 2605.09472), for which the real widths are Gamma(2,
sigma).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammainccinv

# Second differences of a table of rounded values may be this far below zero and still come from a convex function.
CONVEXITY_SLACK = 1e-15


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Return the ALiBi slopes of `num_heads` heads, (h,) float64, in Press et al.'s order (2022, section 3).

    2^(-8 k / h) for k = 1..h when h is a power of two. Otherwise the slopes of the largest power of two p below h, then
    every second slope of 2 p heads until there are h: 12 heads end 0.7071, 0.3536, 0.1768, 0.0884.
    """
    if isinstance(num_heads, bool) or int(num_heads) != num_heads or num_heads < 1:
        raise ValueError(f"num_heads = {num_heads!r}: must be an integer >= 1")
    power = 1 << (int(num_heads).bit_length() - 1)
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    extra = 2.0 ** (-4.0 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([slopes, extra[: num_heads - power]])


@dataclass(frozen=True)
class Kernel:
    """A bias kernel phi over token distances; build it with `alibi`, `log`, `power` or `table`.

    `parameters` are (sigma,) in tokens, (a, b), (a, p) or (); `values` is the table phi(0), phi(1), ... or ().
    """

    family: str
    parameters: tuple[float, ...]
    values: tuple[float, ...] = field(default=(), repr=False)
    name: str = ""

    @property
    def sigma(self) -> float | None:
        """The length scale of an ALiBi kernel in tokens, else None."""
        return self.parameters[0] if self.family == "alibi" else None

    @property
    def label(self) -> str:
        """A short unique text such as "alibi(sigma=16)"."""
        if self.family == "table":
            return f"table({self.name})"
        names = {"alibi": ("sigma",), "log": ("a", "b"), "power": ("a", "p")}[self.family]
        return f"{self.family}({', '.join(f'{n}={v:.12g}' for n, v in zip(names, self.parameters, strict=True))})"

    def phi(self, d: np.ndarray | float) -> np.ndarray:
        """Return phi(d) in float64 for distances d >= 0 (integers for a table; ValueError beyond its end)."""
        if self.family == "table":
            return self._table_at(d)
        return np.exp(-self._decay(np.asarray(d, dtype=np.float64)))

    def drop(self, d: np.ndarray | float) -> np.ndarray:
        """Return phi(d) - phi(d + 1), to full relative accuracy for the closed families."""
        if self.family == "table":
            return self._table_at(d) - self._table_at(np.asarray(d) + 1)
        d = np.asarray(d, dtype=np.float64)
        return -np.exp(-self._decay(d)) * np.expm1(-self._decay_step(d))

    def survival(self, n: int) -> np.ndarray:
        """Return S(M) = P[integer width > M] for M = 0..n-2, (n-1,) float64, never increasing.

        S(M) = phi(M) + M (phi(M) - phi(M + 1)). Rounding could make it rise by 1e-16, hence the running minimum.
        """
        widths = np.arange(max(0, n - 1), dtype=np.float64)
        return np.minimum.accumulate(np.clip(self.phi(widths) + widths * self.drop(widths), 0.0, 1.0))

    def real_width(self, v: np.ndarray | float) -> np.ndarray:
        """Return the real width t with P[w > t] = v, for v in (0, 1]; inf where it exceeds a float64.

        ALiBi: sigma times the inverse of Gamma(2)'s survival function. Raises ValueError for a table.
        """
        v = np.asarray(v, dtype=np.float64)
        if self.family == "alibi":
            return self.parameters[0] * gammainccinv(2.0, v)
        if self.family == "log":
            return _log_real_width(v, *self.parameters)
        if self.family == "power":
            return _power_real_width(v, *self.parameters)
        raise ValueError("kernel = table: has integer widths only, set pitch to integer")

    def integer_width(self, v: np.ndarray | float) -> np.ndarray:
        """Return the smallest M >= 1 with P[m > M] < v, as float64, for v in (0, 1]; inf past the end of a table.

        By convexity S_real(M + 1) <= S(M) <= S_real(M), so it is the integer part of the real width, or one more.
        """
        v = np.asarray(v, dtype=np.float64)
        if self.family == "table":
            return self._table_width(v)
        width = np.maximum(np.floor(self.real_width(v)), 1.0)
        known = np.minimum(width, 1e300)
        return np.where(self.phi(known) + known * self.drop(known) < v, width, width + 1.0)

    def check(self, n: int) -> None:
        """Raise ValueError unless phi is a kernel on the distances 0..n-1.

        The closed families always are. A table must have n values, start at 1, stay in [0, 1], decrease, and be convex;
        the message names the first distance where it does not.
        """
        if self.family != "table":
            return
        if len(self.values) < n:
            raise ValueError(
                f"table {self.name}: has {len(self.values)} values, needs one for each distance 0..{n - 1}"
            )
        values = np.asarray(self.values[:n])
        drops = values[:-1] - values[1:]
        faults = {
            "must be between 0 and 1": ~((values >= 0.0) & (values <= 1.0)),
            "must not exceed the value before it (decreasing)": np.concatenate([[False], drops < 0.0]),
            "must be at most the mean of its neighbours (convex)": np.concatenate(
                [[False], drops[:-1] - drops[1:] < -CONVEXITY_SLACK, [False]]
            )[:n],
        }
        if values[0] != 1.0:
            raise ValueError(f"table {self.name}: the value at distance 0 is {values[0]:.17g}, must be 1")
        where = {rule: int(np.argmax(fault)) for rule, fault in faults.items() if fault.any()}
        if where:
            rule = min(where, key=where.__getitem__)
            d = where[rule]
            raise ValueError(f"table {self.name}: the value at distance {d} is {values[d]:.17g}, {rule}")

    def _decay(self, d: np.ndarray) -> np.ndarray:
        """-ln phi(d)."""
        if self.family == "alibi":
            return d / self.parameters[0]
        a, shape = self.parameters
        return a * np.log1p(shape * d) if self.family == "log" else a * d**shape

    def _decay_step(self, d: np.ndarray) -> np.ndarray:
        """-ln phi(d + 1) + ln phi(d), without the cancellation of the difference."""
        if self.family == "alibi":
            return np.full_like(d, 1.0 / self.parameters[0])
        a, shape = self.parameters
        if self.family == "log":
            return a * np.log1p(shape / (1.0 + shape * d))
        positive = np.where(d > 0.0, d, 1.0)
        return a * np.where(d > 0.0, positive**shape * np.expm1(shape * np.log1p(1.0 / positive)), 1.0)

    def _table_at(self, d: np.ndarray | float) -> np.ndarray:
        index = np.asarray(d).astype(np.int64)
        if index.size and (index.min() < 0 or index.max() >= len(self.values)):
            raise ValueError(f"table {self.name}: has values for the distances 0..{len(self.values) - 1} only")
        return np.asarray(self.values)[index]

    def _table_width(self, v: np.ndarray) -> np.ndarray:
        survival = self.survival(len(self.values))[1:]
        width = 1 + survival.size - np.searchsorted(survival[::-1], v, side="left")
        return np.where(width > survival.size, np.inf, width)


def alibi(sigma: float) -> Kernel:
    """Return phi(d) = exp(-d / sigma), sigma > 0 in tokens (the reciprocal of the head's slope)."""
    return Kernel("alibi", (_positive("sigma", sigma),))


def log(a: float, b: float) -> Kernel:
    """Return phi(d) = (1 + b d)^-a, a > 0, b > 0 (the logarithmic bias -a ln(1 + b d) of KERPLE, Chi et al. 2022)."""
    return Kernel("log", (_positive("a", a), _positive("b", b)))


def power(a: float, p: float) -> Kernel:
    """Return phi(d) = exp(-a d^p), a > 0, 0 < p <= 1 (KERPLE's power bias where it is convex)."""
    a, p = _positive("a", a), _positive("p", p)
    if p > 1.0:
        raise ValueError(f"p = {p!r}: must be at most 1 (beyond it the kernel is not convex)")
    return Kernel("power", (a, p))


def table(values: np.ndarray | list[float] | tuple[float, ...], name: str = "table") -> Kernel:
    """Return the kernel with phi(0), phi(1), ... given as numbers; `check(n)` judges them."""
    flat = np.asarray(values, dtype=np.float64)
    if flat.ndim != 1 or flat.size == 0:
        raise ValueError(f"values of table {name}: must be a list of at least one number, got shape {flat.shape}")
    if not np.isfinite(flat).all():
        raise ValueError(
            f"values of table {name}: must be finite, the one at distance {np.argmin(np.isfinite(flat))} is not"
        )
    return Kernel("table", (), tuple(flat.tolist()), name)


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not math.isfinite(value) or value <= 0.0:
        raise ValueError(f"{name} = {value!r}: must be a finite number > 0")
    return float(value)


def _log_real_width(v: np.ndarray, a: float, b: float) -> np.ndarray:
    """Invert S(t) = (1 + b t)^-a (1 + a b t / (1 + b t)) in y = ln(1 + b t), where widths of 10^1000 are harmless."""
    log_v = np.log(v)

    def step(y: np.ndarray) -> np.ndarray:
        rest = a * -np.expm1(-y)
        return (a * y - np.log1p(rest) + log_v) / np.maximum(a - a * np.exp(-y) / (1.0 + rest), 1e-300)

    with np.errstate(over="ignore"):
        return np.expm1(_newton(step, (math.log1p(a) - log_v) / a)) / b


def _power_real_width(v: np.ndarray, a: float, p: float) -> np.ndarray:
    """Invert S(t) = exp(-z) (1 + p z), z = a t^p."""
    log_v = np.log(v)

    def step(z: np.ndarray) -> np.ndarray:
        return (z - np.log1p(p * z) + log_v) / np.maximum(1.0 - p / (1.0 + p * z), 1e-300)

    # ln(1 + p z) <= z / 2 + ln 2 - 1/2 for p <= 1 puts the root below this start.
    z = _newton(step, 2.0 * (math.log(2.0) - 0.5 - log_v))
    with np.errstate(over="ignore", divide="ignore"):
        return np.exp((np.log(z) - math.log(a)) / p)


def _newton(step: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> np.ndarray:
    """Newton's method for an increasing convex function from a start at or above its root: it falls monotonically.

    `step` returns function over derivative. Near v = 1 the root is almost double and each step only halves the
    distance, hence the generous limit.
    """
    x = start
    for _ in range(80):
        moved = np.maximum(step(x), 0.0)
        x = np.maximum(x - moved, 0.0)
        if np.all(moved <= 4e-16 * x):
            break
    return x
