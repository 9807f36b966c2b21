"""What a run trains: in which the two commands that train differ, `plsh train` here and `plsh finetune` elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from plsh_cli.config.schema.finetune import FinetuneCommand
from plsh_cli.config.schema.train import TrainCommand, TrainingCommand
from plsh_cli.errors import UserError
from plsh_cli.experiments.eval_biases import Variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plsh_cli.experiments.train_model import Biased
    from plsh_cli.rundir import RunFolder
    from plsh_cli.training.lora import LoraRecipe

Stage = Literal["before", "after"]
BYTE_VOCABULARY = 257
_ASSUMED_VOCABULARY, _BYTES_PER_TOKEN = 50_000, 4.4


class Subject(Protocol):
    """The model of a run, from its sizes to its files. lora: how its adapters are made, None where all is trained."""

    cfg: TrainingCommand
    lora: LoraRecipe | None

    @property
    def bytes_per_token(self) -> float:
        """Of text, about."""
        ...

    def sizes(self) -> PreTrainedConfig | None:
        """The model's configuration as far as a plan needs it; None where it is only known once it is fetched."""
        ...

    def tokenizer(self, say: Callable[[str], None]) -> tuple[PreTrainedTokenizerBase, int]:
        """The tokenizer and how many ids the model knows."""
        ...

    def note_base(self, run: RunFolder, resumed: bool) -> None:
        """Write down which weights a run begins with; MessageError where one goes on from others. After `tokenizer`."""
        ...

    def model(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, say: Callable[[str], None]) -> PreTrainedModel:
        """The model as it is before training, without a bias of ours, on the CPU."""
        ...

    def trained(self, model: PreTrainedModel) -> Any:
        """What the trainer is given: the model with its adapters, if it has any, in place."""
        ...

    def finish(self, folder: Path, biased: Biased) -> None:
        """Complete the folder that the trainer saved into; only in the main process."""
        ...

    def variants(self, stage: Stage) -> list[Variant]:
        """The biases that the model is scored under before and after training."""
        ...

    def fields(self, stage: Stage) -> dict[str, object]:
        """What a row of the result says of the weights that it scores."""
        ...

    def facts(self) -> dict[str, object]:
        """What the summary says of the model beside what it says of every one."""
        ...


def subject_of(cfg: TrainingCommand) -> Subject:
    """What a configuration trains."""
    from plsh_cli.experiments.finetune_subject import Pretrained

    if isinstance(cfg, FinetuneCommand):
        return Pretrained(cfg)
    assert isinstance(cfg, TrainCommand)
    return FromScratch(cfg)


class FromScratch:
    """A decoder with fresh weights; all of them are trained."""

    lora = None

    def __init__(self, cfg: TrainCommand) -> None:
        assert cfg.model.architecture is not None
        self.cfg, self._architecture = cfg, cfg.model.architecture

    @property
    def bytes_per_token(self) -> float:
        return 1.0 if self._architecture.tokenizer == "bytes" else _BYTES_PER_TOKEN

    def sizes(self) -> PreTrainedConfig:
        """With a guess at the vocabulary where only the tokenizer knows it; UserError for one that is too small."""
        self._check_vocabulary()
        guess = BYTE_VOCABULARY if self._architecture.tokenizer == "bytes" else _ASSUMED_VOCABULARY
        return self._configuration(None, self._architecture.vocab_size or guess)

    def tokenizer(self, say: Callable[[str], None]) -> tuple[PreTrainedTokenizerBase, int]:
        from plsh_cli.data.tokenizer import check_vocabulary, largest_id, load_tokenizer

        tokenizer = load_tokenizer(self._architecture.tokenizer)
        size = self._architecture.vocab_size or largest_id(tokenizer) + 1
        check_vocabulary(tokenizer, size)
        return tokenizer, size

    def note_base(self, run: RunFolder, resumed: bool) -> None:
        """Its weights come from the seed."""

    def model(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, say: Callable[[str], None]) -> PreTrainedModel:
        from plsh_cli.training import scratch

        return scratch.build(self._configuration(tokenizer, vocab_size), self.cfg.model.dtype, self.cfg.seed)

    def trained(self, model: PreTrainedModel) -> PreTrainedModel:
        return model

    def finish(self, folder: Path, biased: Biased) -> None:
        """Nothing is left to do."""

    def variants(self, stage: Stage) -> list[Variant]:
        """None before; after, its own, and exact ALiBi in place of draws that stand for it."""
        from plsh_cli.experiments.train_final import exact_variant, own_variant

        if stage == "before":
            return []
        return [own_variant(self.cfg), *(exact_variant(self.cfg) if self.cfg.final.exact else [])]

    def fields(self, stage: Stage) -> dict[str, object]:
        return {}

    def facts(self) -> dict[str, object]:
        return {"model": self.cfg.model.name}

    def _check_vocabulary(self) -> None:
        """Compare with a tokenizer that is here; one of the hub is compared when it has been fetched."""
        from plsh_cli.data.tokenizer import check_vocabulary, load_tokenizer

        name, size = self._architecture.tokenizer, self._architecture.vocab_size
        if size is not None and (name == "bytes" or Path(name).is_dir()):
            check_vocabulary(load_tokenizer(name), size)

    def _configuration(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> PreTrainedConfig:
        """The transformers configuration; UserError where transformers refuses its values."""
        from plsh_cli.training import scratch

        values = self._architecture.model_dump(exclude={"tokenizer"})
        try:
            return scratch.configuration(values, vocab_size, tokenizer)
        except (ValueError, TypeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            allowed = f"transformers refuses it: {reason}"
            raise UserError("model.architecture", self.cfg.model.name, allowed) from None
