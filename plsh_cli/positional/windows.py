"""The largest eigenvalue of M~ - L* on very long sequences, window by window.

At the edge of its spectrum M~ - L* has many eigenvectors, alike in different places: Lanczos on all of 10^6 positions
needs about 1000 products to tell them apart. But each is localised within a few dozen block lengths, or it is a smooth
wave whose eigenvalue a window of some hundred block lengths already holds to 1e-4. So a long sequence is scanned window
by window with a few products each, the best windows are solved, and one product on the whole sequence certifies the
winner.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plsh_cli.positional.norms import SpectralNorm, certify, extreme_eigenpair, spectral_norm
from plsh_cli.positional.products import Product

MIN_WINDOW = 4096
WINDOW_BLOCKS = 64
# Rounds of the search: (share of the windows kept, at least this many, rows of margin in windows, products for each).
ROUNDS = ((1.0, 1, 0.0, 24), (0.1, 8, 0.0, 48), (0.0, 4, 0.5, 72), (0.0, 1, 0.5, 5000))


def window_limit(max_block: int) -> int:
    """Return the number of positions up to which the whole sequence is one window: 4 * max(4096, 64 longest blocks)."""
    return 4 * max(MIN_WINDOW, WINDOW_BLOCKS * max_block)


def windowed_spectral_norm(
    restricted: Callable[[int, int], Product], n: int, max_block: int, *, tol: float, generator: np.random.Generator
) -> SpectralNorm:
    """Return the spectral norm of M~ - L* with its certificate, for (n, n) matrices.

    restricted(top, bottom) is the product with rows and columns top..bottom-1. max_block: longest block in tokens. Up
    to `window_limit` positions this is `spectral_norm`. Beyond, the value is a lower bound that the search makes tight
    (measured at n = 2^17: within 6e-4, mostly 1e-7, of Lanczos on the whole), `tol` holds within the winning window,
    and the residual of the whole says what was reached: about 1e-3 of the value or better. `products` counts windows as
    fractions, rounded up.
    """
    window = window_limit(max_block) // 4
    if n <= 4 * window:
        return spectral_norm(restricted(0, n), n, tol=tol, generator=generator)
    # Windows overlap by a quarter, more than the extent of a localised eigenvector, which then lies whole in one of
    # them.
    tops = list(range(0, n - window // 4, 3 * window // 4))
    candidates = [(0.0, top, np.zeros(0)) for top in tops]
    rows_multiplied = 0
    for share, least, margin, products in ROUNDS:
        solved = []
        for _, top, vector in candidates[: max(least, round(share * len(tops)))]:
            first, last = max(0, top - int(margin * window)), min(n, top + window + int(margin * window))
            start = vector if vector.size == last - first else generator.standard_normal(last - first)
            found = extreme_eigenpair(restricted(first, last), start, tol, products)
            rows_multiplied += found.products * (last - first)
            solved.append((found.value, top, found.vector))
        candidates = sorted(solved, key=lambda one: one[0], reverse=True)
    whole = np.zeros(n)
    whole[first:last] = candidates[0][2]
    value, residual = certify(restricted(0, n), whole)
    return SpectralNorm(value, residual, 1 + -(-rows_multiplied // n))
