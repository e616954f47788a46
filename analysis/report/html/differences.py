"""Differences between the runs of a study: in configuration, and in what they ran on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from analysis.base import text
from analysis.read.environment import VERSION, read_environment
from analysis.read.row import Run
from analysis.tables.pairing import spec_of
from analysis.tables.series import flat

MOST_CHARACTERS = 60_000_000  # of all environments that are compared: 10,000 of the size of a node with eight GPUs
MOST_VALUES = 12  # of one key, named in the tables of differences
ABSENT = "(not there)"
STARTED = ("device_names", "versions", "communication")  # columns


@dataclass(frozen=True)
class Settings:
    """Of the runs of which they are known, by dotted names.

    shared: what all of them have. differing: of every key that runs have otherwise than others, the values that occur,
    with the number of runs, most frequent first. of_runs: what each run has that not all share, by its place in the
    table of runs; where two runs have all the same, one object; None: not known. A key that a run has not is no
    difference. left_out: runs of which they are known, and of too many kinds to be compared.
    """

    shared: Mapping[str, str]
    differing: Mapping[str, Sequence[tuple[str, int]]]
    of_runs: Sequence[Mapping[str, str] | None]
    left_out: int = 0

    def differing_of(self, run: int) -> Mapping[str, str]:
        """The settings of a run that differ from other runs."""
        return {key: value for key, value in (self.of_runs[run] or {}).items() if key in self.differing}


def configurations(runs: Sequence[Run]) -> Settings:
    """The configurations of the runs."""
    return _compared([_configuration(run) for run in runs])


def environments(runs: Sequence[Run], folder: Path) -> Settings:
    """What they ran on: every leaf of env.json as `analysis.read.environment` has it, and the devices of all ranks.
    folder: of the study; one file is read for all runs with the same digest.

    Of the runs with an env.json, what one of them lacks is a difference, too, such as a variable that was not set; but
    for the versions of another framework.
    """
    keys = [(run.env_digest, *(run[column] for column in STARTED)) for run in runs]
    digests = Counter(run.env_digest for run in runs if run.env_digest and run.env_file)
    files = {
        run.env_digest: folder / "runs" / run.run_id / run.env_file for run in runs if run.env_digest and run.env_file
    }
    recorded, left_out = _recorded(files, digests)
    every = {name: ABSENT for leaves in recorded.values() for name in leaves if not name.startswith(VERSION)}
    made: dict[tuple[Any, ...], Mapping[str, str]] = {}
    for key in keys:
        if key not in made:
            digest, *started = key
            leaves = {**every, **recorded[digest]} if digest in recorded else {}
            made[key] = {**_started(*started), **leaves}
    return replace(_compared([made[key] for key in keys]), left_out=left_out)


def _recorded(files: Mapping[str, Path], times: Counter[str]) -> tuple[dict[str, Mapping[str, str]], int]:
    """The leaves behind each digest, the most frequent first, and of how many runs there was no room for them."""
    recorded: dict[str, Mapping[str, str]] = {}
    room, left_out = MOST_CHARACTERS, 0
    for digest, n in times.most_common():
        if room < 0:
            left_out += n
        elif (found := read_environment(files[digest])) is not None:
            recorded[digest] = found.leaves
            room -= sum(len(name) + len(value) for name, value in found.leaves.items())
    return recorded, left_out


def hosts(runs: Sequence[Run]) -> Sequence[tuple[str, int]]:
    """The machines that runs ran on with the number of runs, most frequent first."""
    return Counter(run.hosts for run in runs if run.hosts).most_common()


def _compared(every: Sequence[Mapping[str, str]]) -> Settings:
    times = Counter(map(id, every))
    distinct = {id(own): own for own in every}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, own in distinct.items():
        for key, value in own.items():
            counts[key][value] += times[name]
    n_known = sum(bool(own) for own in every)
    shared = {
        key: value
        for key, found in sorted(counts.items())
        for value, n in found.items()
        if n == n_known  # of all runs, and so the only value
    }
    own_of = {
        name: {key: value for key, value in sorted(own.items()) if key not in shared} if own else None
        for name, own in distinct.items()
    }
    return Settings(
        shared=shared,
        differing={key: found.most_common() for key, found in sorted(counts.items()) if len(found) > 1},
        of_runs=[own_of[id(own)] for own in every],
    )


def _configuration(run: Run) -> dict[str, str]:
    """Empty if the run's spec could not be read."""
    if run.point is None:
        return {}
    return {
        **_spec(run.point),
        "seed": str(run.seed),
        "repeat": str(run.repeat),
        "verify": json.dumps(run.verify),
        "code version": str(run.code_version),
    }


@cache
def _spec(point: str) -> Mapping[str, str]:
    return {text.printable(name): text.printable(value) for name, value in flat(dict(spec_of(point))).items()}


def _started(device_names: str | None, versions: str | None, communication: str | None) -> Mapping[str, str]:
    """As far as the run came: what has not started has none of it, which is no difference."""
    found = {f"{VERSION}{name}": version for name, version in json.loads(versions or "{}").items()}
    if device_names:
        found["device"] = ", ".join(json.loads(device_names)) or text.DASH
    if communication:
        found["communication"] = communication
    return found
