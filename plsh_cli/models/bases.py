"""The model that an adapter was made for: where it is on this machine, and whether it is still the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from plsh_cli import assets
from plsh_cli.assets.store import home, ready
from plsh_cli.errors import MessageError, PlshError
from plsh_cli.models.adapter import Base
from plsh_cli.models.fingerprint import fingerprint
from plsh_cli.models.shape import Shape, shape_of_folder

#: How a caller of `plsh_cli.models.load` says where a base is.
ARGUMENT = 'base="FOLDER"'


def base_here(base: Base, given: str | Path | None = None, option: str = ARGUMENT) -> Path | None:
    """Return the folder of the base, None where it is still to be fetched.

    given: a folder in place of the recorded one. option: how the user gives it, for messages. Raises MessageError where
    the recorded or the given folder is not there, or holds another model.
    """
    if given is not None:
        folder = Path(os.path.expanduser(given)).absolute()
        if not folder.is_dir():
            raise MessageError(f"{option.partition('=')[0]}: there is no folder {given}")
        return _checked(base, folder, option)
    if base.path is not None and Path(base.path).is_absolute():
        folder = Path(base.path)
        if not folder.is_dir():
            raise MessageError(
                f"the adapter's base was in {folder}, which is not there any more: say where it is now with {option}"
            )
        return _checked(base, folder, option)
    found = list(_cached(base))
    # Of two copies, such as a 4-bit one and the original, the fine-tuned one.
    same = next((folder for folder in found if fingerprint(folder) == base.fingerprint), None)
    return same or (_checked(base, found[0], option) if found else None)


def base_folder(base: Base, given: str | Path | None, say: Callable[[str], None], option: str = ARGUMENT) -> Path:
    """Return the folder of the base, fetched where it is not on this machine; raises as `base_here` and fetching do."""
    found = base_here(base, given, option)
    if found is not None:
        return found
    try:
        folder = _fetched(base, say)
    except PlshError as error:
        raise MessageError(f"the adapter's base cannot be had: {error}; give a copy of it with {option}") from error
    return _checked(base, folder, option)


def base_shape(base: Base, folder: Path | None) -> Shape:
    """Return the sizes of the base, as far as they are known without its files; raises as `shape_of_folder` does."""
    if folder is not None:
        return shape_of_folder(folder)
    if base.name is not None and base.name in assets.ASSETS:
        return Shape(**assets.ASSETS[base.name].shape)
    return Shape()


def _checked(base: Base, folder: Path, option: str) -> Path:
    """The folder; MessageError where it holds another model than the one that the adapter was made for."""
    if fingerprint(folder) != base.fingerprint:
        raise MessageError(
            f"{folder} does not hold the model that the adapter was made for ({base.label}): its weights or its "
            f"config.json are others; give the right one with {option}"
        )
    return folder


def _cached(base: Base) -> Iterator[Path]:
    """Copies of a named base, or of a repository of the hub, that are on this machine."""
    repo = _repo(base)
    if repo is not None:
        for revision in dict.fromkeys((base.revision, base.commit)):
            folder = assets.cached_repo(repo, revision)
            if folder is not None:
                yield folder
    elif base.name is not None:
        yield from (home(source) for source in assets.find(base.name).sources if ready(source))


def _fetched(base: Base, say: Callable[[str], None]) -> Path:
    repo = _repo(base)
    if repo is not None:
        return assets.fetch_repo(repo, base.commit or base.revision, say)
    assert base.name is not None
    return assets.fetch(base.name, say)


def _repo(base: Base) -> str | None:
    """The repository of the hub that the base is from; None for an asset as this program names it."""
    if base.path is not None:
        return base.path
    if base.revision is None or base.name is None:
        return None
    return next((one.repo for one in assets.find(base.name).sources if isinstance(one, assets.Hub)), None)
