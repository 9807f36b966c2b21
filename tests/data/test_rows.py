"""Rows joined into documents."""

from __future__ import annotations

import numpy as np
import pytest

from plsh_cli.data.rows import joined_rows
from plsh_cli.errors import UserError

ROWS = ["", " = Title = \n", " “text” one \n", "", "  ", *[f" row {i} \n" for i in range(18)]]


@pytest.mark.parametrize("per_document", [1, 7, 23, 1000])
def test_every_row_once_in_the_shuffled_order(per_document):
    found = list(joined_rows(iter(ROWS), per_document=per_document))
    order = [ROWS[i] for i in np.random.default_rng(42).permutation(len(ROWS))]
    wanted = [" ".join(order[i : i + per_document]) for i in range(0, len(order), per_document)]
    assert [document.text for document in found] == wanted
    assert len({document.name for document in found}) == len(found)


def test_the_shuffle_is_that_of_datasets():
    datasets = pytest.importorskip("datasets")
    shuffled = datasets.Dataset.from_dict({"text": ROWS}).shuffle(seed=42)["text"]
    (document,) = joined_rows(ROWS)
    assert document.text == " ".join(shuffled)


def test_empty_rows_are_dropped_before_the_shuffle():
    kept = [row for row in ROWS if row.strip()]
    (document,) = joined_rows(ROWS, drop_empty=True)
    assert document.text == " ".join(kept[i] for i in np.random.default_rng(42).permutation(len(kept)))


def test_without_a_seed_the_order_stays():
    assert [document.text for document in joined_rows(ROWS, seed=None, per_document=2)][:2] == [
        " ".join(ROWS[:2]),
        " ".join(ROWS[2:4]),
    ]


@pytest.mark.parametrize("rows", [[], ["", ""]])
def test_no_text(rows):
    assert "".join(document.text for document in joined_rows(rows)).strip() == ""
    assert list(joined_rows(rows, drop_empty=True)) == []


def test_documents_of_no_row():
    with pytest.raises(UserError, match="at least 1 row"):
        list(joined_rows(ROWS, per_document=0))
