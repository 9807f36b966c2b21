"""The sizes of `plsh reproduce`: conf/reproduce/<scale>.yaml lists the steps of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from plsh_cli.config import catalog
from plsh_cli.config.schema.fields import FolderName, Number, Section
from plsh_cli.errors import MessageError, UserError

GROUP = "reproduce"


class Step(Section):
    """One command of a study.

    section: of the report, that its result belongs to. run: the line after `plsh`. minutes: about how long it takes on
    two cores, or None. needs: what a usual machine does not have.
    """

    name: FolderName
    section: Annotated[str, Field(min_length=1)]
    run: Annotated[str, Field(min_length=1)]
    minutes: Annotated[float, Number, Field(ge=0, allow_inf_nan=False)] | None
    needs: str | None = None


class Scale(Section):
    """A study at one size."""

    about: Annotated[str, Field(min_length=1)]
    steps: Annotated[list[Step], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> Scale:
        names = [step.name for step in self.steps]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two steps are called {', '.join(repeated)}")
        return self


def names(extra: Path | None = None) -> list[str]:
    """The scales that there are, those of the user's own folder `extra` included."""
    return catalog.groups(extra).get(GROUP, [])


def load(name: str, extra: Path | None = None) -> Scale:
    """A scale by name; UserError for an unknown one, MessageError where its file is wrong."""
    import yaml

    files = [root / GROUP / f"{name}.yaml" for root in (extra, catalog.conf_dir()) if root is not None]
    file = next((file for file in files if name in names(extra) and file.is_file()), None)
    if file is None:
        raise UserError("--scale", name, f"must be one of {', '.join(names(extra))}")
    try:
        plain = yaml.safe_load(file.read_text(encoding="utf-8"))
        return Scale.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MessageError(f"{file}: {where + ': ' if where else ''}{first['msg']}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise MessageError(f"{file} cannot be read: {' '.join(str(error).split())[:300]}") from None
