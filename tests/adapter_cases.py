"""Toy bases and LoRA adapters as plsh finetune leaves them, made with peft alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import toy

from plsh_cli.data.tokenizer import byte_tokenizer
from plsh_cli.models.adapter import AdapterRecord, Base, write_record
from plsh_cli.models.fingerprint import fingerprint
from plsh_cli.models.spec import BiasSpec
from plsh_cli.rundir import RunFolder

SIGMAS = tuple((float(2 + head),) for head in range(9))
#: Every bias that a model can be fine-tuned under; None keeps the base's attention.
BIASES = {
    "original": None,
    "none": BiasSpec("none"),
    "alibi": BiasSpec("alibi", parameters=SIGMAS),
    "window": BiasSpec("window", parameters=SIGMAS, eps=0.05),
    "fixed_blocks": BiasSpec("fixed_blocks", parameters=SIGMAS),
    "plsh": BiasSpec("plsh", parameters=SIGMAS, num_samples=7, seed=3, key=("saved",), capacity=128),
}
#: Sum to 1e-5 of the largest logit in float32, whose own rounding is 6e-8 of it per operation.
TOLERANCE = 1e-5


def save_base(folder: Path, name: str = "llama", seed: int = 0, dtype=torch.float32, **changes) -> Path:
    """A toy model that reads bytes, its weights moved away from those of other seeds."""
    model = toy.toy_model(name, vocab_size=257, **changes)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * torch.randn_like(weight)
    model.to(dtype).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_adapter(
    folder: Path, base: Path, bias: str = "plsh", rope: str = "keep", dtype: str = "float32", seed: int = 1
) -> AdapterRecord:
    """An adapter with random weights, as large as the base's."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True, dtype=torch.float32)
    torch.manual_seed(seed)
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
        whole = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=names))
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if "lora_" in name:
                weight.copy_(0.2 * torch.randn_like(weight))
    whole.save_pretrained(folder, save_embedding_layers=False)
    byte_tokenizer().save_pretrained(folder)
    record = AdapterRecord(BIASES[bias], rope, dtype, Base(None, str(base.absolute()), None, None, fingerprint(base)))
    write_record(folder, record)
    return record


def save_run(out: Path, base: Path, name: str = "toy", state: str = "done", command: str = "finetune", **how) -> Path:
    """A run's folder with an adapter in it, and a config.yaml that only says which command it is of."""

    def fill(run: RunFolder) -> None:
        run.write_text("config.yaml", f"command: {command}\n")
        run.set_status(state, command=command, host="elsewhere")

    run = RunFolder.create(str(out), command, name, fill)
    save_adapter(run.path / "model", base, **how)
    return run.path


def logits(model, ids):
    with torch.inference_mode():
        return model(input_ids=ids).logits.float()


def ids(length: int = 61):
    return torch.randint(0, 257, (2, length), generator=torch.Generator().manual_seed(5))


def assert_close(one, two, tolerance: float = TOLERANCE) -> None:
    """Logits differ by no more than `tolerance` of the largest."""
    moved = float((one - two).abs().max() / two.abs().max())
    assert moved <= tolerance, moved
