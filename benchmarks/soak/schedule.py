"""The faults of a soak: drawn from a seed, or read from the file that an earlier soak has written."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core.errors import UserError

VERSION = 1
# Two lanes, so that faults coincide: those of a lane follow each other, those of different lanes do not wait. By kind:
# how it may be made, and the range of its seconds.
MACHINE, STUDY = "machine", "study"
KINDS: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]] = {
    MACHINE: {
        "node lost": {"reported": (2, 40), "unnoticed": (2, 60)},
        "slurmctld restarted": {"": (2, 45)},
        "slurmdbd restarted": {"": (2, 60)},
        "disk full": {"": (3, 25)},
    },
    STUDY: {
        "job cancelled": {"": (0, 0)},
        "job requeued": {"": (0, 0)},
        "rank stopped": {"continued": (2, 20), "for good": (150, 150)},
        "sbatch slow": {"": (20, 60)},
        "sbatch refuses": {"refused": (10, 40), "no answer": (10, 40)},
        "login killed": {"command": (1, 10), "session": (1, 10)},
    },
}
# Mean seconds between the end of a fault and the next one of its lane, after a pause of PAUSE_SECONDS.
MEAN_SECONDS, PAUSE_SECONDS = 8.0, 2.0


@dataclass(frozen=True)
class Fault:
    """A fault to be made.

    Attributes:
        kind: a key of its lane in KINDS.
        how: variant of the kind; empty if there is only one.
        after: seconds from the end of the lane's previous fault.
        seconds: how long it lasts.
        pick: from 0 to 1, which of those that could be hit then: nodes, studies, running jobs.
    """

    kind: str
    how: str
    after: float
    seconds: float
    pick: float


Schedule = dict[str, list[Fault]]


def draw(seed: int, seconds: float) -> Schedule:
    """Draw the faults of each lane for a soak of this many seconds.

    Kinds are dealt like cards, so that each is as frequent as the others. A longer soak of the same seed begins with
    the same faults.
    """
    return {lane: list(_lane(random.Random(f"{seed} {lane}"), lane, seconds)) for lane in KINDS}


def _lane(rng: random.Random, lane: str, seconds: float) -> Iterator[Fault]:
    at = 0.0
    while True:
        for kind in rng.sample(list(KINDS[lane]), len(KINDS[lane])):
            how = rng.choice(list(KINDS[lane][kind]))
            after = PAUSE_SECONDS + rng.expovariate(1 / MEAN_SECONDS)
            lasts, pick = rng.uniform(*KINDS[lane][kind][how]), rng.random()
            # Without what making and undoing it takes, so that the faults last at least as long as the soak.
            at += after
            if at > seconds:
                return
            at += lasts
            yield Fault(kind, how, round(after, 3), round(lasts, 3), round(pick, 6))


def write(path: Path, schedule: Schedule, seed: int | None, seconds: float) -> None:
    lanes = {lane: [asdict(fault) for fault in faults] for lane, faults in schedule.items()}
    document = {"v": VERSION, "seed": seed, "seconds": seconds, "lanes": lanes}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> tuple[Schedule, int | None, float]:
    """Return the schedule of a file, its seed and its seconds. Raises UserError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["v"] != VERSION:
            raise ValueError
        schedule = {lane: [Fault(**fault) for fault in faults] for lane, faults in document["lanes"].items()}
        for lane, faults in schedule.items():
            _ = [KINDS[lane][fault.kind][fault.how] for fault in faults]
        return schedule, document["seed"], float(document["seconds"])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no schedule of this version; a soak writes one as schedule.json") from None
