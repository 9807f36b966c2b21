"""A description holds a bias: through JSON and back it makes the same one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from model_biases import SIGMAS, draws

from plsh_cli.attention import Alibi, FixedBlocks, NoBias, Plsh, Window
from plsh_cli.models.spec import BiasSpec, describe
from plsh_cli.positional import kernels
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator

SPECS = [
    BiasSpec("none"),
    BiasSpec("alibi"),
    BiasSpec("alibi", parameters=((3.0,),)),
    BiasSpec("window", parameters=tuple((sigma,) for sigma in SIGMAS), eps=0.25),
    BiasSpec("fixed_blocks"),
    BiasSpec("plsh", num_samples=4, sampler="importance", pitch="integer", seed=2, key=("a", 1), share_layers=False),
    BiasSpec("plsh", kernel="power", parameters=((0.5, 0.5),), merge="mean", capacity=64),
    BiasSpec("plsh", kernel="table", table=(1.0, 0.5, 0.25), table_name="mine", pitch="integer"),
]


@pytest.mark.parametrize("spec", SPECS)
def test_survives_json(spec):
    assert BiasSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_holds_only_what_belongs_to_the_bias():
    assert BiasSpec("none").to_dict() == {"name": "none"}
    assert BiasSpec("window", eps=0.1, seed=4).to_dict() == {"name": "window", "eps": 0.1}


def test_draws_come_from_one_stream_per_head():
    spec = BiasSpec("plsh", num_samples=4, seed=2, key=("a", 1))
    parts = spec.build(9, 50, 7).parts
    for head, sigma in enumerate(SIGMAS):
        wanted = draw(kernels.alibi(sigma), 50, 4, generator(2, "draws", "a", 1, 7, head))
        assert np.array_equal(parts.head(head).widths, wanted.widths)
        assert np.array_equal(parts.head(head).shifts, wanted.shifts)


def test_layers_share_draws_or_not():
    shared = BiasSpec("plsh").layers(9, 50, 3)
    assert shared[0] is shared[1] is shared[2]
    apart = BiasSpec("plsh", share_layers=False).layers(9, 50, 3)
    assert len({one.parts.widths.tobytes() for one in apart}) == 3
    alone = BiasSpec("plsh", key=(2,)).build(9, 50)
    assert np.array_equal(apart[2].parts.widths, alone.parts.widths)


def test_a_kernel_of_every_kind():
    for spec in SPECS[5:]:
        bias = spec.build(3, 3)
        assert isinstance(bias, Plsh)
        assert (bias.parts.num_heads, bias.parts.capacity, bias.merge) == (3, 3, spec.merge)


def test_describes_what_has_no_draws():
    for bias in (NoBias(), Alibi(SIGMAS), Alibi(2.0), Window(SIGMAS, 0.5), FixedBlocks(7.0)):
        again = describe(bias).build(9, 50)
        assert type(again) is type(bias)
        assert getattr(again, "eps", None) == getattr(bias, "eps", None)
        if not isinstance(bias, NoBias):
            assert list(np.broadcast_to(again.sigma, 9)) == list(np.broadcast_to(bias.sigma, 9))
    assert describe(draws()) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "rope"}, "must be one of"),
        ({"name": "plsh", "kernel": "cosine"}, "kernel"),
        ({"name": "plsh", "kernel": "log", "parameters": [[1.0]]}, "2 number"),
        ({"name": "alibi", "sigma": 3}, r"unknown keys: \['sigma'\]"),
        ({"seed": 3}, "must have a name"),
        ({"name": "plsh", "num_samples": 0}, "num_samples = 0: must be a whole number, at least 1"),
        ({"name": "plsh", "num_samples": 2.5}, r"num_samples = 2\.5"),
        ({"name": "plsh", "capacity": 0}, "capacity = 0"),
        ({"name": "plsh", "sampler": "sobol"}, "sampler = 'sobol'"),
        ({"name": "plsh", "pitch": "half"}, "pitch = 'half'"),
        ({"name": "plsh", "merge": "max"}, "merge = 'max'"),
        ({"name": "plsh", "kernel": "table", "table": [1.0, 0.5]}, "table kernel has integer widths"),
        ({"name": "window", "eps": 2.0}, r"eps = 2\.0: must be above 0 and at most 1"),
        ({"name": "window", "eps": 0.0}, r"eps = 0\.0"),
    ],
)
def test_other_descriptions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BiasSpec.from_dict(values)


def test_parameters_for_another_number_of_heads():
    with pytest.raises(ValueError, match="for 2 heads, the model has 9"):
        BiasSpec("alibi", parameters=((1.0,), (2.0,))).build(9, 50)
    with pytest.raises(ValueError, match="two numbers"):
        BiasSpec("plsh", kernel="log").build(9, 50)


@pytest.mark.parametrize("sampler", ["iid", "stratified", "importance"])
@pytest.mark.parametrize("pitch", ["real", "integer"])
@pytest.mark.parametrize("kernel", [("alibi", ()), ("log", ((1.0, 0.1),)), ("power", ((0.5, 0.5),))])
def test_draws_that_serve_any_length_do_not_depend_on_the_capacity(sampler, pitch, kernel):
    spec = BiasSpec("plsh", kernel[0], kernel[1], num_samples=40, sampler=sampler, pitch=pitch)
    assert spec.serves_any_length == (pitch == "real" and sampler != "importance")
    few, many = spec.build(9, 20).parts, spec.build(9, 500).parts
    if spec.serves_any_length:
        for name in ("widths", "shifts", "weights", "groups"):
            assert np.array_equal(getattr(few, name), getattr(many, name))


def test_the_package_lists_what_it_exports():
    import plsh_cli.models

    assert set(plsh_cli.models.__all__) <= set(dir(plsh_cli.models))
    assert {"BiasSpec", "use_bias", "capture_qkv"} <= set(dir(plsh_cli.models))
