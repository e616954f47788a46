"""An environment on the nodes' own disks (cluster.stage_environment): packed once, unpacked by every job.

On a shared file system each rank's imports open thousands of small files; here a node reads one large one, itself
(tar), or gets a copy of it from Slurm (sbcast, harness/node/broadcast.py). Packed where the study is submitted,
unpacked by a step of the batch script (tar: `python -m harness.node.stage`, one task per node) into a folder with the
job's number in its name, removed by the last watcher of the node whose rank has ended, and by the batch script for
those that did not come so far (harness/launch/options.py).
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
# Set by the batch script. STAGED: the folder's path on each node, but for the node's name. BEGAN, ENDED: unix seconds.
# BROADCAST: the seconds of sbcast.
STAGED = "HARNESS_STAGED"
ARCHIVE = "HARNESS_STAGE_ARCHIVE"
BEGAN = "HARNESS_STAGE_BEGAN"
ENDED = "HARNESS_STAGE_ENDED"
BROADCAST = "HARNESS_STAGE_BROADCAST"
# To start Python and end it takes some 10 ms.
CHECK_SECONDS = 60.0


def packed(study_folder: Path, environment: Path, say: Callable[[str], None]) -> Path:
    """The archive of an environment as it is now, made where there is none yet. The caller holds the study's lock.

    An environment that changes gets another archive: jobs in the queue go on with theirs. Raises UserError.
    """
    mark = _fingerprint(environment)
    archive = study_folder / FOLDER / f"{environment.name}-{mark}.tar.gz"
    if archive.exists():
        return archive
    partial = archive.with_name(f".{archive.name}.{os.getpid()}")
    began = time.monotonic()
    # Of gzip's levels the first: a node reads the archive faster than the shared file system gives it (docs/sites.md).
    argv = ["tar", "--use-compress-program=gzip -1", "-cf", str(partial), "-C", str(environment), "."]
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(argv, capture_output=True, text=True)
        # 1: a file changed meanwhile. Running jobs write byte code there; anything else shows in the fingerprint.
        if done.returncode not in (0, 1):
            raise UserError(f"{KEY}: {environment} cannot be packed: {_last(done.stderr)}")
        if _fingerprint(environment) != mark:
            raise UserError(f"{KEY}: {environment} was changed while it was packed; start the command again")
        partial.replace(archive)
    except OSError as error:
        raise UserError(f"{KEY}: {environment} cannot be packed into {archive.parent}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    size = archive.stat().st_size / 1e6
    say(f"packed the environment {environment.name} in {time.monotonic() - began:.1f} s: {archive} ({size:.0f} MB)")
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Makes the folder, and an environment in it that starts. Raises UserError, and leaves nothing then."""
    make(folder)
    try:
        done = subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], capture_output=True, text=True)
        if done.returncode != 0:
            raise UserError(f"{archive} cannot be unpacked into {folder}: {_last(done.stderr)}")
        python = folder / "bin" / "python"
        try:
            started = subprocess.run([python, "-c", "pass"], capture_output=True, text=True, timeout=CHECK_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"{python} does not start here: {error}") from None
        if started.returncode != 0:
            raise UserError(f"{python} does not start here: {_last(started.stderr)}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def make(folder: Path, shared: bool = False) -> None:
    """The job's own folder. shared: it may be there already, if it is this user's alone. Raises UserError."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        if not (shared and isinstance(error, FileExistsError) and _is_private(folder)):
            raise UserError(
                f"{folder} cannot be made: {error.strerror}; set cluster.stage_folder to another one"
            ) from None


@contextlib.contextmanager
def entered(site: Site, environ: Mapping[str, str]) -> Iterator[Site]:
    """The site as a rank of this node needs it: with the staged interpreter, where the environment is staged.

    The last one of the node that leaves removes the folder. Its lock is the kernel's, and goes with its process.
    """
    if site.stage_environment == NONE:
        yield site
        return
    folder = node_folder(environ)
    if folder is None:
        asked = f"{KEY}={site.stage_environment}"
        sys.exit(f"error: {asked}, and this job's batch script has not staged the environment; start the command again")
    # Where it is gone, the rank cannot be started, and says so.
    handle = os.open(folder, os.O_RDONLY) if folder.is_dir() else None
    if handle is not None:
        fcntl.flock(handle, fcntl.LOCK_SH)
    yield replace(site, python=str(folder / "bin" / "python"))
    if handle is not None:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def record(site: Site, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """For begin.json: which way, where on this node, from which archive, and how long all nodes took; None: nothing is
    staged."""
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
    """Of this node: the nodes of a test cluster share one disk."""
    base = environ.get(STAGED)
    return Path(f"{base}-{environ.get('SLURMD_NODENAME', '')}") if base else None


def on_node(way: str, work: Callable[[], None]) -> None:
    """A task's work on its node: told to end, it cleans up; a UserError is said as a sentence that names the node."""

    def leave(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue sends several
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)
    try:
        work()
    except UserError as error:
        sys.exit(f"error: {KEY}={way}: on {os.uname().nodename}, {error}")


def _is_private(folder: Path) -> bool:
    """A folder, no link to one, that nobody else can write to or look into."""
    stat = folder.lstat()
    return S_ISDIR(stat.st_mode) and stat.st_uid == os.getuid() and not S_IMODE(stat.st_mode) & 0o077


def _fingerprint(environment: Path) -> str:
    """Of the folder's path, and of every file's name, size and time of change, but for byte code."""
    digest = hashlib.sha256(str(environment).encode())
    for root, folders, names in os.walk(environment):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(root, name)
            stat = os.lstat(path)
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


def _last(text: str) -> str:
    """Of several lines the last but for tar's own, which only says that there were others."""
    lines = [line for line in text.splitlines() if line.strip() and "Exiting with failure status" not in line]
    return lines[-1].strip() if lines else "it does not say why"


def main() -> None:
    """One task per node, in the batch script."""
    folder = node_folder(os.environ)
    if folder is None:
        sys.exit(f"error: {STAGED} is not set; this is for the batch scripts of {KEY}={TAR}")
    archive = Path(os.environ[ARCHIVE])
    on_node(TAR, lambda: unpack(archive, folder))


if __name__ == "__main__":
    main()
