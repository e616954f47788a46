"""The error of this package, apart from the rest so that the login node can catch it without NumPy."""

from __future__ import annotations


class DataError(ValueError):
    """A data set is absent, incomplete, unreadable or not what the configuration says; the message says what to do."""
