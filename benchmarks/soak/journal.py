"""What a soak has done and found, appended to files as it happens."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

LOST, TWICE, WRONG, WEIGHTS = "lost", "run twice", "wrongly reported", "other weights"

# Faults of one run or one study.
TARGETED = ("job cancelled", "job requeued", "rank stopped", "login killed")


@dataclass
class Injected:
    """A fault that was made.

    Attributes:
        kind, how: as in the schedule.
        begin, end: unix seconds; end is infinite while it lasts.
        target: the node, run, or study that it hit; empty for all.
    """

    kind: str
    how: str
    begin: float
    end: float
    target: str = ""

    def lasted_until(self, t: float, grace_seconds: float) -> bool:
        """Return whether it had begun before the moment and had not been over for longer than the grace."""
        return self.begin <= t <= self.end + grace_seconds

    def concerns(self, subject: str) -> bool:
        """Return whether it may have hit this run or study: its own target, or whoever was there."""
        return self.kind not in TARGETED or self.target == subject


@dataclass(frozen=True)
class Finding:
    """Something that must not be. t: when it was seen or happened, in unix seconds."""

    what: str  # LOST, TWICE, WRONG or WEIGHTS
    subject: str  # a run or a study
    text: str
    t: float = field(default_factory=time.time)


class Journal:
    """Thread-safe; everything is also appended to journal.jsonl in the folder, for people."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.jsonl"
        self._lock = threading.Lock()
        self.faults: list[Injected] = []
        self.findings: list[Finding] = []

    def note(self, event: str, **facts: object) -> None:
        with self._lock, open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"t": round(time.time(), 3), "event": event, **facts}) + "\n")

    def began(self, kind: str, how: str, target: str) -> Injected:
        fault = Injected(kind, how, time.time(), float("inf"), target)
        self.faults.append(fault)
        self.note("fault", kind=kind, how=how, target=target)
        return fault

    def ended(self, fault: Injected) -> None:
        fault.end = time.time()
        self.note("fault over", kind=fault.kind, how=fault.how, target=fault.target)

    def found(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.note("FINDING", **asdict(finding))

    def not_survived(self) -> list[Injected]:
        """Return the faults with a finding: each is charged to the last fault before it that concerned its subject."""
        charged = []
        for finding in self.findings:
            charged += [f for f in self.faults if f.begin <= finding.t and f.concerns(finding.subject)][-1:]
        return [fault for fault in self.faults if any(fault is each for each in charged)]
