"""The files of a run that its row depends on, and a signature of them that changes when one of them does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from typing import NamedTuple

from analysis.base.processes import command_calling
from harness.core.run_files import (
    AGAIN,
    ATTEMPT_PREFIX,
    BEGIN,
    ENVIRONMENT,
    REPLACED_RESULT,
    SLURM_ENERGY,
    SPEC,
    VERIFY,
)

# Part of every signature; increase it when the content or meaning of a row changes.
ROW_VERSION = 24
LOG_OF_RANK = re.compile(r"events\.rank([0-9]{1,9})\.jsonl")
EXIT_OF_RANK = re.compile(r"exit\.rank([0-9]{1,9})\.json")
_FIXED = (BEGIN, AGAIN, REPLACED_RESULT, VERIFY, SLURM_ENERGY, ENVIRONMENT)
_READ = re.compile("|".join([LOG_OF_RANK.pattern, EXIT_OF_RANK.pattern, *map(re.escape, _FIXED)]))
_ATTEMPT = re.compile(ATTEMPT_PREFIX + "[0-9]+", re.ASCII)

# A process starts in 0.05 s and signs 2,000 runs in 0.2 s if the file system answers from memory. A parallel one takes
# longer for each file, so more processes pay even earlier.
RUNS_OF_A_PROCESS = 2000
MOST_PROCESSES = 8


class Signature(NamedTuple):
    """digest: changes when a file on which the run's row depends is added, removed or written to. log_bytes: total size
    of its logs. has_spec: whether the folder is a run's."""

    digest: str
    log_bytes: int
    has_spec: bool


def begin_signing(run_dirs: Sequence[str], processes: int | None = None) -> Callable[[], list[Signature]]:
    """Sign each run's files. Other processes begin at once; call what is returned once to sign the rest in this one and
    get all signatures in order. processes: how many sign, this one among them; None: by the number of runs."""
    if processes is None:
        processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(run_dirs) // RUNS_OF_A_PROCESS)
    processes = max(1, min(processes, len(run_dirs)))
    ends = [len(run_dirs) * i // processes for i in range(processes + 1)]
    own, *others = (run_dirs[first:end] for first, end in pairwise(ends))
    threads = ThreadPoolExecutor(processes)
    beside = threads.map(_signed_beside, others)

    def finish() -> list[Signature]:
        with threads:
            signed = [signature(run_dir) for run_dir in own]
            return [*signed, *chain.from_iterable(beside)]

    return finish


def _signed_beside(run_dirs: Sequence[str]) -> list[Signature]:
    """Sign runs in another process, or here if it fails."""
    names = b"\0".join(map(os.fsencode, run_dirs))
    try:
        done = subprocess.run(command_calling(__name__, "sign"), input=names, stdout=subprocess.PIPE, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [signature(run_dir) for run_dir in run_dirs]
    return [Signature(*values) for values in json.loads(done.stdout)]


def sign() -> None:
    """Sign the folders named on standard input: the main function of the other processes."""
    # No traceback on Ctrl-C, or if the parent has exited.
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    run_dirs = sys.stdin.buffer.read().split(b"\0")
    json.dump([signature(os.fsdecode(run_dir)) for run_dir in run_dirs], sys.stdout)


def signature(run_dir: str) -> Signature:
    """Sign a run's files, except the ranks' output: with many ranks and attempts, its stat calls would dominate."""
    files: list[str] = []
    attempts, log_bytes, has_spec = [], 0, False
    for name, entry in _listed(run_dir):
        if _ATTEMPT.fullmatch(name):
            attempts.append(name)
        elif (found := _looked_at(entry)) is not None:
            files.append(f"/{name}/{found.st_mtime_ns}/{found.st_size}")
            has_spec = has_spec or name == SPEC
    for attempt in attempts:
        for name, entry in _listed(f"{run_dir}/{attempt}"):
            if _READ.fullmatch(name) and (found := _looked_at(entry)) is not None:
                files.append(f"{attempt}/{name}/{found.st_mtime_ns}/{found.st_size}")
                if name.endswith(".jsonl"):
                    log_bytes += found.st_size
    attempts.sort()
    files.sort()
    # Names contain neither of the two separators.
    text = "\0".join([str(ROW_VERSION), os.path.basename(run_dir), "/".join(attempts), *files])
    return Signature(hashlib.sha256(os.fsencode(text)).hexdigest(), log_bytes, has_spec)


def _listed(folder: str) -> list[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry) for entry in entries]
    except OSError:  # reported in the row
        return []


def _looked_at(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # removed meanwhile, or a dangling link
        return None
