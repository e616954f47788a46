"""The log of one rank, read in pieces: a log of any size takes little memory, and whatever is in it is only counted.

A piece of whole lines is parsed at once, as one JSON array, with a number between each two lines: it is taken
only where just these numbers come back at every second place, so that no line can have become part of another.
Otherwise, and only then, the lines of that piece are read one by one.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from analysis.read.damage import (
    BEYOND,
    EMPTY,
    LONGEST_LINE_BYTES,
    MOST_EVENTS,
    NESTED,
    NOT_JSON,
    NOT_TEXT,
    TOO_LONG,
    TORN,
)
from analysis.read.log.rank import RankLog
from harness.core.events import UnknownVersion

PIECE_BYTES = 1 << 18
LARGEST_DOCUMENT_BYTES = 1 << 24  # of any other file of a run that is read
_BETWEEN = 7_203_318_419_060_157  # stands between two lines


def read_log(path: Path) -> RankLog:
    """What the rank logged until now. Raises UnknownVersion, and OSError where the file cannot be read, or is none."""
    log = RankLog()
    with open_file(path) as file:
        # What is written meanwhile is for the next time: a log that grows faster than it is read ends, too.
        size = os.fstat(file.fileno()).st_size
        if not size:
            log.damage[EMPTY] += 1
        for piece in _pieces(file, size, log):
            if log.events >= MOST_EVENTS:
                log.damage[BEYOND] += piece.count(b"\n") + (not piece.endswith(b"\n"))
                continue
            values = _parsed(piece)
            try:
                log.add_all(_one_by_one(piece, log) if values is None else values)
            except UnknownVersion as error:
                raise UnknownVersion(f"{path}: {error}") from None
    return log


def open_file(path: Path) -> BinaryIO:
    """Opens a regular file. Raises OSError for any other: a pipe would be waited for, a device never ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def check_document(path: Path) -> None:
    """Raises OSError for what is no file of ours that could be read whole; nothing where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is not a regular file", str(path))
    if found.st_size > LARGEST_DOCUMENT_BYTES:
        raise OSError(0, f"it has {found.st_size:,} bytes, at most {LARGEST_DOCUMENT_BYTES:,} are read", str(path))


def json_object(path: Path) -> Mapping[str, Any]:
    """Empty where the file holds none, or is gone again: what it would say is not known. Raises OSError where it cannot
    be read."""
    check_document(path)
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _pieces(file: BinaryIO, size: int, log: RankLog) -> Iterator[bytes]:
    """Whole lines, some PIECE_BYTES at a time; the last piece may lack its newline. A line that is too long is counted
    and left out."""
    rest, skipping = b"", False
    while size > 0 and (part := file.read(min(PIECE_BYTES, size))):
        size -= len(part)
        if skipping:
            end = part.find(b"\n") + 1
            if not end:
                continue
            part, skipping = part[end:], False
        end = part.rfind(b"\n") + 1
        if end:
            yield rest + part[:end]
            rest = part[end:]
        else:
            rest += part
        if len(rest) > LONGEST_LINE_BYTES:
            log.damage[TOO_LONG] += 1
            rest, skipping = b"", True
    if rest:
        yield rest


def _parsed(piece: bytes) -> list[Any] | None:
    """The values of the lines; None where one of them is not just one value, or too long."""
    if len(piece) > LONGEST_LINE_BYTES:  # only a long line makes a piece so long
        return None
    between = f",{_BETWEEN},"
    try:
        text = piece.decode("utf-8").removesuffix("\n")
        if between in text:
            return None
        values = json.loads(f"[{text.replace(chr(10), between)}]")
    except (ValueError, RecursionError):
        return None
    lines = text.count("\n") + 1
    # All that was put between the lines is at the top, and one value between each two: each line is a value of its own.
    if len(values) != 2 * lines - 1 or values[1::2].count(_BETWEEN) != lines - 1:
        return None
    return values[::2]


def _one_by_one(piece: bytes, log: RankLog) -> Iterator[Any]:
    lines = piece.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(line) > LONGEST_LINE_BYTES:
            log.damage[TOO_LONG] += 1
            continue
        try:
            yield json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            log.damage[NOT_TEXT] += 1
        except RecursionError:
            log.damage[NESTED] += 1
        except ValueError:
            # What follows the last newline has none yet.
            log.damage[TORN if number == len(lines) else NOT_JSON] += 1
