"""Differences between the runs of a study in configuration and environment."""

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

MOST_CHARACTERS = 60_000_000  # of all environments compared: enough for 10,000 nodes with eight GPUs
MOST_VALUES = 12  # listed per key in the tables of differences
ABSENT = "(not there)"
# Fields that a training of the user's own leaves at their defaults.
OF_THE_CATALOGUE = (
    *(
        "framework_options",
        "strategy",
        "strategy_options",
        "dataset",
        "precision",
        "optimizer",
        "data",
        "deterministic",
    ),
)
STARTED = ("device_names", "versions", "communication")  # columns


@dataclass(frozen=True)
class Settings:
    """Settings of the runs by dotted name; a key missing from some runs is not a difference.

    shared: settings common to all runs with known settings. differing: for each key whose value differs, the values
    with their number of runs, most frequent first. of_runs: the settings of each run that not all share, by position in
    the table of runs; equal ones are the same object; None: unknown. left_out: number of runs that were not compared,
    since there are too many different settings.
    """

    shared: Mapping[str, str]
    differing: Mapping[str, Sequence[tuple[str, int]]]
    of_runs: Sequence[Mapping[str, str] | None]
    left_out: int = 0

    def differing_of(self, run: int) -> Mapping[str, str]:
        """Return the settings of a run that differ from other runs."""
        return {key: value for key, value in (self.of_runs[run] or {}).items() if key in self.differing}


def configurations(runs: Sequence[Run]) -> Settings:
    """Compare the configurations of the runs."""
    return _compared([_configuration(run) for run in runs])


def environments(runs: Sequence[Run], folder: Path) -> Settings:
    """Compare the runs' environments: the leaves of env.json (`analysis.read.environment`), and devices of all ranks.
    folder: of the study; one file is read for all runs with the same digest.

    Among runs with an env.json, a missing key, such as an unset variable, is a difference, except for versions of
    another framework.
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
    """Return the leaves behind each digest, most frequent first, and the number of runs beyond MOST_CHARACTERS."""
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
    """Return the machines that runs used with the number of runs, most frequent first."""
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
    """Return the run's configuration; empty if its spec could not be read."""
    if run.point is None:
        return {}
    return {
        **_spec(run.point),
        "seed": str(run.seed),
        "repeat": str(run.repeat),
        # Unknown of measurements from elsewhere.
        **({} if run.code_version is None else {"verify": json.dumps(run.verify), "code version": run.code_version}),
    }


@cache
def _spec(point: str) -> Mapping[str, str]:
    spec = dict(spec_of(point))
    if spec.get("workload"):  # of these only the training itself knows
        spec = {name: value for name, value in spec.items() if name not in OF_THE_CATALOGUE}
    return {text.printable(name): text.printable(value) for name, value in flat(spec).items()}


def _started(device_names: str | None, versions: str | None, communication: str | None) -> Mapping[str, str]:
    """Return what the run's start events recorded; missing if it did not start, which is not a difference."""
    found = {f"{VERSION}{name}": version for name, version in json.loads(versions or "{}").items()}
    if device_names:
        found["device"] = ", ".join(json.loads(device_names)) or text.DASH
    if communication:
        found["communication"] = communication
    return found
