"""Named ranges of a rank's time: `with span("data"): ...`, for a trace or a profiler to show. Standard library only.

While nobody shows them a range is a context manager that does nothing, and costs the steps that are measured next to
nothing (docs/recording.md).
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterator

Span = Callable[[str], ContextManager[Any]]

_NOTHING: ContextManager[Any] = contextlib.nullcontext()


def _not_shown(name: str) -> ContextManager[Any]:
    return _NOTHING


_show: Span = _not_shown


def span(name: str) -> ContextManager[Any]:
    """Around what the range is to show, on the thread that trains."""
    return _show(name)


def show(by: Span) -> None:
    """From here on, to the end of the process."""
    global _show
    _show = by


@contextlib.contextmanager
def shown(by: Span) -> Iterator[None]:
    before = _show
    show(by)
    try:
        yield
    finally:
        show(before)


def around(name: str, call: Callable[[], None]) -> Callable[[], None]:
    """`call`, in a range of its own each time."""

    def ranged() -> None:
        with span(name):
            call()

    return ranged
