"""Identity of the code of the user's own training: part of a run's id, and checked again when the run starts.

Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import List, Optional, Tuple

from harness.core.workload.spec import SCRIPT

DIGITS = 12
SECONDS = 60  # limit of a git command, which may read a large repository on a slow file system


def of_command(kind: str, command: Tuple[str, ...], shell: bool, cwd: Path, python: str) -> str:
    """Return the identity of the code that a command of the user's own runs; empty if unknown.

    Args:
        kind: SCRIPT or COMMAND.
        command: as in WorkloadSpec.
        shell: `command` is one text for a shell.
        cwd: working directory.
        python: interpreter of the environment, in which a module may be; empty if unknown.
    """
    if kind == SCRIPT:
        path = _module(command[1], cwd, python) if command[0] == "-m" else cwd / command[0]
        return identity(path) if path else ""
    words = command[0].split() if shell else list(command)
    program = shutil.which(words[0]) if os.sep not in words[0] else None
    # Behind an interpreter or a launcher, the script is an argument.
    for path in (*([Path(program)] if program else []), *(cwd / word for word in words)):
        if path.is_file() and (found := program_identity(path)):
            return found
    return ""


def _module(name: str, cwd: Path, python: str) -> Optional[Path]:
    """Find a module's file in the working directory or the environment, without importing it; None if not found."""
    parts = name.split(".")
    folders = [cwd, cwd / "src"]
    if os.sep in python:
        folders += sorted(Path(python).parent.parent.glob("lib/python3*/site-packages"))
    for folder in folders:
        base = folder.joinpath(*parts)
        for path in (base.with_name(f"{base.name}.py"), base / "__main__.py", base / "__init__.py"):
            if path.is_file():
                return path
    return None


def identity(path: Path) -> str:
    """Return the identity of a script's code.

    For a script that git tracks: 'git:<commit>', followed by '+<hash>' of the changed tracked files, if there are any.
    Untracked files do not count. For other scripts: 'file:<hash>'. Empty if there is no such file.
    """
    return _of_repository(path) or of_file(path)


def program_identity(path: Path) -> str:
    """Return the identity of a program: as for a script, but empty for an untracked file without a `#!` line."""
    return _of_repository(path) or (of_file(path) if _starts_as_script(path) else "")


def _of_repository(path: Path) -> str:
    """Return the identity of the repository that tracks the file; empty if none does."""
    folder = path.resolve().parent
    if _git(folder, "ls-files", "--error-unmatch", "--", path.resolve().name) is None:
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    top = _git(folder, "rev-parse", "--show-toplevel")
    # Not `git diff` as text, which depends on the user's settings.
    changed = _git(folder, "diff", "HEAD", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-relative")
    if commit is None or top is None or changed is None:
        return ""
    name = f"git:{os.fsdecode(commit).strip()}"
    files = [os.fsdecode(file) for file in changed.split(b"\0") if file]
    return name + (f"+{_hash_of_files(Path(os.fsdecode(top.rstrip(bytes([10])))), files)}" if files else "")


def _hash_of_files(top: Path, files: List[str]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(os.fsencode(file) + b"\0" + of_file(top / file).encode() + b"\0")
    return digest.hexdigest()[:DIGITS]


def of_file(path: Path) -> str:
    """Return the hash of a file's content; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for piece in iter(lambda: file.read(2**20), b""):
                digest.update(piece)
    except OSError:
        return ""
    return f"file:{digest.hexdigest()[:DIGITS]}"


def _starts_as_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _git(folder: Path, *arguments: str) -> Optional[bytes]:
    """Return git's output; None if it fails or there is no git."""
    # Without optional locks: git is not to write to the user's repository.
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
