"""What there is to run, and what this machine can run it with: `plsh ls` and `plsh doctor`."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from rich.table import Table

from plsh_cli import __version__, console, provenance, tracking
from plsh_cli.config import catalog, check, compose
from plsh_cli.config.schema import SCHEMAS
from plsh_cli.experiments.memory import gibibytes


def listing(extra: Path | None) -> None:
    """Print every command with its groups, options and experiments."""
    compose.search_path(extra)
    out = console.output()
    presets = catalog.experiments(extra)
    commands = Table(
        "command", "groups: options", "experiments", title="commands with a configuration", title_justify="left"
    )
    for command, schema in SCHEMAS.items():
        own = [
            f"{group}: {', '.join(options)}"
            for group, options in compose.group_options(command, extra).items()
            if group in schema.model_fields
        ]
        names = [preset.name for preset in presets if preset.command in (command, None)]
        commands.add_row(f"plsh {check.spelled(command)}", "\n".join(own), "\n".join(names))
    out.print(commands)
    about = Table("experiment", "what it is", title="experiments: plsh COMMAND experiment=NAME", title_justify="left")
    for preset in presets:
        about.add_row(preset.name, preset.description)
    out.print(about)
    named = Table("key", "one of", title="keys that take a name", title_justify="left")
    choices = {key: names for schema in SCHEMAS.values() for key, names in check.choices(schema).items()}
    for key, names in choices.items():
        named.add_row(key, ", ".join(names))
    out.print(named)
    out.print("every key of a command with its value: plsh config COMMAND")


def doctor() -> None:
    """Print what a bug report needs and what can run here."""
    out = console.output()
    table = Table("what", "here", title=f"plsh {__version__}", title_justify="left")
    environment = provenance.environment()
    table.add_row("python", str(environment["python"]))
    table.add_row("platform", str(environment["platform"]))
    table.add_row("processor", f"{environment['processor']}, {environment['cores']} cores")
    memory = provenance.memory_bytes()
    table.add_row("memory", "unknown" if memory is None else gibibytes(memory))
    for name in provenance.PACKAGES:
        table.add_row(name, provenance.version(name) or "not installed")
    for name, text in {**_devices(), **_backends(), **_wandb(), **_folders()}.items():
        table.add_row(name, text)
    out.print(table)


def _devices() -> dict[str, str]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"devices": f"torch does not load: {error}"}
    found = [f"cpu ({torch.get_num_threads()} threads)"]
    found += [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return {"devices": ", ".join(found)}


def _backends() -> dict[str, str]:
    compiler = next(
        (path for path in map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")) if path), None
    )
    return {
        "matrix backend: scipy": "can run (cpu)",
        "matrix backend: torch": "can run"
        if importlib.util.find_spec("torch")
        else "cannot run: torch is not installed",
        "C++ compiler": compiler or "none found",
        **_attention_backends(),
    }


def _attention_backends() -> dict[str, str]:
    """Each attention backend and whether it can run here, without compiling anything."""
    if importlib.util.find_spec("torch") is None:
        return {"attention backends": "cannot run: torch is not installed"}
    import torch

    from plsh_cli.attention import BACKENDS
    from plsh_cli.attention.build import KernelBuildError, find_compiler

    states = dict.fromkeys(BACKENDS, "can run")
    try:
        find_compiler()
        states["fused"] = "can run (cpu; float32, bfloat16, float16; compiled on first use)"
    except KernelBuildError as error:
        states["fused"] = f"cannot run: {error}"
    if importlib.util.find_spec("triton") is None:
        states["triton"] = "cannot run: pip install 'plsh-cli[triton]'"
    elif not torch.cuda.is_available():
        states["triton"] = "cannot run: no CUDA device"
    states["augmented"] = "can run (exact causal ALiBi)"
    return {f"attention backend: {name}": state for name, state in states.items()}


def _wandb() -> dict[str, str]:
    state = tracking.state()
    return {
        "W&B server": str(state["server"]),
        "W&B key": "found: logger.mode=online can run"
        if state["key"]
        else "none: logger.mode=offline (default) or disabled",
    }


def _folders() -> dict[str, str]:
    from plsh_cli import assets

    cache = assets.cache_folder()
    held = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) if cache.is_dir() else 0
    ready = [name for name in assets.ASSETS if assets.cached(name)]
    return {
        "configuration": str(catalog.conf_dir()),
        "runs": str(Path("runs").resolve()),
        "asset cache": f"{cache} ({gibibytes(held)} used; ready: {', '.join(ready) or 'nothing'})",
    }
