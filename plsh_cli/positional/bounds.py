"""What theory promises for s i.i.d. draws (Wolfson & Wagner 2026, arXiv 2605.09472, and Hoeffding's inequality).

Symbols: sigma in tokens, n positions, s draws (`num_samples`), `error` an absolute norm of M~ - L*. Bounds with Psi
hold for ALiBi kernels only; none holds for stratified draws.
"""

from __future__ import annotations

import math

import numpy as np

from plsh_cli.positional.kernels import Kernel


def psi(sigma: float) -> float:
    """Return Psi = 1 + sigma + coth(1 / (2 sigma)), the scale of one draw's spectral deviation."""
    if not (math.isfinite(sigma) and sigma > 0.0):
        raise ValueError(f"sigma = {sigma!r}: must be a finite number > 0")
    return 1.0 + sigma + 1.0 / math.tanh(0.5 / sigma)


def expectation_bound(sigma: float, n: int, num_samples: int) -> float:
    """Return Psi (sqrt(ln n / s) + ln n / s), which bounds E ||M~ - L*||_2 up to the paper's constant."""
    ratio = math.log(_at_least_one("n", n)) / _at_least_one("num_samples", num_samples)
    return psi(sigma) * (math.sqrt(ratio) + ratio)


def tail_probability(sigma: float, n: int, num_samples: int, error: float) -> float:
    """Return the bound on P[||M~ - L*||_2 >= error], n exp(-s error^2 / (4 Psi (4 Psi + error))), at most 1."""
    if not error >= 0.0:
        raise ValueError(f"error = {error!r}: must be >= 0")
    scale = 4.0 * psi(sigma)
    exponent = -_at_least_one("num_samples", num_samples) * error * (error / (scale * (scale + error)))
    return min(1.0, math.exp(math.log(_at_least_one("n", n)) + exponent))


def max_norm_bound(n: int, num_samples: int, delta: float) -> float:
    """Return the eps that max |M~ - L*| exceeds with probability at most delta: sqrt(ln(2 n^2 / delta) / (2 s))."""
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta = {delta!r}: must be between 0 and 1")
    pairs = math.log(2.0) + 2.0 * math.log(_at_least_one("n", n)) - math.log(delta)
    return math.sqrt(pairs / (2.0 * _at_least_one("num_samples", num_samples)))


def max_norm_probability(n: int, num_samples: int, error: float) -> float:
    """Return the bound on P[max |M~ - L*| >= error], 2 n^2 exp(-2 s error^2), at most 1."""
    if not error >= 0.0:
        raise ValueError(f"error = {error!r}: must be >= 0")
    log_pairs = math.log(2.0) + 2.0 * math.log(_at_least_one("n", n))
    return math.exp(min(0.0, log_pairs - 2.0 * _at_least_one("num_samples", num_samples) * error**2))


def rule_of_thumb_samples(sigma: float, n: int, eps: float) -> int | None:
    """Return the paper's number of draws for a spectral error eps: ceil(sigma^2 ln n / eps^2), at least 1.

    None where it is beyond the largest float, about 1.8e308.
    """
    if not (math.isfinite(eps) and eps > 0.0 and math.isfinite(sigma) and sigma > 0.0):
        raise ValueError(f"sigma = {sigma!r}, eps = {eps!r}: must be finite numbers > 0")
    log_n = math.log(_at_least_one("n", n))
    # A product overflows to inf, while a power would raise OverflowError.
    wanted = (sigma / eps) * (sigma / eps) * log_n if log_n > 0.0 else 0.0
    return max(1, math.ceil(wanted)) if math.isfinite(wanted) else None


def max_width_quantile(kernel: Kernel, num_samples: int, q: float, pitch: str = "real") -> float:
    """Return the quantile q, 0 < q < 1, of the widest of s i.i.d. widths, in tokens; may be inf.

    One width is below it with probability q^(1/s). For Gamma(2, sigma) the medians over sigma are 1.68, 4.39, 5.20,
    7.06 and 9.64 at s = 1, 10, 20, 100 and 1000.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"q = {q!r}: must be between 0 and 1")
    if pitch not in ("real", "integer"):
        raise ValueError(f"pitch = {pitch!r}: must be one of real, integer")
    above = -np.expm1(np.log(q) / _at_least_one("num_samples", num_samples))
    return float(kernel.real_width(above) if pitch == "real" else kernel.integer_width(above))


def _at_least_one(name: str, value: int) -> int:
    if not value >= 1:
        raise ValueError(f"{name} = {value!r}: must be at least 1")
    return value
