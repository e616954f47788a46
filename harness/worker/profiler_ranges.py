"""Named ranges of a rank's time, `with span("data"): ...`, shown in a trace or profiler. Standard library only.

Unless something shows them they cost next to nothing (docs/recording.md).
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
    """Return a context manager for the range `name`, on the thread that trains."""
    return _show(name)


def show(by: Span) -> None:
    """Show ranges from now until the process ends."""
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
    """Return `call` wrapped in a range."""

    def ranged() -> None:
        with span(name):
            call()

    return ranged
