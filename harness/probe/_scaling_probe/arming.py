"""Does something to a module once the script has loaded it, so that what it never imports costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Arming(MetaPathFinder):
    """A finder that leaves finding to the others and wraps the loading of some modules."""

    def __init__(self, modules: Mapping[str, Callable[[Any], None]]) -> None:
        """modules: what to call with a module, by its name."""
        self._modules = dict(modules)
        sys.meta_path.insert(0, self)
        for name, loaded in self._modules.items():
            if name in sys.modules:
                loaded(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loaded = self._modules.get(fullname)
        if loaded is None:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if finder is self or find_spec is None else find_spec(fullname, path, target)
            if spec is not None:
                _after_loading(spec, loaded)
                return spec
        return None


def _after_loading(spec: ModuleSpec, loaded: Callable[[Any], None]) -> None:
    loader: Any = spec.loader
    exec_module = getattr(loader, "exec_module", None)
    if exec_module is None:
        return

    def execute(module: ModuleType) -> None:
        del loader.exec_module
        exec_module(module)
        loaded(module)

    loader.exec_module = execute
