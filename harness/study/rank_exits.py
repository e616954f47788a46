"""How each rank of an attempt ended (`exit.rank<r>.json`), and which rank failed first."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core import events, run_files
from harness.core.seals import sealed
from harness.core.serialization import from_plain, json_text, write_json
from harness.core.system import disk
from harness.study import clocks

# Reason for killing a rank that was not the first to fail.
PEER_FAILED = "another rank failed"
# A failing rank takes its peers down within milliseconds, and may itself end later, as while it writes a core file.
SETTLE_SECONDS = 1.0
# Signals by which a rank itself crashes or runs out of memory. Not SIGABRT and SIGTERM: frameworks and MPI end ranks by
# these when a peer has failed.
CRASHES = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGKILL)
)
# A block of the usual file systems.
RESERVED_BYTES = 4096


@dataclass(frozen=True)
class RankExit:
    """How the process of one rank ended, as recorded in `exit.rank<r>.json`.

    Attributes:
        rank: the rank. A parameter server on a node of its own is numbered after the ranks.
        code: exit code; if negative, minus the signal number.
        t: unix seconds, on its node's clock.
        reason: why the harness killed this rank, or that the disk is full; None if it ended by itself.
        interrupted: stopped by the user or the scheduler, so the run is unfinished rather than failed.
        server: number of the parameter server, for a server on a node of its own.
        waited: whether the stacks of a rank without progress show it waiting for other ranks; None for other ranks.
        log_bytes: sizes of the event logs of the supervised ranks, by rank; None in older files.
        machine: the machine whose clock gave `t`, named as in the event `start`; None in older files.
    """

    rank: int
    code: int
    t: float
    reason: str | None = None
    interrupted: bool = False
    server: int | None = None
    waited: bool | None = None
    log_bytes: Mapping[str, int] | None = None
    machine: str | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.server is None else f"parameter server {self.server}"

    @property
    def failed(self) -> bool:
        return self.code not in (0, events.LEFT)

    @property
    def sentence(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        if self.code < 0:
            return f"{self.name} was ended by signal {-self.code} ({_signal_name(-self.code)})"
        return f"{self.name} exited with code {self.code}"


def reserve(attempt_dir: Path, rank: int) -> None:
    """Take the space that `write` needs, while there is some: the others learn only from its file that a rank has
    failed, also on a full disk. Raises OSError."""
    path = attempt_dir / run_files.reserved_exit(rank)
    try:
        with open(path, "wb") as file:
            file.write(b" " * RESERVED_BYTES)
    except OSError:
        path.unlink(missing_ok=True)  # by which the others see that this supervisor has not begun
        raise


def write(attempt_dir: Path, exit_: RankExit) -> None:
    """Raises OSError."""
    document = sealed(asdict(exit_))
    reserved, path = (attempt_dir / of(exit_.rank) for of in (run_files.reserved_exit, run_files.exit_status))
    text = json_text(document).encode()
    if len(text) > RESERVED_BYTES or not reserved.exists():
        write_json(path, document)
        reserved.unlink(missing_ok=True)
        return
    with open(reserved, "r+b") as file:
        file.write(text)
        file.truncate()
    reserved.replace(path)


def have_begun(attempt_dir: Path, processes: int) -> bool:
    """Return whether the supervisors of all processes have come far enough to say how their process ends."""
    names = set(os.listdir(attempt_dir))
    return all(names & {run_files.reserved_exit(n), run_files.exit_status(n)} for n in range(processes))


def read(attempt_dir: Path) -> list[RankExit]:
    """Exits of the ranks that have ended, in order of rank."""
    exits = []
    for path in attempt_dir.glob(run_files.EXITS_OF_RANKS):
        exits.append(from_plain(RankExit, json.loads(path.read_text(encoding="utf-8"))))
    return sorted(exits, key=lambda exit_: exit_.rank)


def any_failed(attempt_dir: Path) -> bool:
    return any(exit_.failed for exit_ in read(attempt_dir))


def failure(attempt_dir: Path) -> RankExit | None:
    """The rank that failed first.

    Of ranks on one clock, or on clocks whose difference is known, the one that ended first: the others failed because
    it was lost. But of ranks that ended at about the same time, it is one that crashed; of ranks without progress, one
    that did not wait for others. Between ranks whose clocks cannot be compared, what they died of decides.
    """
    failed = [exit_ for exit_ in read(attempt_dir) if exit_.failed]
    failed = [exit_ for exit_ in failed if exit_.reason != PEER_FAILED] or failed
    leads: Mapping[str | None, float | None] = {exit_.machine: 0.0 for exit_ in failed}
    if len(leads) > 1:
        leads = clocks.leads(attempt_dir, {exit_.machine: exit_.rank for exit_ in reversed(failed)})
    on_clock: dict[str | None, list[tuple[float, RankExit]]] = defaultdict(list)
    for exit_ in failed:
        lead = leads[exit_.machine]
        clock = exit_.machine if lead is None else "common"
        on_clock[clock].append((exit_.t - (lead or 0.0), exit_))
    first_of_each = [_first(exits) for exits in on_clock.values()]
    return min(first_of_each, key=lambda exit_: (_likelihood(exit_), exit_.rank), default=None)


def _first(exits: Sequence[tuple[float, RankExit]]) -> RankExit:
    """The first failure of ranks on one clock. exits: with the moment of each."""
    exits = sorted(exits, key=lambda each: each[0])
    began, first = exits[0]
    if first.waited:
        return next((exit_ for _, exit_ in exits if exit_.waited is False), first)
    if first.reason:
        return first
    together = [exit_ for t, exit_ in exits if t <= began + SETTLE_SECONDS]
    return next((exit_ for exit_ in together if exit_.code in CRASHES and exit_.reason is None), first)


def _likelihood(exit_: RankExit) -> int:
    """Order of failures by how likely each is to be the cause of the others, from 0.

    Whoever waits for a lost peer fails with an exit code, or has no progress until the harness ends it. A rank whose
    supervisor sees a failed peer is ended as such, so one that was ended for another reason ended before that.
    """
    if exit_.interrupted:
        return 5
    if exit_.reason is None:
        return 0 if exit_.code in CRASHES else 4
    if exit_.reason == disk.NO_SPACE:
        return 1
    return 3 if exit_.waited else 2


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
