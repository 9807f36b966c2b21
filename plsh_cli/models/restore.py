"""A saved model with the attention that it was trained under: from a run, its folder `model`, or any saved folder.

Whole models describe their bias in config.json; an adapter does it in plsh.json beside it, with the model it is for.
Nothing is written, and nothing but safetensors and JSON of an adapter is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plsh_cli import rundir
from plsh_cli.errors import MessageError, UserError
from plsh_cli.models.adapter import DTYPES, AdapterRecord, is_adapter, read_record
from plsh_cli.models.bases import ARGUMENT, base_folder, base_here, base_shape
from plsh_cli.models.shape import Shape, shape_of_folder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Where a run keeps its model, and the commands whose runs have one.
MODEL, TRAINING = "model", ("train", "finetune")


@dataclass(frozen=True)
class Saved:
    """Where a saved model is. run: its run's folder, None for other folders. record: None for a whole model."""

    folder: Path
    run: Path | None
    record: AdapterRecord | None

    @property
    def name(self) -> str:
        """The run's name, else the folder's."""
        return (self.run or self.folder).name

    @property
    def dtype(self) -> str:
        """What its weights were held in when it was trained, float32 where nothing says so."""
        if self.record is not None:
            return self.record.dtype
        config = rundir.read_json(self.folder / "config.json") or {}
        found = config.get("dtype") or config.get("torch_dtype")
        return found if found in DTYPES else "float32"

    def shape(self, base: str | Path | None = None, option: str = ARGUMENT) -> Shape:
        """The sizes, without an adapter's own weights; raises MessageError as `base_here` does."""
        try:
            if self.record is None:
                return shape_of_folder(self.folder)
            return base_shape(self.record.base, base_here(self.record.base, base, option))
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            raise MessageError(f"{self.folder}: its sizes cannot be read: {error}") from error


def load(
    place: str | Path,
    *,
    dtype: str | None = None,
    device: str | torch.device = "cpu",
    merge: bool = False,
    base: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model of a run in evaluation mode, under the bias that it was trained under, and its tokenizer.

    place: a finished run of plsh train or plsh finetune, as folder or as part of its name below runs/; the folder
    `model` in it; or any folder that a model was saved in under a bias, or an adapter by plsh finetune. Draws are those
    that the save describes, the same at every load. dtype: "float32", "bfloat16" or "float16"; None: as it was trained.
    merge: add an adapter to the weights, in place of a layer beside them: faster, and equal up to rounding. base: the
    folder of an adapter's base, where it is not where it was. say: told of what is fetched.

    Raises MessageError, in one line, for a run that is not finished or trains no model, a base that is not there or not
    the one that the adapter was made for, and damaged files; UserError for another dtype.
    """
    model, tokenizer = restore(find(place), dtype, base=base, merge=merge, say=say)
    return model.to(device), tokenizer


def find(place: str | Path, out: str = "runs") -> Saved:
    """Return where the model of a place is, as `load` takes it; out: the folder in which runs are looked for by name.

    Raises MessageError where there is no such run or folder, or no model in it.
    """
    folder = Path(os.path.expanduser(place)).absolute()
    if folder.is_dir() and not _is_run(folder):
        if is_adapter(folder):
            return Saved(folder, None, read_record(folder))
        if (folder / "config.json").is_file():
            return Saved(folder, None, None)
        raise MessageError(
            f"{place} holds neither a run (config.yaml), nor a model (config.json), nor an adapter "
            f"(adapter_config.json)"
        )
    run = rundir.find(str(place), out)
    return _of_run(rundir.RunFolder(run.path.absolute()))


def is_saved(place: str, out: str = "runs") -> bool:
    """Whether a text is a run, as folder or as part of the name of one, or the folder of an adapter."""
    folder = Path(os.path.expanduser(place))
    if folder.is_dir():
        return _is_run(folder) or is_adapter(folder)
    return folder.name == place and any(place in run.path.name for run in rundir.every(out))


def restore(
    saved: Saved,
    dtype: str | None = None,
    *,
    base: str | Path | None = None,
    merge: bool = False,
    say: Callable[[str], None] = print,
    option: str = ARGUMENT,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model on the CPU and its tokenizer; the arguments are those of `load`. option: see bases.py."""
    from plsh_cli.models import loading
    from plsh_cli.models.attach import attach

    kind = dtype or saved.dtype
    if kind not in DTYPES:
        raise UserError("dtype", kind, f"must be one of {', '.join(DTYPES)}")
    record = saved.record
    if record is None:
        if base is not None:
            raise MessageError(f"{saved.folder} holds a whole model, {option.partition('=')[0]} is for adapters")
        return loading.load(saved.folder, kind, say)
    folder = base_folder(record.base, base, say, option)
    # The adapter's own tokenizer, which may have been changed for it.
    model = loading.load_model(folder, kind, say)
    tokenizer = loading.load_tokenizer(saved.folder, model)
    _put_under(model, record, saved.folder)
    with loading.quiet():
        return attach(model, saved.folder, merge), tokenizer


def _put_under(model: PreTrainedModel, record: AdapterRecord, folder: Path) -> None:
    """Put the model under the bias of the record, as a model is that was saved and loaded under it."""
    from plsh_cli.models.states import set_state
    from plsh_cli.models.swap import use_bias

    if record.bias is None:
        return
    try:
        use_bias(model, record.bias, rope=record.rope)
    except ValueError as error:
        raise MessageError(f"{folder}: its bias does not fit {type(model).__name__}: {error}") from error
    # Its configuration describes the bias now; without a state of its own, another may be put in its place for a while.
    set_state(model.config.get_text_config(), None)


def _is_run(folder: Path) -> bool:
    """Whether it is a run's folder; some models on the hub have a config.yaml beside their config.json."""
    return (folder / "config.yaml").is_file() and not (folder / "config.json").is_file()


def _of_run(run: rundir.RunFolder) -> Saved:
    status = run.status() or {}
    state, command = status.get("state", "unknown"), status.get("command") or run.path.parent.name
    if command not in TRAINING:
        raise MessageError(f"{run.path} is a run of plsh {command}, which trains no model")
    folder = run.path / MODEL
    whole = (folder / "config.json").is_file()
    if state != "done" or not (whole or is_adapter(folder)):
        more = f"; go on with plsh {command} --resume {run.path.name}" if state in ("failed", "killed") else ""
        raise MessageError(f"{run.path} holds no finished model (state: {state}){more}")
    return Saved(folder, run.path, None if whole else read_record(folder))
