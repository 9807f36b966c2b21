"""A `bias` section, its plain description and the bias that attention takes are one thing."""

from __future__ import annotations

import numpy as np
import pytest

from plsh_cli.attention import Alibi, FixedBlocks, NoBias, Plsh, Window
from plsh_cli.config.schema.biases import AlibiBias, FixedBlocksBias, NoneBias, OriginalBias, PlshBias, WindowBias
from plsh_cli.errors import UserError
from plsh_cli.experiments.biases import attention_bias, bias_spec
from plsh_cli.models.spec import BiasSpec
from plsh_cli.positional import kernels
from plsh_cli.positional.kernels import alibi_slopes
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator

DRAWS = {
    "name": "plsh",
    "kernel": "alibi",
    "sigma": None,
    "a": None,
    "b": None,
    "p": None,
    "table": None,
    "table_name": "table",
    "pitch": "real",
    "sampler": "iid",
    "num_samples": 3,
    "merge": "lse",
    "resample": "step",
    "share_layers": True,
    "exact_when_cheaper": False,
    "rope": None,
}
SECTIONS = [
    PlshBias(**DRAWS),
    PlshBias(**DRAWS | {"sigma": [3.0, 4.0, 5.0], "sampler": "stratified", "merge": "mean"}),
    PlshBias(**DRAWS | {"kernel": "log", "a": [0.5], "b": [1.0, 2.0, 3.0]}),
    PlshBias(**DRAWS | {"kernel": "power", "pitch": "integer"}),
    PlshBias(**DRAWS | {"kernel": "table", "table": [0.5**d for d in range(20)], "pitch": "integer"}),
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.kernel)
def test_a_description_makes_the_same_draws(section):
    bias = attention_bias(section, 3, 20, 7, "step", 2)
    again = BiasSpec.from_dict(bias_spec(section, 3, 20, 7, "step", 2).to_dict()).build(3, 20)
    assert isinstance(bias, Plsh)
    assert (bias.merge, bias.parts.capacity, bias.parts.num_heads) == (section.merge, 20, 3)
    for name in ("widths", "shifts", "weights", "groups"):
        assert np.array_equal(getattr(bias.parts, name), getattr(again.parts, name))


def test_every_head_has_a_stream_of_its_own():
    parts = attention_bias(SECTIONS[0], 3, 20, 7, "step", 2).parts
    for head, slope in enumerate(alibi_slopes(3).tolist()):
        wanted = draw(kernels.alibi(1.0 / slope), 20, 3, generator(7, "draws", "step", 2, head))
        assert np.array_equal(parts.head(head).widths, wanted.widths)


def test_biases_without_draws():
    sigmas = (1.0 / alibi_slopes(3)).tolist()
    assert attention_bias(NoneBias(name="none", rope=None), 3, 20, 0) == NoBias()
    assert attention_bias(AlibiBias(name="alibi", sigma=None, rope=None), 3, 20, 0) == Alibi(sigmas)
    window = WindowBias(name="window", sigma=[4.0], eps=0.1, rope=None)
    assert attention_bias(window, 3, 20, 0) == Window([4.0] * 3, 0.1)
    blocks = FixedBlocksBias(name="fixed_blocks", sigma=[1.0, 2.0, 3.0], rope=None)
    assert attention_bias(blocks, 3, 20, 0) == FixedBlocks([1.0, 2.0, 3.0])
    assert attention_bias(OriginalBias(name="original"), 3, 20, 0) is None


def test_parameters_for_other_heads_name_the_key():
    with pytest.raises(UserError, match=r"bias\.sigma.*one value for all heads or 4"):
        attention_bias(SECTIONS[1], 4, 20, 0)
    with pytest.raises(UserError, match=r"bias\.table.*not usable at n=21"):
        attention_bias(SECTIONS[4], 3, 21, 0)
