"""Stages an environment on the nodes' local disks (cluster.stage_environment): packed once, unpacked by every job.

On a shared file system every rank's imports open thousands of small files. Here each node reads one large file itself
(tar) or receives a copy from Slurm (sbcast, harness/node/broadcast.py). The environment is packed on submission and
unpacked by a step of the batch script (tar: `python -m harness.node.stage`, one task per node) into a folder whose name
contains the job id. The last supervisor on a node deletes the folder; the batch script deletes it on nodes where no
supervisor did (harness/launch/options.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from typing import Any

from harness.core.errors import UserError
from harness.core.spec import Site

NONE, TAR, SBCAST = "none", "tar", "sbcast"
FOLDER = "environments"
KEY = "cluster.stage_environment"
# Set by the batch script. STAGED: path of the folder without the node's name, which each node appends. BEGAN, ENDED:
# unix seconds. BROADCAST: seconds spent in sbcast.
STAGED = "HARNESS_STAGED"
ARCHIVE = "HARNESS_STAGE_ARCHIVE"
BEGAN = "HARNESS_STAGE_BEGAN"
ENDED = "HARNESS_STAGE_ENDED"
BROADCAST = "HARNESS_STAGE_BROADCAST"
# Starting and ending Python takes about 10 ms.
CHECK_SECONDS = 60.0


def pack(study_folder: Path, environment: Path, say: Callable[[str], None]) -> Path:
    """Return the archive of an environment in its current state, creating it if necessary.

    The caller holds the study's lock. A changed environment gets a new archive; queued jobs keep theirs. Raises
    UserError.
    """
    fingerprint = _fingerprint(environment)
    archive = study_folder / FOLDER / f"{environment.name}-{fingerprint}.tar.gz"
    if archive.exists():
        return archive
    partial = archive.with_name(f".{archive.name}.{os.getpid()}")
    began = time.monotonic()
    # gzip level 1: a node unpacks it faster than the shared file system delivers it (docs/sites.md).
    argv = ["tar", "--use-compress-program=gzip -1", "-cf", str(partial), "-C", str(environment), "."]
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(argv, capture_output=True, text=True)
        # 1: a file changed while being read. Running jobs write byte code; any other change shows in the fingerprint.
        if done.returncode not in (0, 1):
            raise UserError(f"{KEY}: {environment} cannot be packed: {_last_line(done.stderr)}")
        if _fingerprint(environment) != fingerprint:
            raise UserError(f"{KEY}: {environment} changed while it was being packed; run the command again")
        partial.replace(archive)
    except OSError as error:
        raise UserError(f"{KEY}: {environment} cannot be packed into {archive.parent}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    size = archive.stat().st_size / 1e6
    say(f"packed the environment {environment.name} in {time.monotonic() - began:.1f} s: {archive} ({size:.0f} MB)")
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an environment into a new folder and check that its Python starts. Raises UserError, leaving nothing
    behind."""
    make_folder(folder)
    try:
        done = subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], capture_output=True, text=True)
        if done.returncode != 0:
            raise UserError(f"{archive} cannot be unpacked into {folder}: {_last_line(done.stderr)}")
        python = folder / "bin" / "python"
        try:
            started = subprocess.run([python, "-c", "pass"], capture_output=True, text=True, timeout=CHECK_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"{python} does not start here: {error}") from None
        if started.returncode != 0:
            raise UserError(f"{python} does not start here: {_last_line(started.stderr)}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def make_folder(folder: Path, shared: bool = False) -> None:
    """Create the job's folder. shared: accept an existing one that only this user can access. Raises UserError."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        if not (shared and isinstance(error, FileExistsError) and _is_private(folder)):
            raise UserError(
                f"{folder} cannot be created: {error.strerror}; set cluster.stage_folder to another one"
            ) from None


@contextlib.contextmanager
def staged_site(site: Site, environ: Mapping[str, str]) -> Iterator[Site]:
    """Yield the site as a rank on this node needs it: with the staged interpreter, if the environment is staged.

    The last process to leave on a node deletes the folder. The lock is the kernel's, so it disappears with its process.
    """
    if site.stage_environment == NONE:
        yield site
        return
    folder = node_folder(environ)
    if folder is None:
        setting = f"{KEY}={site.stage_environment}"
        sys.exit(f"error: {setting}, but this job's batch script has not staged the environment; run the command again")
    # If the folder is gone, starting the rank fails and reports it.
    handle = os.open(folder, os.O_RDONLY) if folder.is_dir() else None
    if handle is not None:
        fcntl.flock(handle, fcntl.LOCK_SH)
    yield replace(site, python=str(folder / "bin" / "python"))
    if handle is not None:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def staging_record(site: Site, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Describe the staging for begin.json: method, folder, archive, and the time for all nodes. None if not staged."""
    folder = node_folder(environ)
    if site.stage_environment == NONE or folder is None:
        return None
    archive = Path(environ[ARCHIVE])
    began, ended, broadcast = (
        float(text) if re.fullmatch(r"\d+(\.\d+)?", text := environ.get(name, "")) else None
        for name in (BEGAN, ENDED, BROADCAST)
    )
    return {
        "way": site.stage_environment,
        "folder": str(folder),
        "archive": str(archive),
        "bytes": archive.stat().st_size if archive.exists() else None,
        "seconds": round(max(0.0, ended - began), 6) if began is not None and ended is not None else None,
        "broadcast_seconds": broadcast,
    }


def node_folder(environ: Mapping[str, str]) -> Path | None:
    """The staged folder of this node. Contains the node's name because nodes of a test cluster share a disk."""
    base = environ.get(STAGED)
    return Path(f"{base}-{environ.get('SLURMD_NODENAME', '')}") if base else None


def run_on_node(way: str, work: Callable[[], None]) -> None:
    """Run a task on its node. SIGTERM makes it clean up; a UserError becomes one line that names the node."""

    def exit_on_term(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue sends several
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, exit_on_term)
    try:
        work()
    except UserError as error:
        sys.exit(f"error: {KEY}={way}: on {os.uname().nodename}, {error}")


def _is_private(folder: Path) -> bool:
    """Return whether this is a real folder (not a link) that only its owner can read and write."""
    stat = folder.lstat()
    return S_ISDIR(stat.st_mode) and stat.st_uid == os.getuid() and not S_IMODE(stat.st_mode) & 0o077


def _fingerprint(environment: Path) -> str:
    """Hash of the folder's path and of the name, size and modification time of every file except byte code."""
    digest = hashlib.sha256(str(environment).encode())
    for root, folders, names in os.walk(environment):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(root, name)
            stat = os.lstat(path)
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


def _last_line(text: str) -> str:
    """The last line that is not tar's closing summary, which only says that there were errors."""
    lines = [line for line in text.splitlines() if line.strip() and "Exiting with failure status" not in line]
    return lines[-1].strip() if lines else "no reason given"


def main() -> None:
    """Unpack the environment: one task per node, started by the batch script."""
    folder = node_folder(os.environ)
    if folder is None:
        sys.exit(f"error: {STAGED} is not set; this is for the batch scripts of {KEY}={TAR}")
    archive = Path(os.environ[ARCHIVE])
    run_on_node(TAR, lambda: unpack(archive, folder))


if __name__ == "__main__":
    main()
