"""The summary of `plsh approx`: fitted slopes, violated bounds, gains over i.i.d. draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plsh_cli.config.schema.lab import ApproxCommand
from plsh_cli.experiments.approx_rows import tail_probabilities
from plsh_cli.positional import bounds
from plsh_cli.positional.measure import Measurement
from plsh_cli.positional.streams import generator
from plsh_cli.stats import loglog_line, loglog_slope, ratio_bootstrap, t_interval

NORMS = {"spectral": "spectral_error", "max": "max_error"}
ROUNDING = 1e-6  # of the same norm of L*: smaller errors say nothing about how errors fall with s
Rows = Sequence[dict[str, object]]
Measured = Sequence[Sequence[Measurement]]


def summary(cfg: ApproxCommand, rows: Rows, measured: Measured) -> dict[str, object]:
    """What the rows say together; `measured[i]` holds the measurements of `rows[i]`, one per seed."""
    return {
        "slopes": _slopes(rows, measured),
        "flagged": _flagged(cfg, rows, measured),
        **_bounds_counted(rows, measured),
        "delta": cfg.approx.delta,
        "gains": _gains(cfg, rows, measured),
        "conventions": {
            "ci95": "half-width of the 95 % t interval over seeds",
            "pairs_per_token": "names without an ending count causal pairs; _bidirectional counts both directions",
            "slope": "log-log slope of error against s, fitted per seed; theory for i.i.d. draws: -1/2; null where an "
            "error is below 1e-6 of the same norm of L*",
            "flagged": "per seed: tail bound below delta at the measured error, or max error above eps(s, n, delta)",
            "bounds_vacuous": "of bounds_checked: tail bounds of 1 at the measured error, and eps(s, n, delta) >= 1",
            "gain": "mean i.i.d. error over mean error at the same s, with the bootstrap 95 % interval over seeds",
        },
    }


def _slopes(rows: Rows, measured: Measured) -> list[dict[str, object]]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row["n"], row["kernel"], row["sampler"]), []).append(index)
    return [
        {
            "n": n,
            "kernel": kernel,
            "sampler": sampler,
            "norm": norm,
            "theory": -0.5 if sampler == "iid" else None,
            **_slope([measured[index] for index in indices], field, _norm_of_l_star(rows[indices[0]], norm)),
        }
        for (n, kernel, sampler), indices in groups.items()
        for norm, field in NORMS.items()
    ]


def _norm_of_l_star(row: dict[str, object], norm: str) -> float:
    return float(row["kernel_norm"]) if norm == "spectral" else 1.0


def _slope(measured: Measured, field: str, norm_of_l_star: float) -> dict[str, object]:
    sizes = [by_seed[0].num_samples for by_seed in measured]
    found = {"slope": None, "slope_ci95": None, "num_samples_fitted": sizes, "seeds": len(measured[0]), "note": ""}
    if len(sizes) < 2:
        return {**found, "note": "a slope needs at least two values of s"}
    errors = [[getattr(one, field) for one in column] for column in zip(*measured, strict=True)]
    if min(map(min, errors)) <= ROUNDING * norm_of_l_star:
        return {**found, "note": "error at rounding level"}
    slope, half = t_interval([loglog_slope(sizes, one) for one in errors])
    return {**found, "slope": slope, "slope_ci95": half, "note": "one seed: no interval" if half is None else ""}


def _flagged(cfg: ApproxCommand, rows: Rows, measured: Measured) -> list[dict[str, object]]:
    """Each seed's violations: {n, kernel, sampler, num_samples, seed, bound, measured, limit, allowed_probability}."""
    found: list[dict[str, object]] = []
    for row, by_seed in zip(rows, measured, strict=True):
        if row["bound_max"] is None:
            continue
        n, size = int(row["n"]), int(row["num_samples"])
        tails = tail_probabilities(row["sigma"], n, by_seed) if row["sigma"] is not None else [1.0] * len(by_seed)
        for seed, (one, tail) in enumerate(zip(by_seed, tails, strict=True), start=cfg.seed):
            where = {key: row[key] for key in ("n", "kernel", "sampler", "num_samples")} | {"seed": seed}
            if tail < cfg.approx.delta:
                found.append(
                    {
                        **where,
                        "bound": "tail",
                        "measured": one.spectral_error,
                        "limit": None,
                        "allowed_probability": tail,
                    }
                )
            if one.max_error > row["bound_max"]:
                allowed = bounds.max_norm_probability(n, size, one.max_error)
                found.append(
                    {
                        **where,
                        "bound": "max",
                        "measured": one.max_error,
                        "limit": row["bound_max"],
                        "allowed_probability": allowed,
                    }
                )
    return found


def _bounds_counted(rows: Rows, measured: Measured) -> dict[str, int]:
    """How many single bounds were compared with a measurement (per row and seed), and how many of them are vacuous.

    A bound is vacuous where it is no better than what always holds: a tail probability of 1, a max error of 1.
    """
    checked = vacuous = 0
    for row, by_seed in zip(rows, measured, strict=True):
        if row["bound_max"] is not None:
            checked += len(by_seed)
            vacuous += len(by_seed) * (float(row["bound_max"]) >= 1.0)
        if row["tail_probability"] is not None:
            tails = tail_probabilities(float(row["sigma"]), int(row["n"]), by_seed)
            checked += len(tails)
            vacuous += sum(tail >= 1.0 for tail in tails)
    return {"bounds_checked": checked, "bounds_vacuous": vacuous}


def _gains(cfg: ApproxCommand, rows: Rows, measured: Measured) -> list[dict[str, object]]:
    """Every sampler against i.i.d. draws at the same n, kernel and s; empty where i.i.d. was not run.

    cost_ratio_*: this sampler's causal pairs per token over those of i.i.d. draws. samples_for_same_error: the i.i.d.
    draws that reach this sampler's mean spectral error, read off a line through the i.i.d. mean errors.
    """
    table = {(row["n"], row["kernel"], row["sampler"], row["num_samples"]): index for index, row in enumerate(rows)}
    found = []
    for (n, kernel, sampler, size), index in table.items():
        base = table.get((n, kernel, "iid", size))
        if sampler == "iid" or base is None:
            continue
        gain: dict[str, object] = {
            "n": n,
            "kernel": kernel,
            "sampler": sampler,
            "num_samples": size,
            "seeds": rows[index]["seeds"],
        }
        for norm, field in NORMS.items():
            gain |= _gain(
                cfg, (n, kernel, sampler, size, norm), _values(measured[base], field), _values(measured[index], field)
            )
        for name in ("draws", "union"):
            key = f"pairs_per_token_{name}"
            gain[f"cost_ratio_{name}"] = rows[index][key] / rows[base][key]
        line = [row for row in rows if (row["n"], row["kernel"], row["sampler"]) == (n, kernel, "iid")]
        gain |= _samples_for_same_error(line, rows[base], float(rows[index]["spectral_error"]))
        found.append(gain)
    return found


def _gain(cfg: ApproxCommand, key: tuple[object, ...], iid: list[float], other: list[float]) -> dict[str, object]:
    norm = key[-1]
    names = (f"gain_{norm}", f"gain_{norm}_low", f"gain_{norm}_high")
    if not any(other):
        return dict.fromkeys(names)
    stream = generator(cfg.seed, "bootstrap", *key)
    return dict(zip(names, ratio_bootstrap(iid, other, resamples=cfg.approx.bootstrap, generator=stream), strict=True))


def _samples_for_same_error(iid: Rows, base: dict[str, object], error: float) -> dict[str, object]:
    """The i.i.d. s with this mean spectral error: off a fitted line, or by the law s^-1/2 where one s was measured."""
    sizes = [float(row["num_samples"]) for row in iid]
    errors = [float(row["spectral_error"]) for row in iid]
    if error <= 0.0 or min(errors) <= 0.0:
        return _same_error(None, "an error is exactly 0", sizes)
    if len(sizes) == 1:
        same = float(base["num_samples"]) * (float(base["spectral_error"]) / error) ** 2
        return _same_error(same, "the law s^-1/2 (one s: no line to fit)", sizes)
    slope, intercept = loglog_line(sizes, errors)
    if slope >= 0.0:
        return _same_error(None, f"the fitted i.i.d. line does not fall (slope {slope:.2f})", sizes)
    return _same_error(
        math.exp((math.log(error) - intercept) / slope), f"the fitted i.i.d. line (slope {slope:.2f})", sizes
    )


def _same_error(samples: float | None, basis: str, sizes: Sequence[float]) -> dict[str, object]:
    beyond = None if samples is None else not min(sizes) <= samples <= max(sizes)
    return {"samples_for_same_error": samples, "samples_basis": basis, "samples_extrapolated": beyond}


def _values(measured: Sequence[Measurement], field: str) -> list[float]:
    return [float(getattr(one, field)) for one in measured]
