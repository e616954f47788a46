"""History of a run over its steps, for programs that draw curves: throughput, loss, accuracy and times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.base.values import count_of, number_of
from analysis.read.attempts import pieces_of, read_attempts
from analysis.read.log.values import PATTERN
from analysis.read.row import Run
from analysis.read.run import COMPLETED
from analysis.report.data.runs import run_rows
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from harness.core.events import attempt_dirs, read_events

if TYPE_CHECKING:
    from analysis.read.study import Study


@dataclass(frozen=True)
class Block:
    """Timed steps between two fences. step: training steps done at its end. samples: of all ranks. t: unix seconds at
    its end; loss: of the last batch; both from rank 0, None: not logged or not finite."""

    step: int
    steps: int
    seconds: float
    samples: int
    t: float | None
    loss: float | None


@dataclass(frozen=True)
class ExportedRun:
    """row: its row in runs.csv. marks, spec: of its point; `{}` if the spec could not be read. evaluations: those of
    `analysis.read.columns.evaluations`, by step."""

    row: Mapping[str, Any]
    marks: tuple[str, ...]
    spec: Mapping[str, Any]
    blocks: tuple[Block, ...]
    evaluations: tuple[Mapping[str, Any], ...]

    @property
    def run_id(self) -> str:
        return str(self.row["run_id"])

    @property
    def completed(self) -> bool:
        return bool(self.row["status"] == COMPLETED)

    @property
    def folder_name(self) -> str:
        """The run's id as a valid file name on every system; ids are read from files and may be anything."""
        name = re.sub(r"[^A-Za-z0-9._+=-]", "_", self.run_id).lstrip(".")[:200]
        return name if name == self.run_id else f"{name}-{sha256(self.run_id.encode()).hexdigest()[:12]}"

    def time_of(self, evaluation: Mapping[str, Any]) -> float | None:
        """Return the unix seconds of an evaluation, from its wall_seconds; None with several attempts."""
        began, after = self.row["started"], evaluation["wall_seconds"]
        return None if began is None or after is None or self.row["attempts"] != 1 else began + after


def exported_runs(study: Study, points: Sequence[Point]) -> Iterator[ExportedRun]:
    """Yield every run of the study, whatever its status, one at a time, since histories are long. points: from
    `analysis.measures.speedup`."""
    rows = run_rows(study, points)
    marks = {run_id: point.marks for point in points for run_id in point.run_ids}
    for run, row in zip(study.runs, rows, strict=True):
        spec = spec_of(run.point or "{}")
        evaluations = tuple(run.evaluations)
        yield ExportedRun(
            row, marks.get(run.run_id, ()), spec, _blocks(study.folder / "runs" / run.run_id, run), evaluations
        )


def _blocks(run_dir: Path, run: Run) -> tuple[Block, ...]:
    if run.blocks_json is None:
        return ()
    logged = _logged(run_dir, run)
    return tuple(
        Block(first + n, n, seconds, samples, *logged.get(first, (None, None)))
        for first, n, seconds, samples in zip(*run.blocks, strict=True)
    )


def _logged(run_dir: Path, run: Run) -> dict[int, tuple[float | None, float | None]]:
    """Return rank 0's (t, loss) by first step of each block, from the attempts whose steps count."""
    found: dict[int, tuple[float | None, float | None]] = {}
    try:
        folders = {int(path.name.removeprefix("attempt-")): path for path in attempt_dirs(run_dir)}
        for piece in pieces_of(read_attempts(run_dir, run.method == PATTERN), run.completed):
            counted = {block.step for block in piece.blocks}
            for event in read_events(folders[piece.attempt.number] / "events.rank0.jsonl").events:
                step = count_of(event, "step", 0) if event["ev"] == "steps" else None
                if step in counted:
                    found[step] = (number_of(event, "t"), number_of(event, "loss", float("-inf")))
    except (OSError, ValueError):  # changed or removed since the study was read
        return {}
    return found
