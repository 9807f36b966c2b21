"""The typed schema of every command's configuration.

Each section validates its own ranges when it is built; `plsh_cli.config.check` turns a failure into one message.
"""

from __future__ import annotations

from plsh_cli.config.schema.compare import CompareCommand
from plsh_cli.config.schema.finetune import FinetuneCommand
from plsh_cli.config.schema.lab import ApproxCommand, AttnErrorCommand, BenchAttentionCommand, BenchMatrixCommand
from plsh_cli.config.schema.models import EvalCommand
from plsh_cli.config.schema.sections import Command
from plsh_cli.config.schema.train import TrainCommand

SCHEMAS: dict[str, type[Command]] = {
    "approx": ApproxCommand,
    "attn_error": AttnErrorCommand,
    "bench_matrix": BenchMatrixCommand,
    "bench_attention": BenchAttentionCommand,
    "train": TrainCommand,
    "finetune": FinetuneCommand,
    "eval": EvalCommand,
    "compare": CompareCommand,
}

FLAGS: dict[str, dict[str, str]] = {command: schema.flags for command, schema in SCHEMAS.items()}
