"""A task of lm-evaluation-harness from files alone, on a model under a bias."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch

from plsh_cli import attention
from plsh_cli.errors import MessageError
from plsh_cli.evaluation import tasks
from plsh_cli.models import use_bias

HERE = Path(__file__).parent / "tasks"

needs_harness = pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")
# The harness and the libraries behind it warn of things of their own.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The task files, with the place of their data filled in; the data set cache of the test alone."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "tasks"
    shutil.copytree(HERE, made)
    file = made / "plsh_capitals.yaml"
    file.write_text(file.read_text().replace("PLACE", str(made)))
    return made


@pytest.fixture
def byte_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    from plsh_cli.data.tokenizer import byte_tokenizer

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2, "max_position_embeddings": 256}
    config = LlamaConfig(vocab_size=257, num_attention_heads=3, num_key_value_heads=1, initializer_range=0.3, **sizes)
    return LlamaForCausalLM(config).eval(), byte_tokenizer()


def wanted_accuracy(model, tokenizer):
    """The share of questions whose right answer has the largest sum of ln p, from plain forward passes."""
    import json

    right = []
    for line in (HERE / "capitals.jsonl").read_text().splitlines():
        one = json.loads(line)
        scores = []
        for choice in one["choices"]:
            before, ids = (tokenizer(text)["input_ids"] for text in (one["question"], one["question"] + choice))
            with torch.inference_mode():
                log_p = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), -1)
            scores.append(sum(float(log_p[at - 1, ids[at]]) for at in range(len(before), len(ids))))
        right.append(scores.index(max(scores)) == one["answer"])
    return sum(right) / len(right)


@needs_harness
@pytest.mark.parametrize("bias", [None, attention.Alibi(3.0)])
def test_accuracy_is_that_of_plain_passes_under_the_bias(byte_model, folder, bias):
    model, tokenizer = byte_model
    handle = use_bias(model, bias) if bias is not None else None
    options = {"folder": folder, "limit": None, "max_length": 128, "batch": 3, "seed": 0}
    calls = handle.calls if handle else None
    (record,) = tasks.run_tasks(model, tokenizer, ["plsh_capitals"], **options)
    assert (record["task"], record["metric"], record["examples"]) == ("plsh_capitals", "acc", 5)
    if handle is not None:
        assert handle.calls > calls
    assert record["value"] == pytest.approx(wanted_accuracy(model, tokenizer))
    assert 0 < record["stderr"] < 0.5


@needs_harness
def test_an_unknown_task_is_refused_by_name(byte_model):
    options = {"folder": None, "limit": None, "max_length": 128, "batch": 3, "seed": 0}
    with pytest.raises(MessageError, match="no task plsh_rivers"):
        tasks.run_tasks(*byte_model, ["plsh_rivers"], **options)


def test_without_the_harness_one_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MessageError, match=r"pip install 'plsh-cli\[eval\]'"):
        tasks.check_installed()
