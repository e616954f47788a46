"""Reads a rank's log in pieces: logs of any size need little memory, and damage is counted.

A piece of whole lines is parsed at once, as a JSON array with a marker number between each two lines. If the markers
come back at every second position, no line has merged with another; otherwise the piece is parsed line by line.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

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
from analysis.read.log.seals import Seals
from analysis.read.log.values import StepsLine
from harness.core.events import UnknownVersion
from harness.core.seals import is_intact

PIECE_BYTES = 1 << 18
LARGEST_DOCUMENT_BYTES = 1 << 24  # limit for the other files of a run
# Refuses what the standard library's takes and the other way round, such as NaN: then each line is parsed by that one.
_ANY = msgspec.json.Decoder(list[Any])
_STEPS_LINES = msgspec.json.Decoder(list[StepsLine | int])
_STEPS = b'"ev":"steps"'
_BETWEEN = 7_203_318_419_060_157  # marker between two lines
_MARKER = b"%d" % _BETWEEN


def read_log(path: Path) -> RankLog:
    """Read what the rank has logged so far. Raises UnknownVersion, or OSError if the file is missing or unreadable."""
    log = RankLog()
    with open_file(path) as file:
        # Stop at the current size, so that reading a fast-growing log ends.
        size = log.bytes = os.fstat(file.fileno()).st_size
        seals = Seals(log.damage)
        if not size:
            log.damage[EMPTY] += 1
        for piece in _pieces(file, size, log):
            if log.events >= MOST_EVENTS:
                log.damage[BEYOND] += piece.count(b"\n") + (not piece.endswith(b"\n"))
                continue
            intact = seals.holds(piece)
            values = _parsed(piece, bool(seals.sealed)) if intact else None
            try:
                log.add_all(_one_by_one(piece, log, None if intact else seals) if values is None else values)
            except UnknownVersion as error:
                raise UnknownVersion(f"{path}: {error}") from None
    return log


def open_file(path: Path) -> BinaryIO:
    """Open a regular file. Raises OSError for others, since pipes block and devices never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def check_document(path: Path) -> None:
    """Raise OSError if the file is irregular or too large. A missing file is accepted."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is not a regular file", str(path))
    if found.st_size > LARGEST_DOCUMENT_BYTES:
        raise OSError(0, f"it has {found.st_size:,} bytes, at most {LARGEST_DOCUMENT_BYTES:,} are read", str(path))


def json_object(path: Path) -> Mapping[str, Any]:
    """Read a JSON object; empty if the file is missing, invalid or changed. Raises OSError if it cannot be read."""
    check_document(path)
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and is_intact(document) else {}


def _pieces(file: BinaryIO, size: int, log: RankLog) -> Iterator[bytes]:
    """Yield whole lines in pieces of about PIECE_BYTES; the last may lack its newline. Too long lines are counted and
    skipped."""
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


def _parsed(piece: bytes, sealed: bool) -> list[Any] | None:
    """Return the values of the lines; None if a line is too long or not exactly one JSON value.

    sealed: the lines are numbered, so none repeats another: blocks are read as StepsLine, without their other values.
    """
    if len(piece) > LONGEST_LINE_BYTES or _MARKER in piece:  # the first: contains an overlong line
        return None
    lines = piece.removesuffix(b"\n").split(b"\n")
    if not sealed:
        return _values(lines, _ANY)
    is_steps = [_STEPS in line for line in lines]
    steps = _values([*compress(lines, is_steps)], _STEPS_LINES)
    others = _values([*compress(lines, map(not_, is_steps))], _ANY)
    if steps is None or others is None:
        return None
    next_steps, next_other = iter(steps).__next__, iter(others).__next__
    return [next_steps() if known else next_other() for known in is_steps]


def _values(lines: Sequence[bytes], decoder: msgspec.json.Decoder[list[Any]]) -> list[Any] | None:
    """Return the value of each line; None if a line is not exactly one value that the decoder accepts."""
    if not lines:
        return []
    try:
        values = decoder.decode(b"[%s]" % (b",%s," % _MARKER).join(lines))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    # All markers are at the top level with one value between each two, so each line is one value.
    if len(values) != 2 * len(lines) - 1 or values[1::2].count(_BETWEEN) != len(lines) - 1:
        return None
    return values[::2]


def _one_by_one(piece: bytes, log: RankLog, seals: Seals | None = None) -> Iterator[Any]:
    """Yield the values of the lines that can be read, and count the others. seals: None: they are intact."""
    lines = piece.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(line) > LONGEST_LINE_BYTES:
            log.damage[TOO_LONG] += 1
            continue
        kind = seals.damage_of(line) if seals else None
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            log.damage[NOT_TEXT] += 1
        except RecursionError:
            log.damage[NESTED] += 1
        except ValueError:
            # The last line has no newline yet.
            log.damage[TORN if number == len(lines) else NOT_JSON] += 1
        else:
            if kind is None:
                yield value
            else:
                log.damage[kind] += 1
