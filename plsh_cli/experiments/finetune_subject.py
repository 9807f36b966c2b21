"""The pretrained model of a fine-tuning run: where it comes from, its adapters, and what is saved of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plsh_cli import assets, rundir
from plsh_cli.config.schema.finetune import FinetuneCommand
from plsh_cli.errors import MessageError
from plsh_cli.experiments import pretrained
from plsh_cli.experiments.eval_biases import Variant
from plsh_cli.experiments.train_subject import Stage

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plsh_cli.experiments.train_model import Biased
    from plsh_cli.models.adapter import Base
    from plsh_cli.rundir import RunFolder
    from plsh_cli.training.lora import LoraRecipe

#: In a run folder: the weights that it started from.
BASE = "base.json"
#: About, of English text in vocabularies of 30 to 150 thousand.
_BYTES_PER_TOKEN = 4.4


class Pretrained:
    """A model of the manifest, a folder or the hub, fine-tuned whole or through adapters (lora)."""

    def __init__(self, cfg: FinetuneCommand) -> None:
        self.cfg = cfg
        self._folder: Path | None = None
        self._base: Base | None = None
        self._use_cache: bool | None = None
        self._trainable = 0

    @property
    def bytes_per_token(self) -> float:
        return _BYTES_PER_TOKEN

    @property
    def lora(self) -> LoraRecipe | None:
        from plsh_cli.training.lora import LoraRecipe

        section = self.cfg.lora
        return LoraRecipe(**{**section.model_dump(), "targets": tuple(section.targets)}) if section else None

    def sizes(self) -> PreTrainedConfig | None:
        """From its config.json where it is on this machine, else from the manifest; None of others.

        Raises UserError or MessageError for a model that is unknown or no model.
        """
        folder = self._folder or pretrained.folder_here(self.cfg.model)
        if folder is not None:
            return _configuration(folder)
        asset = None if self.cfg.model.path else assets.ASSETS.get(self.cfg.model.name)
        if asset is None or not asset.architecture:
            return None
        from plsh_cli.training import scratch

        shape = asset.shape
        values: dict[str, object] = {
            **asset.architecture,
            "num_hidden_layers": shape["layers"],
            "num_attention_heads": shape["heads"],
            "num_key_value_heads": shape["kv_heads"],
            "head_dim": shape["head_dim"],
            "max_position_embeddings": shape["positions"],
        }
        return scratch.configuration(values, shape["vocab"])

    def tokenizer(self, say: Callable[[str], None]) -> tuple[PreTrainedTokenizerBase, int]:
        """The model's own, after its files are fetched."""
        from plsh_cli.data.tokenizer import largest_id
        from plsh_cli.models.loading import load_tokenizer

        self._folder = pretrained.fetched_folder(self.cfg.model, say)
        tokenizer, size = load_tokenizer(self._folder), _configuration(self._folder).get_text_config().vocab_size
        if largest_id(tokenizer) >= size:
            raise MessageError(
                f"{self._folder}: the tokenizer has ids up to {largest_id(tokenizer)}, the model {size} embeddings; "
                f"they do not belong together"
            )
        return tokenizer, size

    def note_base(self, run: RunFolder, resumed: bool) -> None:
        """Into base.json, with a checksum of the weights."""
        assert self._folder is not None, "its tokenizer comes first"
        self._base = pretrained.base_of(self.cfg.model, self._folder)
        before = rundir.read_json(run.path / BASE) if resumed else None
        if before is None:
            run.write_json(BASE, asdict(self._base))
        elif before.get("fingerprint") != self._base.fingerprint:
            raise MessageError(
                f"resume: the weights or the config.json in {self._folder} are not those that {run.path.name} was "
                f"begun with; put them back, or start a new run"
            )

    def model(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, say: Callable[[str], None]) -> PreTrainedModel:
        from plsh_cli.models.loading import load_model
        from plsh_cli.training.lora import check_targets

        assert self._folder is not None, "its tokenizer comes first"
        model = load_model(self._folder, self.cfg.model.dtype, say)
        if self.lora is not None:
            check_targets(model, self.lora.targets)
        config = model.config.get_text_config()
        # Training keeps no keys and values; what is saved keeps the model's own way.
        self._use_cache, config.use_cache = getattr(config, "use_cache", None), False
        return model

    def trained(self, model: PreTrainedModel) -> Any:
        from plsh_cli.training.lora import trainable, with_adapters

        lora = self.lora
        whole = model if lora is None else with_adapters(model, lora, self.cfg.seed)
        self._trainable = trainable(whole)
        return whole

    def finish(self, folder: Path, biased: Biased) -> None:
        """Beside an adapter: what it belongs to, and its bias."""
        from plsh_cli.experiments.train_model import description
        from plsh_cli.models.adapter import AdapterRecord, write_record

        config = biased.model.config.get_text_config()
        if self._use_cache is not None:
            config.use_cache = self._use_cache
        if self.lora is None:
            if self._use_cache is not None:
                # The trainer has saved it as it was in training.
                biased.model.config.save_pretrained(folder)
            return
        assert self._base is not None
        (folder / "README.md").unlink(missing_ok=True)  # an empty model card
        spec = description(self.cfg, biased.model.config)
        write_record(folder, AdapterRecord(spec, self.cfg.rope, self.cfg.model.dtype, self._base))

    def variants(self, stage: Stage) -> list[Variant]:
        from plsh_cli.experiments import finetune_final

        return finetune_final.before(self.cfg) if stage == "before" else finetune_final.after(self.cfg)

    def fields(self, stage: Stage) -> dict[str, object]:
        return {"stage": stage, "adapter": self.cfg.bias.name if stage == "after" else None}

    def facts(self) -> dict[str, object]:
        """With lora (null: all weights) and base, one line about the model that it started from."""
        assert self._folder is not None
        record, section = assets.describe(self._folder) or {}, self.cfg.lora
        commit = f" {record['commit'][:12]}" if record.get("commit") else ""
        base = f"{record.get('title', self._folder.name)} ({record.get('origin', 'folder')}{commit})"
        lora = None if section is None else {**section.model_dump(mode="json"), "trainable": self._trainable}
        return {"model": self._folder.name if self.cfg.model.path else self.cfg.model.name, "base": base, "lora": lora}


def _configuration(folder: Path) -> PreTrainedConfig:
    """What config.json in a folder says; MessageError where it cannot be used."""
    from transformers import AutoConfig

    from plsh_cli.models.loading import quiet

    try:
        with quiet():
            return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # wrong numbers end in whatever the arithmetic of the configuration raises
        reason = " ".join(str(error).split())[:200]
        raise MessageError(f"{folder}: its config.json cannot be used: {reason}") from error
