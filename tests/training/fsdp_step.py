"""Two processes: one training step of a sharded toy model under positional LSH; the main one prints what came out.

Words after the command: checkpointing, lora (adapters beside frozen weights, which "mixed" keeps in bfloat16).

Run by test_fsdp.py through torchrun. FSDP2 (`fully_shard`) on a mesh of CPUs.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from plsh_cli.models import BiasSpec, use_bias
from plsh_cli.training import scratch
from plsh_cli.training.lora import LoraRecipe, with_adapters

VALUES = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def step(sharded: bool, how: list[str]) -> dict[str, float]:
    """Loss, the sum of all gradients' squares, and the loss after an AdamW step; each process has half of the batch."""
    model = scratch.build(scratch.configuration(VALUES, 61), "bfloat16" if "mixed" in how else "float32", 3)
    handle = use_bias(model, BiasSpec("plsh", num_samples=5, seed=4, capacity=37), rope="drop")
    if "lora" in how:
        with_adapters(model, LoraRecipe(4, 8.0, 0.0, ("q_proj", "k_proj", "v_proj", "o_proj"), False), 3)
    if "checkpointing" in how:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    batch = torch.arange(4 * 37).reshape(4, 37) * 7 % 61
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        rank = distributed.get_rank()
        batch = batch[2 * rank : 2 * rank + 2]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-2)
    first = model(input_ids=batch, labels=batch).loss
    first.backward()
    squares = sum(float(_whole(weight.grad).square().sum()) for weight in trained)
    optimiser.step()
    with torch.no_grad():
        second = model(input_ids=batch, labels=batch).loss
    assert handle.calls >= 4
    return {"loss": _mean(first, sharded), "squares": squares, "after": _mean(second, sharded)}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _mean(loss: torch.Tensor, sharded: bool) -> float:
    value = loss.detach().clone()
    if sharded:
        distributed.all_reduce(value, op=distributed.ReduceOp.SUM)
        value /= distributed.get_world_size()
    return float(value)


def main() -> None:
    """Print {"one": .., "two": ..} for each way, from the main process."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = {"one": step(False, sys.argv[1:]), "two": step(True, sys.argv[1:])}
    if distributed.get_rank() == 0:
        print(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
