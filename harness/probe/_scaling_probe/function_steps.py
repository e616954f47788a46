"""Steps that are the calls of a function which the user names: workload.step=<module>:<function>."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

from _scaling_probe.recorder import HOOKS, Recorder

# Name in the script's globals of the decorator that is put on its function.
DECORATOR = "__scaling_probe_step__"


class FunctionSteps:
    """Attributes: `modules`, what to do when a module of the script has been loaded, by its name."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        step = recorder.settings.step if recorder is not None else None
        self._module, function = "", ""  # of workload.step
        if step is not None and ":" in step:
            self._module, _, function = step.rpartition(":")
        # Of a method, its class before it.
        self._path: list[str] = function.split(".")
        self.modules: dict[str, Callable[[Any], None]] = {}
        if self._module not in ("", "__main__"):
            self.modules[self._module] = self._wrap

    def in_main(self, name: str) -> bool:
        """The function is in the script, which is called `name` or __main__."""
        return bool(self._module) and self._module in (name, "__main__")

    def compile(self, source: bytes, file: str, name: str) -> CodeType:
        """Compile the script, with the function decorated if it is defined there."""
        if not self.in_main(name):
            return compile(source, file, "exec", dont_inherit=True)
        tree = ast.parse(source, file)
        body: list[Any] = tree.body
        for depth, part in enumerate(self._path):
            found: list[Any] = [n for n in ast.walk(ast.Module(body, [])) if getattr(n, "name", None) == part]
            wanted = (ast.FunctionDef,) if depth == len(self._path) - 1 else (ast.ClassDef,)
            found = [node for node in found if isinstance(node, wanted)]
            if not found:
                break
            body = found[-1].body
        else:
            self._decorate(found)
        return compile(tree, file, "exec", dont_inherit=True)

    def _decorate(self, definitions: list[Any]) -> None:
        setattr(builtins, DECORATOR, self.counted)
        for definition in definitions:
            decorator = ast.copy_location(ast.Name(DECORATOR, ast.Load()), definition)
            # Outside of what compiles the function, but inside of what makes it a method.
            kinds = {getattr(node, "id", None) for node in definition.decorator_list}
            place = len(definition.decorator_list) if kinds & {"staticmethod", "classmethod"} else 0
            definition.decorator_list.insert(place, decorator)

    def _wrap(self, module: Any) -> None:
        owner = module
        for part in self._path[:-1]:
            owner = getattr(owner, part, None)
        function = getattr(owner, self._path[-1], None)
        if function is None:
            if self._recorder is not None:
                self._recorder.refuse(f"workload.step: {self._module} has no function {'.'.join(self._path)}")
            return
        setattr(owner, self._path[-1], self.counted(function))

    def counted(self, function: Any) -> Any:
        """The function, whose returns end a step."""
        name, recorder = f"{self._module}:{'.'.join(self._path)}", self._recorder

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if recorder is not None and (recorder.active or recorder.ended) and recorder.method == HOOKS:
                recorder.seen[name] = recorder.seen.get(name, 0) + 1
                recorder.step(name)
            return result

        return call
