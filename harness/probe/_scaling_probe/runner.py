"""Executes the user's script or module as Python itself would, with the hooks in place."""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from types import CodeType, ModuleType
from typing import Any

from _scaling_probe import session
from _scaling_probe.ending import Refused, exit_now
from _scaling_probe.function_steps import FunctionSteps


def run(command: list[str]) -> None:
    """Run `script arguments…` or `-m module arguments…`.

    Ends as the script ends, with its exit code or traceback. After a stop, or if the training is refused, the process
    ends here.
    """
    recorder = session.begin()
    functions = FunctionSteps(recorder)
    if recorder is not None:
        session.arm(recorder, functions.modules)
    try:
        code, main = _module(command, functions) if command[:1] == ["-m"] else _script(command, functions)
        sys.modules["__main__"] = main
        exec(code, main.__dict__)
    except BaseException as error:
        if recorder is not None:
            recorder.broke_off(f"{type(error).__name__}: {error}")
        _leave_if_ended(recorder)
        if not isinstance(error, SystemExit):
            _hide_frames()
        elif error.code in (None, 0):
            _finish(recorder)
        raise
    _finish(recorder)


def _finish(recorder: Any) -> None:
    _leave_if_ended(recorder)
    if recorder is not None:
        try:
            recorder.script_ended()
        except Refused:
            _leave_if_ended(recorder)


def _leave_if_ended(recorder: Any) -> None:
    """After the probe has ended the training: exit, whatever the user's code made of the exception."""
    if recorder is not None and recorder.ended is not None:
        atexit._run_exitfuncs()
        exit_now(recorder.ended.code)


def _hide_frames() -> None:
    """Show tracebacks without the frames of this file and of scaling_probe_run.py."""
    show = sys.excepthook
    folder = os.path.dirname(__file__)

    def without_ours(kind: Any, value: Any, traceback: Any) -> None:
        while traceback is not None and _is_ours(traceback.tb_frame.f_code, folder):
            traceback = traceback.tb_next
        show(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = without_ours


def _is_ours(code: CodeType, folder: str) -> bool:
    return code.co_filename.startswith((folder, os.path.join(os.path.dirname(folder), "scaling_probe_run.py")))


def _script(command: list[str], functions: FunctionSteps) -> tuple[CodeType, ModuleType]:
    """As `python script`: https://docs.python.org/3/using/cmdline.html."""
    path = command[0]
    sys.argv[:] = command
    file = os.path.abspath(path)
    if not _safe_path():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with open(file, "rb") as source:
            text = source.read()
    except OSError as error:
        print(f"error: cannot read the script {path}: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    main.__dict__.update(__file__=file, __loader__=loader, __package__=None, __cached__=None, __builtins__=builtins)
    return functions.compile(text, file, os.path.splitext(os.path.basename(path))[0]), main


def _module(command: list[str], functions: FunctionSteps) -> tuple[CodeType, ModuleType]:
    """As `python -m module`."""
    if len(command) < 2:
        print("error: -m needs the name of a module", file=sys.stderr)
        raise SystemExit(2)
    name = command[1]
    if not _safe_path():
        sys.path.insert(0, os.getcwd())
    sys.argv[:] = ["-m", *command[2:]]
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec(name + ".__main__")
    loader: Any = spec.loader if spec is not None else None
    if spec is None or not hasattr(loader, "get_code"):
        print(f"error: no module named {name}, or it cannot be executed", file=sys.stderr)
        raise SystemExit(1)
    sys.argv[0] = spec.origin or name
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=spec.origin,
        __loader__=loader,
        __package__=spec.parent,
        __cached__=spec.cached,
        __spec__=spec,
        __builtins__=builtins,
    )
    if functions.in_main(name):
        return functions.compile(loader.get_data(spec.origin), spec.origin or name, name), main
    return loader.get_code(spec.name), main


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def _safe_path() -> bool:
    """Python was told not to look for modules beside the script."""
    return bool(getattr(sys.flags, "safe_path", False))
