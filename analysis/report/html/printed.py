"""The last lines printed by the ranks of runs without a result, read from their current files.

A result holds the last lines of the rank that failed first. A run that is still running, was cancelled, or lost its
node has no such rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.base import text
from analysis.read.log.file import open_file
from analysis.read.row import Run
from analysis.read.run import MISSING
from harness.core.events import attempt_dirs

MOST_LINES = 40
MOST_LINE_LENGTH = 2_000  # characters of one line
MOST_RANKS = 4
TAIL_BYTES, TAIL_BYTES_OF_MANY = 1 << 16, 1 << 12  # that are read of a file
MANY = 200  # runs without a result
_STDERR = re.compile(r"stderr\.rank([0-9]{1,9})")


class Printed(NamedTuple):
    """ranks: the last lines of each of those that printed most, in their order. of: whose lines they are, in words."""

    ranks: Mapping[int, Sequence[str]]
    of: str

    def last(self, most: int) -> list[str]:
        """At most so many lines of all ranks together, but at least one of each; with rank numbers for several
        ranks; 0: none."""
        share = max(1, most // len(self.ranks)) if most else 0
        several = len(self.ranks) > 1
        return [
            f"[rank {rank}] {line}" if several else line
            for rank, lines in self.ranks.items()
            for line in (lines[-share:] if share else ())
        ]


def printed_of(runs: Sequence[Run], folder: Path) -> dict[str, Printed]:
    """By run id, for runs without a result in which a rank printed something. folder: of the study."""
    asked = [run.run_id for run in runs if run.stderr_tail_json is None and run.status != MISSING]
    most_bytes = TAIL_BYTES if len(asked) <= MANY else TAIL_BYTES_OF_MANY
    found = {run_id: _printed(folder / "runs" / run_id, most_bytes) for run_id in asked}
    return {run_id: printed for run_id, printed in found.items() if printed is not None}


def _printed(run_dir: Path, most_bytes: int) -> Printed | None:
    """From the last attempt in which a rank printed something."""
    try:
        for attempt in reversed(attempt_dirs(run_dir)):
            sizes = _sizes(attempt)
            ranks = sorted(sorted(sizes, key=lambda rank: (-sizes[rank], rank))[:MOST_RANKS])
            tails = {rank: _tail(attempt / f"stderr.rank{rank}", most_bytes) for rank in ranks}
            if tails := {rank: lines for rank, lines in tails.items() if lines}:
                return Printed(tails, _whose(tails, len(sizes), attempt.name.removeprefix("attempt-")))
    except OSError:  # reported in the run's row
        pass
    return None


def _sizes(attempt: Path) -> dict[int, int]:
    """Bytes printed by each rank that printed something."""
    with os.scandir(attempt) as entries:
        named = [(match, entry) for entry in entries if (match := _STDERR.fullmatch(entry.name))]
        sizes = {int(match[1]): entry.stat().st_size for match, entry in named if entry.is_file(follow_symlinks=False)}
    return {rank: size for rank, size in sizes.items() if size}


def _tail(path: Path, most_bytes: int) -> list[str]:
    try:
        with open_file(path) as file:
            begin = max(0, os.fstat(file.fileno()).st_size - most_bytes)
            file.seek(begin)
            lines = file.read(most_bytes).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    if begin and len(lines) > 1:  # the first one is cut
        del lines[0]
    return [text.shortened(text.printable(line), MOST_LINE_LENGTH) for line in lines[-MOST_LINES:]]


def _whose(ranks: Mapping[int, Sequence[str]], n_printed: int, attempt: str) -> str:
    named = f"rank{'s' * (len(ranks) > 1)} {text.listed(map(str, ranks), 'and')}"
    if n_printed > len(ranks):
        named += f", which printed most of {n_printed:,} ranks"
    return f"{named} in attempt {attempt}, as its files stood when this page was made"
