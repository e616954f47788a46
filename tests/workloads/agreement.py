"""Compares what the harness measured with the time stamps that a program prints after each of its steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from studies import logged

from analysis.read.attempts import pieces_of, read_attempts
from analysis.read.log.values import MEASURE

STEP = re.compile(r"^(?:.*[\]:] ?)?step (\d+) ([\d.]+)", re.MULTILINE)
TOLERANCE = 0.02


@dataclass(frozen=True)
class Compared:
    """steps: number of steps of the compared blocks. seconds: of the harness. own_seconds: of the program."""

    steps: int
    seconds: float
    own_seconds: float

    @property
    def ratio(self) -> float:
        """Throughput by the harness over that by the program's own count."""
        return self.own_seconds / self.seconds


def own_times(run_dir: Path) -> list[dict[int, float]]:
    """For each process that prints them: seconds on its clock at which each step had ended.

    A block lasts as long as in its slowest process. On a busy machine they end short blocks milliseconds apart, so a
    program of several processes should print them in each.
    """
    texts = [output.read_text() for output in sorted((run_dir / "attempt-1").glob("stdout.rank*"))]
    found = [{int(step): float(seconds) for step, seconds in STEP.findall(text)} for text in texts]
    return [times for times in found if times]


def compared(run_dir: Path, by_pattern: bool = False) -> Compared:
    """Throughput of the blocks by the harness, as its report has it, and by the program, over the same steps.

    Blocks from which something is left out are checked with it. The last one cannot be compared where the program is
    ended inside of its last step, before it prints it.
    """
    # A pattern is matched against the first rank's output only.
    times, *others = own_times(run_dir)[: 1 if by_pattern else None]
    (piece,) = pieces_of(read_attempts(run_dir, by_pattern), completed=True)
    assert piece.left_out == 0, "blocks do not match across ranks"
    blocks = [block for block in piece.blocks if block.phase == MEASURE]
    ends = [*(block.step for block in blocks[1:]), max(times)]
    steps, seconds, own_seconds = 0, 0.0, 0.0
    for block, end in zip(blocks, ends, strict=True):
        if block.left_out_seconds:
            if end in times and block is not blocks[-1]:
                passed = times[end] - times[block.step]
                assert block.seconds + block.left_out_seconds == pytest.approx(passed, rel=0.1)
        elif block.end in times:
            assert by_pattern or block.end == end or block is blocks[-1]
            steps += block.n
            seconds += block.seconds
            own_seconds += max(each[block.end] - each[block.step] for each in (times, *others))
    assert steps >= 0.5 * sum(block.n for block in blocks)
    return Compared(steps, seconds, own_seconds)


def agrees(run_dir: Path, by_pattern: bool = False) -> None:
    assert compared(run_dir, by_pattern).ratio == pytest.approx(1, rel=TOLERANCE)


def steps_done(run_dir: Path, rank: int = 0) -> int:
    (end,) = logged(run_dir, "end", rank=rank)
    return int(end["steps"])
