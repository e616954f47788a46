"""The data-set error, in a module of its own so that the login node can catch it without NumPy."""

from __future__ import annotations


class DataError(ValueError):
    """A data set is missing, incomplete, unreadable or not as configured. The message says what to do."""
