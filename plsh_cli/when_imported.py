"""Calling a function once another module has been imported, without importing it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, module: str, function: str) -> None:
    """Call `module.function()` as soon as the module `name` is imported; at once where it already is.

    `module` is imported only then. A second call with the same arguments changes nothing.
    """
    here = sys.modules.get(name)
    if here is not None and not getattr(here.__spec__, "_initializing", False):
        _call(module, function)
        return
    waiting = _Finder(name, module, function)
    if waiting not in sys.meta_path:
        sys.meta_path.insert(0, waiting)


def _call(module: str, function: str) -> None:
    getattr(importlib.import_module(module), function)()


class _Finder(MetaPathFinder):
    """Lets the other finders find `name`, and calls the function after its loader has run."""

    def __init__(self, name: str, module: str, function: str) -> None:
        self.key = (name, module, function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Finder) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the others find, with a loader that calls the function; None for other modules."""
        if fullname != self.key[0]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, *self.key[1:])
        return spec


class _Loader(Loader):
    """The loader that was found, and the call after it."""

    def __init__(self, loader: Loader, module: str, function: str) -> None:
        self._loader, self._call = loader, (module, function)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader: inspect and pickle ask it for the source.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _call(*self._call)
