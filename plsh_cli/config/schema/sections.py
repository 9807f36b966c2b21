"""The sections that several commands' configurations share, and what every command's holds."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plsh_cli.config.schema.architecture import Architecture
from plsh_cli.config.schema.fields import Device, FolderName, Number, Section, Seed


class Logger(Section):
    """Where metrics go besides metrics.jsonl."""

    mode: Literal["offline", "online", "disabled"]
    project: Annotated[str, Field(min_length=1)]
    entity: str | None
    group: str | None
    tags: list[str]


class Command(Section):
    """What every command's configuration holds.

    flags: which key each flag of the command line stands for. options: the options of a configuration group that fit
    the command, where not all do. implied: overrides that come with another one, unless their keys are given too.
    """

    flags: ClassVar[dict[str, str]] = {}
    options: ClassVar[dict[str, list[str]]] = {}
    implied: ClassVar[dict[str, list[str]]] = {}

    command: str
    name: FolderName
    seed: Seed
    device: Device
    out: Annotated[str, Field(min_length=1)]
    logger: Logger


class Model(Section):
    """A model: a name from the asset manifest, or a folder or hub id as path, at a revision of the hub."""

    name: Annotated[str, Field(min_length=1)]
    path: Annotated[str, Field(min_length=1)] | None
    revision: Annotated[str, Field(min_length=1)] | None
    dtype: Literal["float32", "bfloat16", "float16"]
    architecture: Architecture | None


class OpenedModel(Model):
    """A model that is opened as it is: path may also be a run of plsh train or finetune, by folder or part of its name.

    base: where the base of an adapter is now, if it has moved.
    """

    base: Annotated[str, Field(min_length=1)] | None = None


class Data(Section):
    """A text corpus: a name from the asset manifest, or `text` with the user's own files, folders or globs as path."""

    name: Annotated[str, Field(min_length=1)]
    path: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)] | None
    document: Annotated[int, Number]
