"""The event log of a run: written by each rank, read by everything else. Standard library only.

Each line of `events.rank<r>.jsonl` is one JSON object with `v` (schema version), `t` (unix seconds), `rank` and `ev`
(its kind), and ends in its number and a checksum (harness/core/seals.py). The other keys depend on the kind, see
`schemas/events.schema.json`. Each file has one writer and is append-only. Readers ignore unknown keys and kinds, count
unreadable lines (an incomplete last line is normal after a kill), and reject unknown schema versions.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from harness.core import run_files
from harness.core.seals import CRC, LineSeal, is_intact, sealed

SCHEMA_VERSION = 1
RESULT_VERSION = 1
STUDY_VERSION = 1

COMPLETED, FAILED = "completed", "failed"
# Exit code of a rank that saved its state and exited when asked to: EX_TEMPFAIL of sysexits.h.
LEFT = 75
# Without output for this long, an attempt that is not known to run is gone.
SILENT_SECONDS = 60.0
# Clocks that a network sets agree by this.
CLOCK_SECONDS = 5.0
# By no more than this is a clock off that nobody has noticed.
WRONG_CLOCK_SECONDS = 86400.0
# Files of an attempt that change while it runs.
_SIGNS = ("events.", "exit.", "begin.", "stderr.", "stdout.")


class UnknownVersion(ValueError):
    """A log with a schema version that this code does not support."""


class EventWriter:
    """Appends the events of one rank. Each line is flushed immediately, so a killed rank loses none."""

    def __init__(self, path: Path, rank: int) -> None:
        self.rank = rank
        self._writing = threading.Lock()
        self._seal = LineSeal(path)
        self._file = open(path, "a", encoding="ascii", buffering=1)  # noqa: SIM115 (closed by close)

    def write(self, ev: str, **values: Any) -> None:
        record = {"v": SCHEMA_VERSION, "t": round(time.time(), 6), "rank": self.rank, "ev": ev}
        record.update(values)
        # NaN is not valid JSON; a diverged loss is written as null, and the reader reports it.
        line = json.dumps(_finite(record), separators=(",", ":"), allow_nan=False)
        with self._writing:  # a checksum covers the lines before it
            self._file.write(self._sealed(line))

    def _sealed(self, line: str) -> str:
        return self._seal.seal(line)

    def close(self) -> None:
        self._file.close()


@dataclass
class EventLog:
    """Events of one file and the number of unreadable lines."""

    events: List[Dict[str, Any]] = field(default_factory=list)
    unreadable_lines: int = 0


def read_events(path: Path) -> EventLog:
    """Read one rank's log. Raises UnknownVersion, or OSError if the file cannot be opened."""
    log = EventLog()
    with open(path, "rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                log.unreadable_lines += 1
                continue
            if not isinstance(record, dict) or not isinstance(record.get("ev"), str) or "v" not in record:
                log.unreadable_lines += 1
                continue
            if record["v"] != SCHEMA_VERSION:
                raise UnknownVersion(
                    f"{path}: schema version {record['v']!r}; this code reads version {SCHEMA_VERSION}: "
                    "update it, or read the study with the version that wrote it"
                )
            log.events.append(record)
    return log


def attempt_dirs(run_dir: Path) -> List[Path]:
    """The `attempt-<k>` folders of a run in order."""
    found = []
    if run_dir.is_dir():
        with os.scandir(run_dir) as entries:
            for entry in entries:
                number = entry.name[len(run_files.ATTEMPT_PREFIX) :]
                named = entry.name.startswith(run_files.ATTEMPT_PREFIX) and number.isascii() and number.isdigit()
                if named and entry.is_dir():
                    found.append((int(number), run_dir / entry.name))
    return [path for _, path in sorted(found)]


def write_result(run_dir: Path, result: Dict[str, Any]) -> bool:
    """Write `result.json` unless the run already has one. Returns whether this call wrote it.

    Uses a hard link rather than a rename, so that exactly one of two writers succeeds and a result is never replaced.
    """
    path = run_dir / run_files.RESULT
    temporary = run_dir / f".result.{os.uname().nodename}.{os.getpid()}.tmp"
    try:
        temporary.write_text(json.dumps(sealed(_finite(result)), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except OSError:
        # The disk may be full: remove the partial file.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except OSError:
        # File system without hard links: check and rename, which leaves a small race.
        if path.exists():
            return False
        os.replace(temporary, path)
        return True
    finally:
        if temporary.exists():
            temporary.unlink()


def read_result(run_dir: Path) -> Optional[Dict[str, Any]]:
    """Read the run's `result.json`; None if there is none. Raises ValueError if it is invalid."""
    path = run_dir / run_files.RESULT
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(result, dict) or result.get("v") != RESULT_VERSION or "status" not in result:
        raise ValueError(f"{path} is not a result of version {RESULT_VERSION}")
    if not is_intact(result):
        raise ValueError(f"{path} is damaged: its checksum does not fit")
    result.pop(CRC, None)
    return result


def is_running(attempt_dir: Path) -> Optional[bool]:
    """Whether an attempt without a result is running, as far as this machine can tell without Slurm.

    Of an attempt elsewhere: whether its files have changed lately, unless they are so old that no clock is that wrong.
    From the second call on, that is by this machine's clock alone. The first call has only the files' times to go by,
    which may be of another clock: they tell that it runs if they are of this minute, and nothing (None) otherwise.
    """
    here = alive(attempt_dir)
    if here is not None:
        return here
    stats = [path.stat() for path in attempt_dir.iterdir() if path.name.startswith(_SIGNS)]
    ages = [time.time() - max([stat.st_mtime for stat in stats], default=0.0)]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        # After its rank, a supervisor waits for others and asks Slurm before it writes the result. Copies are new.
        ended = json.loads((attempt_dir / run_files.exit_status(0)).read_text(encoding="utf-8"))["t"]
        ages.append(time.time() - ended)
    if max(ages) >= WRONG_CLOCK_SECONDS:
        return False
    sizes, now = tuple(sorted((stat.st_ino, stat.st_size) for stat in stats)), time.monotonic()
    before = _watched.setdefault(attempt_dir, _Watched(sizes, now))
    if sizes != before.sizes:
        _watched[attempt_dir] = _Watched(sizes, now, grew=True)
        return True
    if before.grew or now - before.since >= SILENT_SECONDS:
        return now - before.since < SILENT_SECONDS
    return True if -CLOCK_SECONDS <= min(ages) <= max(ages) < SILENT_SECONDS else None


class _Watched(NamedTuple):
    """What this process has seen of an attempt on another machine."""

    sizes: Tuple[Tuple[int, int], ...]  # (inode, bytes) of each file that shows a sign of life
    since: float  # monotonic seconds at which they were seen first
    grew: bool = False  # whether they were others before


_watched: Dict[Path, _Watched] = {}


def alive(attempt_dir: Path) -> Optional[bool]:
    """Whether the attempt's processes run on this machine. None if unknown: on Slurm, elsewhere, or not begun."""
    try:
        job = json.loads((attempt_dir / run_files.JOB).read_text(encoding="utf-8"))
        pid, host = int(job["job_id"]), job.get("host")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host != os.uname().nodename or not os.path.exists("/proc/self/cmdline"):
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    # The number may have become another process's; one that has ended unnoticed has no words.
    return b"submitit" in words or b"harness" in words


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
