"""The smallest sensible runs, shared by tests."""

from __future__ import annotations

#: Overrides of plsh approx: one scale, two s, two seeds.
TOY = ["approx.n=64", "bias.sigma=[2.0]", "approx.num_samples=[2,4]", "approx.seeds=2", "approx.bootstrap=100"]
