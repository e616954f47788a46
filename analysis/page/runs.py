"""What each run says of itself: its configuration and environment, and what of them the runs do not share."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from analysis import text
from analysis.metrics import goodput
from analysis.page.folding import deflated
from analysis.run import COMPLETED
from analysis.series import flat

MOST_STDERR_LINES = 40
MOST_LINE_LENGTH = 2_000  # characters of one line
# Of a study with very many runs, so many lines of each as still fit.
FEWER_LINES = (MOST_STDERR_LINES, 10, 3, 0)
MOST_DETAILS = 2_500_000  # characters, compressed
MANY_OTHERS = 200  # runs without a figure whose whole tails stand in the page
MOST_VALUES = 12  # of one key, named in the table of differences


@dataclass(frozen=True)
class Settings:
    """The configuration and the environment of the runs whose spec could be read, by dotted names.

    shared: what all of them have. differing: of every key that runs have otherwise than others, the values that occur,
    with the number of runs, most frequent first. of_runs: what each run has that not all share, by its place in the
    table of runs. A key that a run has not, such as the version of another framework, is no difference.
    """

    shared: Mapping[str, str]
    differing: Mapping[str, Sequence[tuple[str, int]]]
    of_runs: Sequence[Mapping[str, str]]

    def differing_of(self, run: int) -> Mapping[str, str]:
        """What of a run's settings is otherwise in others."""
        return {key: value for key, value in self.of_runs[run].items() if key in self.differing}


def settings_of(runs: Sequence[Mapping[str, Any]]) -> Settings:
    """Of the rows of `analysis.run`."""
    every = [_settings(run) for run in runs]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for settings in every:
        for key, value in settings.items():
            counts[key][value] += 1
    n_known = sum(bool(settings) for settings in every)
    shared = {
        key: value
        for key, found in sorted(counts.items())
        for value, n in found.items()
        if n == n_known  # of all runs, and so the only value
    }
    return Settings(
        shared=shared,
        differing={key: found.most_common() for key, found in sorted(counts.items()) if len(found) > 1},
        of_runs=[{key: value for key, value in sorted(own.items()) if key not in shared} for own in every],
    )


def other_runs(runs: Sequence[Mapping[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """The runs without a figure, each with `lines`, the last of its stderr, and `differing`, its settings that others
    have otherwise."""
    found = [{**run, "differing": settings.differing_of(i)} for i, run in enumerate(runs) if run["status"] != COMPLETED]
    most = MOST_STDERR_LINES if len(found) <= MANY_OTHERS else FEWER_LINES[2]
    return [{**run, "lines": tail(run, most)} for run in found]


def tail(run: Mapping[str, Any], most: int) -> list[str]:
    """The last lines of a run's stderr, without the rest of very long ones."""
    lines = json.loads(run["stderr_tail"] or "[]")
    return [text.shortened(line, MOST_LINE_LENGTH) for line in lines[-most:]] if most else []


def details_block(runs: Sequence[Mapping[str, Any]], settings: Settings) -> tuple[str, int]:
    """(compressed JSON, lines of stderr in it at most): {"shared": {...}, "differing": [keys], "runs": {run id: {
    "status", "facts", "settings", "lines"}}}, which page.js shows when a run is opened."""
    for most in FEWER_LINES:
        details = {
            run["run_id"]: {"status": run["status"], "facts": _facts(run), "settings": own, "lines": tail(run, most)}
            for run, own in zip(runs, settings.of_runs, strict=True)
        }
        document = {"shared": settings.shared, "differing": list(settings.differing), "runs": details}
        block = deflated(json.dumps(document, separators=(",", ":")))
        if len(block) <= MOST_DETAILS:
            break
    return block, most


def attempts_cost(run: Mapping[str, Any]) -> str:
    """What the attempts of a run took, and what of it was of use."""
    share = text.percent(goodput([run["useful_seconds"]], [run["allocated_seconds"]]))
    return (
        f"{run['attempts']} attempts: {text.duration(run['useful_seconds'])} useful of "
        f"{text.duration(run['allocated_seconds'])} allocated, goodput {share}; "
        f"{text.duration(run['idle_seconds'])} between the attempts, {text.duration(run['checkpoint_seconds'])} in "
        f"checkpoints, {text.count(run['lost_steps'])} steps lost"
    )


def damages(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(run, what the reader passed over in its logs), of every run where there was such."""
    found = []
    for run in runs:
        said = []
        if n := run["unreadable_lines"]:
            said.append(f"{n:,} unreadable line{'s' * (n > 1)}")
        if n := run["left_out_blocks"]:
            said.append(f"{n:,} block{'s' * (n > 1)} of steps not in every rank's log, or not alike")
        if said:
            found.append((run["run_id"], ", ".join(said)))
    return found


def _facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    rate = run["samples"] / run["seconds"] if run["samples"] and run["seconds"] else None
    facts = {
        "Reason": run["reason"],
        "Samples/s": None if rate is None else text.number(rate),
        "Test accuracy": None if run["accuracy"] is None else text.percent(run["accuracy"], 1),
        "Failed first": None if run["failed_rank"] is None else f"rank {run['failed_rank']}",
        "Exit code": run["exit_code"],
        "Attempt": run["attempt"],
        "Time": attempts_cost(run) if run["attempts"] is not None and run["attempts"] > 1 else None,
        "Job": run["job_id"],
        "Started": None if run["started"] is None else text.moment(run["started"]),
        "Ended": None if run["ended"] is None else text.moment(run["ended"]),
        "Oversubscribed": run["oversubscribed"],
        "Notes": run["notes"],
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _settings(run: Mapping[str, Any]) -> dict[str, str]:
    """Empty where the run's spec could not be read."""
    if run["point"] is None:
        return {}
    return {
        **_spec(run["point"]),
        "seed": str(run["seed"]),
        "repeat": str(run["repeat"]),
        "verify": json.dumps(run["verify"]),
        "code version": run["code_version"],
        **({"communication": run["communication"]} if run["communication"] else {}),
        **_environment(run["device_names"], run["versions"]),
    }


@cache
def _spec(point: str) -> Mapping[str, str]:
    return {text.printable(name): text.printable(value) for name, value in flat(json.loads(point)).items()}


@cache
def _environment(device_names: str | None, versions: str | None) -> Mapping[str, str]:
    """As far as the run came: what has not started has none of it, which is no difference."""
    found = {f"version of {name}": version for name, version in json.loads(versions or "{}").items()}
    if device_names:
        found["device"] = ", ".join(json.loads(device_names)) or text.DASH
    return found
