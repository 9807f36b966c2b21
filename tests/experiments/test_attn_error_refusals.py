"""What `plsh attn-error` refuses: models with NaN or infinity, and more draws than memory holds."""

from __future__ import annotations

import pytest
from attn_error_cases import N, Run

from plsh_cli.errors import MessageError, UserError
from plsh_cli.experiments import attn_error
from plsh_cli.experiments.attn_error_plan import draw_bytes, estimated_bytes
from plsh_cli.models.shape import Shape

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def damaged(llama, tmp_path):
    """Saves a copy of the model with one weight set, and returns its folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def save(name, index, value):
        model = AutoModelForCausalLM.from_pretrained(llama)
        model.get_parameter(name).data[index] = value
        folder = tmp_path / "damaged"
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(llama).save_pretrained(folder)
        return folder

    return save


@pytest.mark.parametrize(
    ("name", "row", "told"),
    [
        ("model.layers.1.self_attn.q_proj.weight", 5 * 8, "Q of layer 1, head 5,"),
        ("model.layers.2.self_attn.k_proj.weight", 1 * 8, "K of layer 2, key head 1,"),
        ("model.layers.0.self_attn.v_proj.weight", 2 * 8, "V of layer 0, key head 2,"),
        ("lm_head.weight", 3, "logits on the text are not finite"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_damaged_model_is_named_with_layer_and_head(config, damaged, name, row, told, value):
    with pytest.raises(MessageError, match=told):
        attn_error.run(config(f"model.path={damaged(name, row, value)}"), Run())


def test_outputs_that_are_not_finite_name_layer_and_head(config, monkeypatch):
    from plsh_cli.experiments import attn_error_dense as dense

    mixed = dense.row_numbers

    def broken(*args):
        found = mixed(*args)
        found[0][0, N // 2] = float("nan")
        return found

    monkeypatch.setattr(dense, "row_numbers", broken)
    with pytest.raises(MessageError, match="outputs of layer 2, head 0, under plsh are not finite"):
        attn_error.run(config("attn_error.layers=[2]"), Run())


@pytest.mark.parametrize("size", [10**10, 10**15])
def test_more_draws_than_memory_holds_are_refused_before_anything_is_loaded(config, size):
    with pytest.raises(UserError, match=r"attn_error\.num_samples.*the draws need .* use fewer, at most .*--s\)"):
        attn_error.plan(config(f"attn_error.num_samples=[3,{size}]"))


def test_draws_enter_the_planned_memory(config, monkeypatch):
    few, many = (config(f"attn_error.num_samples=[{size}]") for size in (3, 10**8))
    assert draw_bytes(many, []) == 1e8 * (64 + 2 * 32)
    more = [estimated_bytes(cfg, Shape(), 1, []) for cfg in (few, many)]
    assert more[1] - more[0] == pytest.approx(draw_bytes(many, []), rel=0.1)
    # Draws that would fit alone, but not beside the rest.
    monkeypatch.setattr(attn_error, "available_bytes", lambda: int(1.001 * draw_bytes(many, [])))
    with pytest.raises(UserError, match=r"attn_error\.num_samples"):
        attn_error.plan(many)
    monkeypatch.setattr(attn_error, "available_bytes", lambda: 2**20)
    with pytest.raises(UserError, match=r"attn_error\.tokens"):
        attn_error.plan(few)
