"""The training room's parts: order of the data, checkpoints, weights, draws, costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import accelerate
import numpy as np
import pytest
from torch import distributed

from plsh_cli import disk
from plsh_cli.attention import Alibi, FixedBlocks, NoBias, Plsh, Window
from plsh_cli.positional.kernels import alibi, alibi_slopes
from plsh_cli.positional.partitions import stack
from plsh_cli.positional.samplers import draw
from plsh_cli.positional.streams import generator
from plsh_cli.training import checkpoints, cost, scratch, together
from plsh_cli.training.draws import Draws
from plsh_cli.training.held_out import HeldOut, window_losses
from plsh_cli.training.order import KeyedOrder
from plsh_cli.training.statistics import draw_statistics
from plsh_cli.training.watch import Diverged, Watch

VALUES = {
    "model_type": "qwen3",
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 29,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
SIGMAS = [2.0, 5.0, 11.0]


def plsh(n: int, s: int = 7) -> Plsh:
    return Plsh(stack([draw(alibi(sigma), n, s, generator(0, sigma)) for sigma in SIGMAS]))


def test_an_order_is_a_permutation_that_seed_and_epoch_decide():
    order = KeyedOrder(101, 5, batch=4)
    first = list(order)
    assert len(order) == len(first) == 100
    assert len(set(first)) == 100
    assert set(first) <= set(range(101))
    order.set_epoch(1)
    second = list(order)
    assert second != first
    order.set_epoch(0)
    assert list(order) == first
    assert list(KeyedOrder(101, 6, batch=4)) != first
    assert len(KeyedOrder(3, 0, batch=4)) == 0


def test_checkpoints_are_whole_or_skipped(tmp_path):
    assert checkpoints.latest(tmp_path) == (None, [])
    for step in (5, 10, 100):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"x" * step)
        checkpoints.mark(folder)
    (tmp_path / "checkpoint-odd").mkdir()
    assert checkpoints.latest(tmp_path) == (tmp_path / "checkpoint-100", [])
    (tmp_path / "checkpoint-100" / "weights").write_bytes(b"x")
    (tmp_path / "checkpoint-10" / "complete.json").write_text("{")
    found, skipped = checkpoints.latest(tmp_path)
    assert found == tmp_path / "checkpoint-5"
    assert skipped == [
        "checkpoint-100 is skipped: weights has 1 bytes in place of 100",
        "checkpoint-10 is skipped: it was not finished",
    ]


@pytest.mark.parametrize("marker", ["[]", "{}", "null", '"text"', '{"weights": "7"}', "{", ""])
def test_a_marker_that_lists_no_files_is_none(tmp_path, marker):
    (tmp_path / "complete.json").write_text(marker)
    assert checkpoints.trouble(tmp_path) == "it was not finished"


def test_where_the_best_checkpoint_is_damaged_the_best_whole_one_takes_its_place(tmp_path):
    history = [{"step": step, "eval_loss": loss} for step, loss in ((2, 3.0), (4, 1.0), (6, 2.0), (8, 5.0))]
    for step in (2, 4, 6, 8):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"123")
        state = {"best_global_step": min(step, 4), "log_history": [one for one in history if one["step"] <= step]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        checkpoints.mark(folder)
    latest = tmp_path / "checkpoint-8"
    assert checkpoints.best(latest) == (tmp_path / "checkpoint-4", "")
    (tmp_path / "checkpoint-4" / "weights").write_bytes(b"1")
    found, damage = checkpoints.best(latest)
    assert found == tmp_path / "checkpoint-6"
    assert "checkpoint-4, the best so far, cannot be used: weights has 1 bytes" in damage
    for step in (2, 6, 8):
        (tmp_path / f"checkpoint-{step}" / "complete.json").unlink()
    found, damage = checkpoints.best(latest)
    assert found is None
    assert "looked for from here on" in damage
    (latest / "trainer_state.json").write_text("{}")
    assert checkpoints.best(latest) == (None, "")


def test_a_held_out_loss_is_the_mean_over_labels():
    import torch
    from torch.nn.functional import cross_entropy

    logits, labels = torch.randn(5, 7, 11, dtype=torch.float64), torch.randint(11, (5, 7))
    labels[1, 2:], labels[4] = -100, -100
    held_out = HeldOut()
    for rows in (slice(0, 2), slice(2, 5)):
        held_out.add(*window_losses(logits[rows], labels[rows]))
    kept = labels != -100
    assert held_out.loss == pytest.approx(float(cross_entropy(logits[kept].float(), labels[kept])), rel=1e-6)


@pytest.mark.parametrize(
    ("error", "free", "said"),
    [
        (OSError(28, "No space left on device"), 10**9, "the disk is full: No space left on device"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 10**9, "the disk is full: No space"),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), 17, "17 bytes are left"),
        (RuntimeError("[enforce fail at inline_container.cc:664]"), 10**9, "[enforce fail at inline_container.cc:664]"),
    ],
)
def test_a_full_disk_is_said(tmp_path, monkeypatch, error, free, said):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    try:
        raise ValueError("while saving") from error
    except ValueError as outer:
        whole = disk.reason(outer, tmp_path)
    assert said in (whole if "full" in whole else disk.reason(error, tmp_path))
    assert ("full" in whole) == ("full" in said or "left" in said)


@pytest.mark.parametrize("words", ["[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4", "other"])
def test_a_process_that_is_gone_is_named(monkeypatch, words):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(accelerate, "PartialState", lambda **options: None)
    wanted = RuntimeError if words == "other" else together.ProcessEnded
    with pytest.raises(wanted, match="other" if words == "other" else "process 0 ended"), together.group(True):
        raise RuntimeError(words)


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_without_making_them(tied):
    config = scratch.configuration({**VALUES, "tie_word_embeddings": tied}, 53)
    model = scratch.build(config, "float32", 0)
    total, multiplying = scratch.parameters(config)
    assert total == sum(weight.numel() for weight in model.parameters())
    assert total - multiplying == (0 if tied else 53 * 24)


def test_weights_depend_on_the_seed_alone_and_leave_other_streams_alone():
    import torch

    def weights(seed):
        return scratch.build(scratch.configuration(VALUES, 53), "float32", seed).lm_head.weight

    torch.manual_seed(1)
    first, after = weights(3), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "building a model draws nothing from torch's own generator"
    torch.rand(17)
    assert torch.equal(weights(3), first)
    assert not torch.equal(weights(4), first)


@pytest.mark.parametrize("n", [1, 2, 37])
def test_pairs_are_those_that_have_a_weight(n):
    from plsh_cli.attention.inputs import Layout
    from plsh_cli.attention.reference import dense_log_weights

    layout = Layout(n, n, True, 0, None, None)
    for bias in [None, NoBias(), Alibi(SIGMAS), Window(SIGMAS, 0.1), FixedBlocks(SIGMAS), plsh(n)]:
        weights = dense_log_weights(bias or NoBias(), 3, layout).exp().expand(3, n, n)
        assert cost.attended_pairs(bias, 3, n) == int((weights.tril() > 0).sum()), bias


def test_merged_by_mean_every_draw_is_scored_for_itself():
    n, union = 37, plsh(37)
    mean = Plsh(union.parts, "mean")
    starts = [union.parts.block_starts_per_token(head) for head in range(3)]
    by_draw = [(np.arange(n) - of_head + 1).sum(axis=-1) for of_head in starts]
    # Draws of single tokens are alike, and scored as one.
    by_hand = sum(int(draws[draws > n].sum()) + n * bool((draws == n).any()) for draws in by_draw)
    assert cost.attended_pairs(mean, 3, n) == by_hand
    assert cost.attended_pairs(union, 3, n) < by_hand


def test_operations_of_a_dense_step_are_those_of_the_formula():
    config = scratch.configuration(VALUES, 53)
    _, multiplying = scratch.parameters(config)
    pairs = cost.attended_pairs(None, 6, 16)
    assert pairs == 6 * 16 * 17 // 2
    by_hand = 6 * multiplying * 64 + 3 * 4 * (12 * 4 * pairs)
    assert cost.step_flops(config, multiplying, 64, 16, pairs) == by_hand


def test_block_statistics_are_those_of_the_draws():
    n, bias = 41, plsh(41)
    lengths = []
    for head in range(3):
        for blocks in bias.parts.blocks(head):
            lengths += (blocks.end - blocks.start).tolist()
    found = draw_statistics(bias, 3, n)
    assert found["block_mean"] == pytest.approx(np.mean(lengths))
    assert found["block_max"] == max(lengths)
    assert found["pairs_per_token"] == cost.attended_pairs(bias, 3, n) / (3 * n)
    both = draw_statistics([bias, plsh(n, 2)], 3, n)
    assert both["pairs_per_token"] < found["pairs_per_token"]
    assert draw_statistics(Alibi(3.0), 3, n) == draw_statistics(None, 3, n) == {}


class Handle:
    def __init__(self):
        self.given = []

    def set(self, bias, *, spec=None):
        self.given.append(bias)


def test_draws_are_keyed_by_step_and_layer():
    handle = Handle()
    draws = Draws(handle, lambda *key: key, layers=2, share_layers=True, once=False)
    draws.training(7)
    draws.held_out()
    draws.training(8)
    draws.held_out()
    assert handle.given == [("step", 7), ("held-out",), ("step", 8), ("held-out",)]
    assert draws.last == ("step", 8)
    handle = Handle()
    Draws(handle, lambda *key: key, layers=2, share_layers=False, once=False).training(7)
    assert handle.given == [[("step", 7, 0), ("step", 7, 1)]]
    handle = Handle()
    draws = Draws(handle, lambda *key: key, layers=2, share_layers=True, once=True)
    draws.training(7)
    draws.training(8)
    draws.held_out()
    assert handle.given == [("once",)] * 3, "the one set is measured under too"


def test_a_step_is_reported_once_with_its_held_out_loss():
    found = []
    watch = Watch(found.append)
    for step in (1, 2):
        state = SimpleNamespace(global_step=step, num_input_tokens_seen=100 * step)
        watch.on_step_begin(None, state, None)
        state.num_input_tokens_seen += 7 * step
        watch.on_step_end(None, state, None)
        watch.on_log(None, state, None, logs={"loss": 1.0 / step, "grad_norm": 2.0, "learning_rate": 0.1, "epoch": 0.5})
        if step == 1:
            watch.on_log(None, state, None, logs={"eval_loss": 3.0, "epoch": 0.5})
    watch.on_log(None, state, None, logs={"train_runtime": 3.0})
    watch.on_train_end(None, state, None)
    watch.flush()
    assert [(record["step"], record["loss"], record.get("eval_loss")) for record in found] == [
        (1, 1.0, 3.0),
        (2, 0.5, None),
    ]
    assert [record["tokens"] for record in found] == [7, 14]


@pytest.mark.parametrize("name", ["loss", "grad_norm", "eval_loss"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_ends_training(name, value):
    logs = {name: value} if name == "eval_loss" else {"loss": 1.0, "grad_norm": 1.0, name: value}
    with pytest.raises(Diverged, match="at step 9"):
        Watch(lambda record: None).on_log(None, SimpleNamespace(global_step=9), None, logs=logs)


def test_slopes_of_twelve_heads_reach_the_model():
    """gpt_148m has 12 heads, no power of two."""
    from plsh_cli.config import compose
    from plsh_cli.experiments import train_model

    config = compose.compose("train", ["model=gpt_148m", "bias=alibi"])
    assert train_model.bias_for(config, 12, 64).sigma == pytest.approx((1 / alibi_slopes(12)).tolist())


@pytest.mark.parametrize(("model", "millions"), [("tiny", 1.1), ("small", 15), ("gpt_148m", 148), ("qwen3_0.6b", 596)])
def test_models_are_as_large_as_they_say(model, millions):
    from plsh_cli.config import compose
    from plsh_cli.experiments.train_subject import FromScratch

    total, _ = scratch.parameters(FromScratch(compose.compose("train", [f"model={model}"])).sizes())
    assert total / 1e6 == pytest.approx(millions, rel=0.03)


def test_a_marker_lists_every_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"123")
    checkpoints.mark(tmp_path)
    assert json.loads((tmp_path / "complete.json").read_text()) == {"sub/a": 3}


def test_the_trainer_is_imported_without_a_word():
    """With WANDB_MODE=offline, transformers prints a line about W&B as soon as its Trainer is imported."""
    code = "import plsh_cli.training.trainer, plsh_cli.training.draws, peft"
    environment = {**os.environ, "WANDB_MODE": "offline"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    loud = "from transformers import Trainer"
    done = subprocess.run([sys.executable, "-c", loud], env=environment, capture_output=True, text=True, check=True)
    assert "WANDB" in done.stdout, "if this is silent, so may plsh_cli.training.hf_trainer be dropped"
