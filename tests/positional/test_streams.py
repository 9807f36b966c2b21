"""Random streams: the same numbers everywhere, whatever else is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from plsh_cli.positional.streams import generator


def test_streams_are_the_same_on_every_machine() -> None:
    assert generator(0).random(2).tolist() == [0.6221130488691166, 0.03972073166298218]
    assert generator(0, "partitions", 16.0, 3).random(2).tolist() == [0.3641045964936246, 0.8825465832507422]


def test_numpy_scalars_name_the_same_stream_as_python_numbers() -> None:
    plain = generator(7, "a", 5, 0.25).random(3)
    assert (generator(np.int64(7), np.str_("a"), np.int32(5), np.float64(0.25)).random(3) == plain).all()


def test_every_part_of_the_key_and_the_seed_changes_the_stream() -> None:
    keys = [(), ("a",), ("a", 1), ("a", 1.0), ("a", "1"), ("a1",), ("a", 1, 0)]
    first = [generator(seed, *key).random() for seed in (0, 1) for key in keys]
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("seed", [-1, 1.0, True, "0", None])
def test_a_seed_that_is_no_count_is_refused(seed: object) -> None:
    with pytest.raises(ValueError, match="seed = "):
        generator(seed)


def test_a_key_that_is_no_text_or_number_is_refused() -> None:
    with pytest.raises(ValueError, match="key part"):
        generator(0, ("a", 1))
