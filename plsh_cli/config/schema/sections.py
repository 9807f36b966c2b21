"""The sections that several commands' configurations share, and what every command's holds."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

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
    the command, where not all do.
    """

    flags: ClassVar[dict[str, str]] = {}
    options: ClassVar[dict[str, list[str]]] = {}

    command: str
    name: FolderName
    seed: Seed
    device: Device
    out: Annotated[str, Field(min_length=1)]
    logger: Logger


class Model(Section):
    """A pretrained model: a name from the asset manifest, or a folder."""

    name: Annotated[str, Field(min_length=1)]
    path: str | None
    dtype: Literal["float32", "bfloat16", "float16"]


class Data(Section):
    """A text corpus: a name from the asset manifest."""

    name: Annotated[str, Field(min_length=1)]
    document: Annotated[int, Number]
