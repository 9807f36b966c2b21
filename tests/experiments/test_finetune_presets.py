"""The paper's fine-tuning runs: what they compose to, and what they say they need where no model is."""

from __future__ import annotations

import pytest

from plsh_cli import assets
from plsh_cli.config import compose
from plsh_cli.experiments.train_subject import subject_of
from plsh_cli.models.shape import shape_of_config
from plsh_cli.training import lora, scratch

MISTRAL = ["model=mistral_7b", "bias=plsh", "bias.num_samples=15"]


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", str(tmp_path / "cache"))


def test_mistral_as_the_paper_fine_tunes_it():
    config = compose.compose("finetune", MISTRAL)
    train, final = config.train, config.final
    assert (config.data.name, train.join_rows, train.drop_empty, train.context) == ("wikitext103", 1000, True, 4096)
    assert (train.epochs, train.steps, train.batch, train.accumulate) == (5, None, 1, 1)
    assert (train.learning_rate, train.schedule, train.warmup) == (1e-5, "linear", 0.1)
    assert (train.betas, train.adam_eps, train.weight_decay) == ([0.9, 0.999], 1e-8, 0.01)
    assert (config.model.dtype, train.bf16, config.lora, config.rope) == ("bfloat16", False, None, "keep")
    assert (config.bias.num_samples, config.bias.sigma) == (15, [256.0])
    assert (train.eval_every, train.save_every, train.best) == ("epoch", "epoch", True)
    assert (final.lengths, final.windows, final.max_tokens) == ([4096, 8192, 10000, 16384], "paper", None)
    preset = compose.compose("finetune", ["experiment=paper_finetune_mistral"])
    assert preset.model_copy(update={"name": config.name}) == config
    alibi = compose.compose("finetune", ["model=mistral_7b", "bias=alibi"])
    assert alibi.bias.sigma == [256.0]


def test_mistral_with_an_adapter():
    config = compose.compose("finetune", [*MISTRAL, "lora=default"])
    assert (config.lora.r, config.lora.alpha, config.lora.dropout) == (16, 32, 0.05)
    assert config.lora.targets == ["q_proj", "k_proj", "v_proj", "o_proj"]
    preset = compose.compose("finetune", ["experiment=paper_finetune_mistral_lora"])
    assert preset.model_copy(update={"name": config.name}) == config
    whole = compose.compose("finetune", MISTRAL)
    assert config.model_copy(update={"lora": None}) == whole


def test_transfer_has_the_settings_of_the_training_from_scratch():
    config, scratch_run = (
        compose.compose("finetune", ["model=qwen3_0.6b"]),
        compose.compose("train", ["model=qwen3_0.6b"]),
    )
    own = {"drop_empty", "eval_windows", "threads"}
    assert config.train.model_dump(exclude=own) == scratch_run.train.model_dump(exclude=own)
    assert config.bias.sigma == scratch_run.bias.sigma == [256.0]
    assert (config.lengths, config.final.windows) == (scratch_run.lengths, scratch_run.final.windows)
    assert (config.rope, scratch_run.rope, config.lora, config.drop_empty) == ("keep", "drop", None, False)
    preset = compose.compose("finetune", ["experiment=paper_transfer_qwen3"])
    assert preset.model_copy(update={"name": config.name}) == config


@pytest.mark.parametrize("name", [name for name, asset in assets.ASSETS.items() if asset.architecture])
def test_the_manifest_knows_the_whole_architecture(name, empty):
    """The sizes in it give the parameters that the published weights have."""
    config = subject_of(compose.compose("finetune", [f"model={name}"])).sizes()
    total, _ = scratch.parameters(config)
    assert total == assets.ASSETS[name].shape["parameters"]
    shape = shape_of_config(config.to_dict(), total)
    assert {key: value for key, value in vars(shape).items() if value is not None} == assets.ASSETS[name].shape


@pytest.mark.parametrize(
    ("more", "parameters", "gibibytes"),
    [
        # 2 bytes each of weights, gradients and two averages of 7.25e9 parameters are 54 GiB.
        ([], "7,248,023,552 parameters", (54, 100)),
        # 14.5e9 bytes of weights, and 12 bytes for each of 13.6e6 numbers of the adapter's.
        (["lora=default", "train.gradient_checkpointing=true"], "beside 13,631,488 of an adapter", (13.7, 20)),
    ],
    ids=["all weights", "lora"],
)
def test_mistral_is_planned_where_it_is_not(plsh, empty, tmp_path, monkeypatch, more, parameters, gibibytes):
    from plsh_cli.experiments import train_speed

    monkeypatch.setattr(train_speed, "_measured_share", lambda *arguments: 0.5)
    done = plsh("finetune", *MISTRAL, *more, "--dry-run")
    assert parameters in done.text
    needed = float(done.text.partition("memory: about ")[2].split()[0])
    assert gibibytes[0] < needed < gibibytes[1]
    steps = int(done.text.partition("# steps: ")[2].split()[0].replace(",", ""))
    assert 100_000 < steps < 200_000
    assert "mistralai/Mistral-7B-v0.3 of the Hugging Face hub" in done.text
    assert "days in all" in done.text
    if done.code:
        # The plan is printed first, and then that it does not fit here.
        assert done.code == 2
        assert "train.context = 4096: needs about" in done.err
    assert not list(tmp_path.glob("runs/*"))


def test_operations_of_an_adapter_are_fewer(empty):
    from plsh_cli.experiments import train_plan

    whole, adapter = (compose.compose("finetune", [*MISTRAL, *more]) for more in ([], ["lora=default"]))
    config = subject_of(whole).sizes()
    counts = [train_plan.counts_of(subject_of(one), config) for one in (whole, adapter)]
    assert counts[1].adapter == 13_631_488 == lora.adapter_parameters(config, subject_of(adapter).lora)
    flops = [train_plan.flops_of(one, config, count, 0) for one, count in zip((whole, adapter), counts, strict=True)]
    # Of 7.11e9 multiplications per token the gradient of the weights (2 of 6 operations) is not formed.
    assert flops[0] == 6 * counts[0].multiplying * 4096
    assert flops[1] == (4 * counts[0].multiplying + 6 * 13_631_488) * 4096
