"""A saved model as a folder for others: whole, for transformers, or its adapter alone, for peft and plsh.

The folder says how it is loaded, and its logits are compared with those of the model that it was made from.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli.errors import MessageError, PlshError
from plsh_cli.models.bases import ARGUMENT
from plsh_cli.models.restore import Saved, restore
from plsh_cli.models.saved import FIELD, NAME

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

#: What may differ in float32, relative to the largest logit: the rounding of a product in another order.
_ROUNDING = 1e-4
_CHECK_TOKENS = 64
#: Of a training run's folder, what is of no use outside it.
_LEFT_OUT = ("training_args.bin", "README.md")


@dataclass(frozen=True)
class Exported:
    """What was written. code: the Python lines that give the model; settings: in words, what they set.

    difference: the largest one of a logit from the run's model on `tokens` tokens, and `largest` the largest logit; all
    0 where an adapter is copied. A float32 model is compared with the run's in float32. dtype: of the weights.
    """

    folder: Path
    code: str
    settings: str
    dtype: str
    difference: float = 0.0
    largest: float = 0.0
    tokens: int = 0


def export(
    saved: Saved,
    to: Path,
    *,
    merge: bool = False,
    dtype: str | None = None,
    base: str | Path | None = None,
    say: Callable[[str], None] = print,
    option: str = ARGUMENT,
) -> Exported:
    """Write the model into the folder `to`, which must be new or empty, and return what is to be said of it.

    merge: an adapter is added to its base's weights; without it the adapter alone is written, with plsh.json beside it.
    A whole model is written whole. dtype: of the weights, None for the base's. Written beside `to` and renamed, so that
    nothing stays behind where it fails. Raises MessageError for a folder that is not empty or cannot be written, a
    `dtype` for an adapter alone, and whatever cannot be restored; PlshError where float32 logits are not the run's.
    """
    alone = saved.record is not None and not merge
    if alone and dtype is not None:
        raise MessageError("an adapter is written as it is; a dtype is for whole models, with --merge")
    to = Path(os.path.realpath(os.path.expanduser(to)))  # behind a link: a folder does not take a link's place
    if os.path.lexists(to) and not (to.is_dir() and not any(to.iterdir())):
        raise MessageError(f"{to} exists and is not an empty folder; give another one")
    with _beside(to) as made:
        # Also an adapter that is only copied: what cannot be loaded is not handed on. What is written in float32 is
        # compared in float32.
        reference = dtype if dtype == "float32" else None
        model, tokenizer = restore(saved, reference, base=base, say=say, option=option)
        if alone:
            _copy(saved.folder, made)
            done = Exported(to, _load_code(to, saved), _settings_of(model, True), saved.dtype)
        else:
            ids = _check_ids(model)
            wanted = _logits(model, ids)
            del model
            model, _ = restore(saved, dtype, base=base, merge=True, say=say, option=option)
            _save(model, tokenizer, made)
            del model
            done = _compared(saved, to, made, dtype or saved.dtype, ids, wanted)
        (made / "README.md").write_text(_readme(saved, done), encoding="utf-8")
        _open_to_read(made)
    return done


@contextmanager
def _beside(to: Path) -> Iterator[Path]:
    """A folder beside `to` that takes its place when the body is done; MessageError where it cannot be written."""
    from safetensors import SafetensorError

    made: Path | None = None
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
        yield made
        os.replace(made, to)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MessageError(f"{to} cannot be written ({reason}); nothing was kept") from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _copy(source: Path, made: Path) -> None:
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name not in _LEFT_OUT:
            shutil.copyfile(file, made / file.name)


def _save(model: PreTrainedModel, tokenizer: Any, made: Path) -> None:
    from plsh_cli.models.loading import quiet

    with quiet():
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)


def _compared(saved: Saved, to: Path, made: Path, dtype: str, ids: torch.Tensor, wanted: torch.Tensor) -> Exported:
    """What the written folder gives, read back; PlshError where it is not the run's model."""
    from plsh_cli.models import loading

    model, _ = loading.load(made, dtype)
    moved, largest = float((_logits(model, ids) - wanted).abs().max()), float(wanted.abs().max())
    # Not the other way round: NaN is refused too.
    if dtype == "float32" and not moved <= _ROUNDING * largest:
        raise PlshError(f"the exported model's logits are off by {moved:.3g}, the largest is {largest:.3g}: not kept")
    code, words = _transformers_code(to, made, dtype), _settings_of(model, False)
    return Exported(to, code, words, dtype, moved, largest, ids.shape[1])


def _check_ids(model: PreTrainedModel) -> torch.Tensor:
    import torch

    config = model.config.get_text_config()
    count = min(_CHECK_TOKENS, getattr(config, "max_position_embeddings", None) or _CHECK_TOKENS)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.get_input_embeddings().num_embeddings, (1, count), generator=generator)


def _logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits.float()


def _transformers_code(to: Path, made: Path, dtype: str) -> str:
    """The lines that load a whole model with transformers."""
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    ours = NAME in str(config.get("attn_implementation"))
    attention = f', attn_implementation="{NAME}"' if ours else ""
    head = ["import plsh_cli  # makes the attention known to transformers"] if ours else []
    return "\n".join(
        [
            *head,
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained({_quoted(to)}{attention}, dtype="{dtype}")',
            f"tokenizer = AutoTokenizer.from_pretrained({_quoted(to)})",
        ]
    )


def _load_code(to: Path, saved: Saved) -> str:
    """The lines that put an adapter on its base."""
    assert saved.record is not None
    return "\n".join(
        [
            "from plsh_cli.models import load",
            "",
            f'# Its base is {saved.record.base.label}; a copy elsewhere is given as base="FOLDER".',
            f"model, tokenizer = load({_quoted(to)})",
        ]
    )


def _settings_of(model: PreTrainedModel, alone: bool) -> str:
    """What must be set to get the run's logits, in words."""
    config = model.config.get_text_config()
    values = getattr(config, FIELD, None)
    if values is None or config._attn_implementation != NAME:
        return "the model's own attention, nothing to set"
    drawn = f", {values['num_samples']} {values['sampler']} draws, seed {values['seed']}" if "seed" in values else ""
    dropped = "plsh_none" in str(getattr(config, "rope_parameters", None))
    kept = "plsh.json" if alone else f'config.json and taken by attn_implementation="{NAME}"'
    return f"bias {values['name']}{drawn}, RoPE {'dropped' if dropped else 'kept'}; stored in {kept}"


def _readme(saved: Saved, done: Exported) -> str:
    what = "An adapter" if saved.record is not None and not done.tokens else "A model"
    return (
        f"# {saved.name}\n\n{what} written by `plsh export`. Attention: {done.settings}.\n\n"
        f"```python\n{done.code}\n```\n"
    )


def _open_to_read(folder: Path) -> None:
    """Give files and folder the permissions that new ones have; safetensors and tempfile keep theirs to the owner."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for file in folder.iterdir():
        file.chmod(0o666 & ~mask)


def _quoted(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)
