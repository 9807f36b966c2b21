"""What `plsh eval` scores: a pretrained model on the last documents of a corpus, or a run's on its held-out ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli import assets, rundir
from plsh_cli.config.schema.biases import ModelBias, OriginalBias
from plsh_cli.config.schema.models import EvalCommand
from plsh_cli.config.schema.train import TrainingCommand
from plsh_cli.data.corpus import Document, documents
from plsh_cli.errors import MessageError, UserError
from plsh_cli.experiments import pretrained, rerun
from plsh_cli.models import restore
from plsh_cli.models.shape import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plsh_cli.evaluation.texts import Text

PRETRAINED_LENGTHS = (256, 512, 1024)
#: What to do where a run's text is another now.
OTHER_TEXT = "or score text of your choice with eval.held_out=false"


@dataclass(frozen=True)
class Source:
    """Where model and text come from, as far as that is known without loading them.

    saved and trained: the run's model and the run's configuration, None for a pretrained model. own: the bias that the
    run's model was trained under. lengths, train_length: in tokens. rope: whether the model reads positions through
    RoPE, or has another limit of its own, `shape.positions`.
    """

    saved: restore.Saved | None
    trained: TrainingCommand | None
    shape: Shape
    own: ModelBias | None
    lengths: list[int]
    train_length: int
    rope: bool

    @property
    def name(self) -> str:
        """The run's name, empty for a pretrained model."""
        return self.saved.name if self.saved else ""

    @property
    def sigma(self) -> list[float] | None:
        """That of the run's recipe, which its own table uses for every bias that has none of its own."""
        return [self.trained.train.sigma] if self.trained and self.trained.train.sigma else None


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


def check_text(cfg: EvalCommand, source: Source) -> None:
    """Raise MessageError where held-out text is to be scored and the files of the run's text are others now."""
    from plsh_cli.experiments import train_text

    if source.saved is None or source.saved.run is None or source.trained is None or not cfg.eval.held_out:
        return
    changed = train_text.corpus_changes(source.saved.run, source.trained)
    if changed:
        raise train_text.refused("eval.run", source.name, changed, OTHER_TEXT)


def open_source(cfg: EvalCommand, source: Source, device: str, say: Callable[[str], None]) -> Opened:
    """The loaded model on its device and the tokenised texts. Raises what loading and reading raise."""
    from plsh_cli.evaluation.texts import text_of

    if source.saved is None:
        opened = pretrained.open_model(cfg.model, device, say, cfg.out)
        label = opened.label
    else:
        opened = pretrained.open_saved(source.saved, cfg.eval.dtype, cfg.model.base, device, say)
        base = opened.details["base"]
        label = f"model of run {source.name}" + (f" (adapter on {base['label']})" if base else "")
    model, tokenizer, details = opened.model, opened.tokenizer, opened.details
    own = source.trained is not None and cfg.eval.held_out
    found = _held_out(source, tokenizer, say) if own else _last_documents(cfg, say)
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
    shape = pretrained.shape_of(cfg.model, cfg.out)
    fitting = [length for length in PRETRAINED_LENGTHS if length <= (shape.positions or length)]
    lengths = cfg.eval.lengths or fitting or [shape.positions or 1]
    _check_corpus(cfg)
    dropped = getattr(cfg.bias, "rope", None) == "drop" and "original" not in (cfg.eval.biases or [])
    train_length = cfg.eval.train_length or min(lengths)
    return Source(None, None, shape, None, sorted(lengths), train_length, not dropped)


def _of_run(cfg: EvalCommand, spec: str) -> Source:
    run = rundir.find(spec, cfg.out)
    trained, _ = rerun.load(run)
    if not isinstance(trained, TrainingCommand):
        raise MessageError(f"eval.run: {run.path} is a run of plsh {trained.command}, which trains no model")
    saved = restore.find(run.path)
    shape = saved.shape(cfg.model.base, pretrained.BASE)
    if not cfg.eval.held_out:
        _check_corpus(cfg)
    lengths = cfg.eval.lengths or [trained.train.context * one for one in trained.multiples]
    own = None if isinstance(trained.bias, OriginalBias) else trained.bias
    train_length = cfg.eval.train_length or trained.train.context
    kept = trained.rope == "keep"
    return Source(saved, trained, shape, own, sorted(lengths), train_length, kept)


def _check_corpus(cfg: EvalCommand) -> None:
    if cfg.data.name != "text":
        assets.find(cfg.data.name, "corpus", "data.name")
    elif cfg.data.path is None:
        raise UserError("data.path", cfg.data.path, "data=text needs the files, a folder or a glob", "data.path=...")


def _held_out(source: Source, tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]) -> list[Document]:
    from plsh_cli.experiments import train_data, train_text

    assert source.trained is not None
    found = train_data.prepare(source.trained, tokenizer, say)
    before = train_text.recorded(source.saved.run) if source.saved and source.saved.run else None
    if before is None:
        say(f"{source.name}: nothing says what text it was trained on; held-out text is what would be held out now")
        return found.texts
    changed = train_text.changes(before, {**found.facts, "documents": found.hashes})
    if changed:
        raise train_text.refused("eval.run", source.name, changed, OTHER_TEXT)
    return found.texts


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
