"""Exceptions for errors the user can fix. Standard library only, so that every side can catch them."""

from __future__ import annotations


class UserError(ValueError):
    """An invalid request. The message is one sentence: what was given, what is valid, what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class RankError(RuntimeError):
    """A rank cannot do what its run requests. The message is for the user; the rank exits with 1 and no traceback."""


class DataError(ValueError):
    """A data set is missing, incomplete, unreadable or not as configured. The message says what to do."""
