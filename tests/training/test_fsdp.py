"""Our model and attention under FSDP2's `fully_shard` on a mesh of two CPU processes.

Through Trainer FSDP2 needs GPUs; `train.fsdp=true` turns it on there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Losses in bfloat16 have 8 bits; the sum over shards is formed in another order.
_MIXED = 2**-8


@pytest.mark.parametrize(
    "how", [[], ["checkpointing"], ["lora"], ["lora", "checkpointing"], ["lora", "mixed"]], ids=" ".join
)
def test_a_sharded_step_is_that_of_one_process(how):
    script = Path(__file__).parent / "fsdp_step.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run([*launcher, str(script), *how], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    mixed = _MIXED if "mixed" in how else 0.0
    assert found["two"]["loss"] == pytest.approx(found["one"]["loss"], rel=1e-6 + mixed)
    assert found["two"]["squares"] == pytest.approx(found["one"]["squares"], rel=1e-5 + 2 * mixed)
    assert found["two"]["after"] == pytest.approx(found["one"]["after"], rel=1e-5 + mixed)
    assert found["one"]["after"] < found["one"]["loss"]


def test_the_recipe_turns_fsdp2_on(tmp_path):
    from plsh_cli.config import compose
    from plsh_cli.experiments import train_plan
    from plsh_cli.training import recipe

    config = compose.compose("train", ["train.fsdp=true"])
    made = recipe.arguments(train_plan.recipe(config), tmp_path, 0, cpu=True)
    assert made.fsdp is True
    assert made.fsdp_plugin_args["fsdp_version"] == 2
