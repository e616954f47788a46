"""`python -m harness.data <name>`: download a published data set, check it, and unpack it where the readers look."""

from __future__ import annotations

import fcntl
import hashlib
import http
import http.client
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness.core.console_script import Parser
from harness.core.data_location import files_in
from harness.core.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

TRIES = 5  # without a new byte, for each file
TIMEOUT_SECONDS = 30
PIECE_BYTES = 2**18


class DownloadError(Exception):
    """A file could not be downloaded, or is not the published one."""


@dataclass(frozen=True)
class File:
    """A published file."""

    url: str
    digest: str  # algorithm:hexadecimal; empty if none is published
    size: int  # bytes
    archive: bool = False  # a tar file, of which everything below its only folder is kept

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name


@dataclass(frozen=True)
class Source:
    """Where a data set comes from."""

    files: tuple[File, ...]
    folder: str  # under data.root
    reader: str
    unpacked: int  # bytes
    lines: tuple[tuple[str, int], ...] = ()  # number of lines of files for which no digest is published


_KRIZ = "https://www.cs.toronto.edu/~kriz"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_MIT = "http://groups.csail.mit.edu/vision/LabelMe/NewImages"
SOURCES = {
    "cifar10": Source(
        (
            File(
                f"{_KRIZ}/cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
                archive=True,
            ),
        ),
        "cifar-10-batches-bin",
        "cifar10",
        184_400_000,
    ),
    "fashion_mnist": Source(
        (
            File(
                f"{_ZALANDO}/train-images-idx3-ubyte.gz",
                "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                26_421_880,
            ),
            File(
                f"{_ZALANDO}/train-labels-idx1-ubyte.gz",
                "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                29_515,
            ),
            File(
                f"{_ZALANDO}/t10k-images-idx3-ubyte.gz",
                "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                4_422_102,
            ),
            File(
                f"{_ZALANDO}/t10k-labels-idx1-ubyte.gz",
                "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                5_148,
            ),
        ),
        "fashion-mnist",
        "idx",
        30_900_000,
    ),
    "indoor67": Source(
        (
            # No digest is published; this one is of vipy's data sets.
            File(
                f"{_MIT}/indoorCVPR_09.tar",
                "sha1:0b252516e746ba428b96af408d2e8162d9b08ac5",
                2_592_000_000,
                archive=True,
            ),
            File("https://web.mit.edu/torralba/www/TrainImages.txt", "", 200_000),
            File("https://web.mit.edu/torralba/www/TestImages.txt", "", 50_000),
        ),
        "indoor67",
        "imagefolder",
        2_600_000_000,
        (("TrainImages.txt", 5360), ("TestImages.txt", 1340)),
    ),
}


def main(argv: Sequence[str] | None = None, program: str = "python -m harness.data") -> int:
    """Return the exit code: 0 success, 1 the download failed, 2 invalid request."""
    parser = Parser(
        prog=program,
        description="Download a published data set, check it, and unpack it where dataset=<name> finds it. "
        "A download that was cut off continues.",
    )
    parser.add_argument("name", choices=sorted(SOURCES), help="the data set")
    parser.add_argument("--root", type=Path, default=Path("data"), metavar="DIR", help="data.root; default: data")
    parser.add_argument("--mirror", metavar="URL", help="take the files of the same names from here; the checks stay")
    arguments = parser.parse_args(argv)
    try:
        download(arguments.name, SOURCES[arguments.name], arguments.root.expanduser(), arguments.mirror)
    except DownloadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or arguments.root
        print(f"error: {where}: {error.strerror or error}; run the command again to continue", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run the command again to continue", file=sys.stderr)
        return 130
    return 0


def download(name: str, source: Source, root: Path, mirror: str | None = None) -> None:
    """Download a data set into `root` and say where it is.

    Raises:
        DownloadError: the server, or what it sent.
        UserError: the disk is too small, another command downloads it, or a part of the data set is in the way.
    """
    target = root / source.folder
    if files_in(source.reader, target):
        print(f"{name} is in {target} already")
        return
    size = sum(file.size for file in source.files)
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    print(f"{name}: a download of {_mb(size)}, {_mb(source.unpacked)} unpacked; {target} has {_mb(free)} left")
    if free < size + source.unpacked:
        raise UserError(f"{_mb(size + source.unpacked)} are needed in {root}: name a larger disk with --root")
    parts = root / f".{name}.download"
    parts.mkdir(exist_ok=True)
    with _alone(parts / "lock", name), _progress() as progress:
        for file in source.files:
            _fetch(file, parts / file.name, mirror, progress)
        unpacked = parts / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir()
        for file in source.files:
            if file.archive:
                _unpack(parts / file.name, unpacked)
            else:
                shutil.copyfile(parts / file.name, unpacked / file.name)
        for listed, lines in source.lines:
            if (found := len((unpacked / listed).read_bytes().split())) != lines:
                (parts / listed).unlink()
                raise DownloadError(f"{listed} lists {found} files, not the published {lines}; try again")
        if not files_in(source.reader, unpacked):
            raise UserError(f"what was unpacked to {unpacked} is not {name}: its files are not all there")
        target.mkdir(exist_ok=True)
        if in_the_way := sorted(path.name for path in unpacked.iterdir() if (target / path.name).is_dir()):
            raise UserError(f"{target} has {in_the_way[0]}/, but not all of {name}: move it away, and try again")
        for path in unpacked.iterdir():
            path.replace(target / path.name)
    shutil.rmtree(parts)
    print(f"{name} is in {target}")


def _fetch(file: File, part: Path, mirror: str | None, progress: Progress) -> None:
    """Download the rest of a file and check it. Raises DownloadError."""
    url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
    task = progress.add_task(file.name, total=file.size)
    left = TRIES
    while True:
        before = _size(part)
        try:
            _continue(url, part, lambda done, total: progress.update(task, completed=done, total=total))
            break
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            left = TRIES if _size(part) > before else left - 1
            if refused or not left:
                reason = getattr(error, "reason", None) or error
                advice = "run the command again to continue, or name another server with --mirror"
                raise DownloadError(f"{url}: {reason}; {advice}") from None
            time.sleep(TRIES - left)
    algorithm, _, published = file.digest.partition(":")
    if not published:
        return
    with open(part, "rb") as content:
        found = hashlib.file_digest(content, algorithm).hexdigest()
    if found == published:
        return
    part.unlink()
    raise DownloadError(
        f"what came from {url} is not the published file: its {algorithm} is {found}, not {published}; it was deleted: "
        "try again, or name another server with --mirror"
    )


def _continue(url: str, part: Path, report: Callable[[int, int], None]) -> None:
    """Append what is missing to a part. Raises errors of urllib and http.client, which leave what has arrived."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # all of it, unless its digest says otherwise
        raise
    with answer, open(part, "ab" if answer.status == http.HTTPStatus.PARTIAL_CONTENT else "wb") as out:
        total = out.tell() + int(answer.headers.get("Content-Length") or 0)
        while piece := answer.read(PIECE_BYTES):
            out.write(piece)
            report(out.tell(), max(total, out.tell()))
        if out.tell() < total:
            raise http.client.IncompleteRead(b"", total - out.tell())


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack plain files alone, without the archive's own folder, whatever names the archive gives them."""
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if not member.isfile() or ".." in inside.parts or not inside.parts:
                continue
            path = folder / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None  # a plain file
            with content, open(path, "wb") as out:
                shutil.copyfileobj(content, out)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


@contextmanager
def _alone(path: Path, name: str) -> Iterator[None]:
    """Hold a lock. Raises UserError if another process holds it."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another command downloads {name} to {path.parent.parent}: wait for it") from None
        yield


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
