"""A full disk: where a run's files are, nothing can be written about it, so exit codes tell it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Optional

# Exit code of a rank or supervisor that could not write its files because the disk, or the user's share of it, is full.
FULL = errno.ENOSPC
NO_SPACE = "no space left on the disk of the results"
# Of a full disk, and of a user's share of it that is used up.
NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# A disk with less space left counts as full.
FULL_BYTES = 2**20
# The same for files: an attempt has more.
FULL_FILES = 16


def is_full(folder: Path, error: Optional[BaseException] = None) -> bool:
    """Return whether an error is that of a full disk, or the folder's disk is full, as libraries hide the error."""
    if isinstance(error, OSError) and error.errno in NO_SPACE_ERRORS:
        return True
    try:
        found = os.statvfs(str(folder))
    except OSError:
        return False
    no_files = found.f_files > 0 and found.f_favail < FULL_FILES
    return no_files or found.f_bavail * found.f_frsize < FULL_BYTES
