"""LoRA: low-rank adapters beside the frozen linear modules of a model (Hu et al. 2021), through peft."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.errors import MessageError
from plsh_cli.positional.streams import generator

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class LoraRecipe:
    """How adapters are made; targets: the modules that get one, by the last part of their names. See conf/lora."""

    r: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    use_rslora: bool


def check_targets(model: nn.Module, targets: tuple[str, ...]) -> None:
    """Raise MessageError, naming the linear modules that there are, where one of `targets` is not among them."""
    there = dict.fromkeys(name.rpartition(".")[2] for name, *_ in _linear(model))
    missing = [name for name in targets if name not in there]
    if missing:
        raise MessageError(
            f"lora.targets: {type(model).__name__} has no linear module {' or '.join(missing)}; it has "
            f"{', '.join(there) or 'none'}: choose among these with lora.targets=[...], or train all weights with "
            f"lora=none"
        )


def adapter_parameters(config: PreTrainedConfig, lora: LoraRecipe) -> int:
    """How many parameters the adapters of a model of this configuration have; no memory is taken.

    Raises MessageError as `check_targets` does.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    check_targets(model, lora.targets)
    return sum(lora.r * (a + b) for name, a, b, _ in _linear(model) if name.rpartition(".")[2] in lora.targets)


def with_adapters(model: PreTrainedModel, lora: LoraRecipe, seed: int) -> PeftModel:
    """The model, in place, with adapters of float32 beside its frozen weights, in whatever type those are.

    At first they change nothing. Their weights depend on the model and `seed` alone: the program's other random numbers
    are neither used nor moved. Raises MessageError as `check_targets` does.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    check_targets(model, lora.targets)
    transposed = any(kind and name.rpartition(".")[2] in lora.targets for name, _, _, kind in _linear(model))
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=sorted(lora.targets),
        use_rslora=lora.use_rslora,
        fan_in_fan_out=transposed,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks the model by a name that transformers will drop.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(int(generator(seed, "init").integers(2**31)))
        return get_peft_model(model, settings, autocast_adapter_dtype=True)


def trainable(model: nn.Module) -> int:
    """How many numbers the optimiser changes."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def _linear(model: nn.Module) -> Iterator[tuple[str, int, int, bool]]:
    """Every linear module that peft knows, but for the output layer: its name, its inputs and outputs, and whether its
    weight is kept transposed (GPT-2's)."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for name, module in model.named_modules():
        if module is head:
            continue
        if isinstance(module, nn.Linear):
            yield name, module.in_features, module.out_features, False
        elif isinstance(module, Conv1D):
            yield name, module.nx, module.nf, True
