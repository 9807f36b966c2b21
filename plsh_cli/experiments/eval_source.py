"""What `plsh eval` scores: a pretrained model on the last documents of a corpus, or a run's on its held-out ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import assets, rundir
from plsh_cli.config.schema.biases import ModelBias, OriginalBias
from plsh_cli.config.schema.models import EvalCommand
from plsh_cli.config.schema.train import TrainCommand
from plsh_cli.data.corpus import Document, documents
from plsh_cli.errors import MessageError, UserError
from plsh_cli.experiments import pretrained, rerun
from plsh_cli.models.shape import Shape, shape_of_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plsh_cli.evaluation.texts import Text

#: Where a training run keeps its model.
MODEL = "model"
PRETRAINED_LENGTHS = (256, 512, 1024)
RUN_MULTIPLES = (1, 2, 4)


@dataclass(frozen=True)
class Source:
    """Where model and text come from, as far as that is known without loading them.

    folder and trained: the run and its configuration, None for a pretrained model. own: the bias that the run's model
    was trained under. lengths, train_length: in tokens. rope: whether the model reads positions through RoPE, or has
    another limit of its own, `shape.positions`.
    """

    folder: Path | None
    trained: TrainCommand | None
    shape: Shape
    own: ModelBias | None
    lengths: list[int]
    train_length: int
    rope: bool

    @property
    def name(self) -> str:
        """The run's name, empty for a pretrained model."""
        return self.folder.name if self.folder else ""


@dataclass(frozen=True)
class Opened:
    """A loaded model and the texts to score, each with a line about it and details for result.json."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    label: str
    details: dict[str, Any]
    texts: list[Text]
    text_label: str
    text_details: dict[str, Any]


def source_of(cfg: EvalCommand) -> Source:
    """Model and text that the configuration names. Raises MessageError for a run that is not there or has no model yet,
    UserError for names that are unknown and lengths that the model cannot read."""
    source = _pretrained(cfg) if cfg.eval.run is None else _of_run(cfg, cfg.eval.run)
    limit, longest = source.shape.positions, max(source.lengths)
    if source.rope and limit is not None and longest > limit:
        allowed = f"is more than the {limit} tokens that this model's positions allow (max_position_embeddings)"
        raise UserError("eval.lengths", longest, allowed, "--lengths")
    return source


def open_source(cfg: EvalCommand, source: Source, device: str, say: Callable[[str], None]) -> Opened:
    """The loaded model on its device and the tokenised texts. Raises what loading and reading raise."""
    from plsh_cli.evaluation.texts import text_of

    if source.folder is None:
        opened = pretrained.open_model(cfg.model, device, say)
        model, tokenizer, label, details = opened.model, opened.tokenizer, opened.label, opened.details
    else:
        model, tokenizer = _load_run(source.folder, cfg.model.dtype, device)
        label, details = f"model of run {source.name}", {"name": source.name, "source": str(source.folder)}
    own = source.trained is not None and cfg.eval.held_out
    found = _held_out(source, say) if own else _last_documents(cfg, say)
    text_label, names = _text_label(cfg, source, own, len(found)), [document.name for document in found]
    if cfg.eval.windows == "paper":
        found = [Document("all, joined", " ".join(document.text for document in found))]
    try:
        texts = [text_of(tokenizer, document.name, document.text) for document in found]
    except ValueError as error:
        raise MessageError(f"{label}: {error}") from None
    facts = {"corpus": cfg.data.name if not own else source.trained.data.name, "documents": names, "held_out": own}
    return Opened(model, tokenizer, label, details, texts, text_label, facts)


def _pretrained(cfg: EvalCommand) -> Source:
    shape = pretrained.shape_of(cfg.model)
    fitting = [length for length in PRETRAINED_LENGTHS if length <= (shape.positions or length)]
    lengths = cfg.eval.lengths or fitting or [shape.positions or 1]
    _check_corpus(cfg)
    dropped = getattr(cfg.bias, "rope", None) == "drop" and "original" not in (cfg.eval.biases or [])
    train_length = cfg.eval.train_length or min(lengths)
    return Source(None, None, shape, None, sorted(lengths), train_length, not dropped)


def _of_run(cfg: EvalCommand, spec: str) -> Source:
    from plsh_cli.experiments import train_model

    run = rundir.find(spec, cfg.out)
    trained, _ = rerun.load(run)
    if not isinstance(trained, TrainCommand):
        raise MessageError(f"eval.run: {run.path} is a run of plsh {trained.command}, which trains no model")
    try:
        shape = shape_of_folder(run.path / MODEL)
    except (OSError, ValueError):
        state = (run.status() or {}).get("state", "unknown")
        raise MessageError(f"eval.run: {run.path} holds no finished model (state: {state})") from None
    if not cfg.eval.held_out:
        _check_corpus(cfg)
    lengths = cfg.eval.lengths or [trained.train.context * one for one in RUN_MULTIPLES]
    own = None if isinstance(trained.bias, OriginalBias) else trained.bias
    train_length = cfg.eval.train_length or trained.train.context
    kept = train_model.rope(trained) == "keep"
    return Source(run.path, trained, shape, own, sorted(lengths), train_length, kept)


def _check_corpus(cfg: EvalCommand) -> None:
    if cfg.data.name != "text":
        assets.find(cfg.data.name, "corpus", "data.name")
    elif cfg.data.path is None:
        raise UserError("data.path", cfg.data.path, "data=text needs the files, a folder or a glob", "data.path=...")


def _load_run(folder: Path, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from plsh_cli.models.load import load

    model, tokenizer = load(folder / MODEL, dtype)
    return model.to(device), tokenizer


def _held_out(source: Source, say: Callable[[str], None]) -> list[Document]:
    from plsh_cli.experiments import train_data

    assert source.trained is not None
    return train_data.prepare(source.trained, say).texts


def _last_documents(cfg: EvalCommand, say: Callable[[str], None]) -> list[Document]:
    place: Any = cfg.data.path if cfg.data.name == "text" else assets.fetch(cfg.data.name, say)
    found = list(documents(cfg.data.name, place, "validation"))
    return found if cfg.eval.documents is None else found[-cfg.eval.documents :]


def _text_label(cfg: EvalCommand, source: Source, own: bool, count: int) -> str:
    if own:
        assert source.trained is not None
        return f"{count} held-out documents of {source.trained.data.name}"
    part = f"the last {count}" if cfg.eval.documents is not None else f"all {count}"
    return f"{part} documents of {cfg.data.name}{' (validation)' if cfg.data.name == 'wikitext103' else ''}"
