"""The options matrix: checks of a framework's runs. This half runs in the tests' own environment.

A framework has a file `test_<framework>.py` (such as test_pytorch.py) with a `Side`, and `<framework>_side.py` with its
reference (see train_side.py). By default `pytest` trains a selection, one run of some strategies; `make test-options`
(`pytest --whole tests/options`) trains all.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from environments import in_environment
from options import space

# Time limit for one strategy and number of ranks, on two shared cores.
SECONDS = 3000


@dataclasses.dataclass(frozen=True)
class Side:
    """One framework. A distance is that of the weights after 8 steps from the reference's, relative to how far the
    latter moved.

    bound: on the distance of runs that differ from the reference by rounding in fp32. loose: bounds for runs with one
    of these values, such as precision=bf16; a run's largest applies. by_strategy: bounds for strategies that only
    approximate the reference on two ranks. left_out: values that cannot be trained with here, such as those that need
    a GPU, with the reason. slow: values to train with as rarely as possible. flips: bounds for runs with one of these
    values, whose other rounding may move an activation across a ReLU; unlike `loose`, without runs of their own.
    """

    framework: str
    environment: str
    bound: float
    loose: Mapping[str, float] = dataclasses.field(default_factory=dict)
    by_strategy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slow: Sequence[str] = ()
    flips: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def bound_of(self, run: space.Run) -> float:
        approximate = self.by_strategy.get(run.spec.strategy, 0.0) if run.spec.gpus > 1 else 0.0
        flips = [bound for value, bound in self.flips.items() if value in run.name.split()]
        return max(self.bound, approximate, *flips, *(self.loose[value] for value in run.loose))

    def runs(self, strategy: str, gpus: int) -> list[space.Run]:
        values = space.Values(frozenset(self.loose), frozenset(self.left_out), frozenset(self.slow))
        return space.runs(self.framework, strategy, gpus, values)

    def selection(self) -> list[space.Run]:
        """Return for each strategy the run on two ranks (for `plain`: one) with the most non-default values, among
        those with the tightest bound that are not slow."""
        found = []
        for strategy in space.strategies(self.framework):
            runs = self.runs(strategy, 1 if strategy == "plain" else 2)
            quick = [run for run in runs if not run.loose and not any(value in run.name for value in self.slow)]
            found.append(max(quick, key=lambda run: len(run.name.split())))
        return found


def every(side: Side) -> list[Any]:
    """Return parameters for parametrize: each strategy on one rank and on two."""
    cases = [
        (strategy, gpus)
        for strategy in space.strategies(side.framework)
        for gpus in (1, 2)[: 1 + (strategy != "plain")]
    ]
    return [pytest.param(*case, id=f"{case[0]}-{case[1]}", marks=pytest.mark.whole) for case in cases]


def first(runs: Sequence[space.Run], loose: str) -> space.Run:
    """Return the first run with only this loose value; '': with none."""
    return next(run for run in runs if run.loose == ((loose,) if loose else ()))


def assert_near_reference(side: Side, runs: Sequence[space.Run]) -> None:
    """Train the runs and report all deviations at once."""
    assert runs
    wrong = []
    for run, said in zip(runs, judged(side, runs), strict=True):
        bound = side.bound_of(run)
        if "error" in said:
            wrong.append(f"{run.name}: {said['error']}")
        elif not said["apart"] <= bound:
            wrong.append(f"{run.name}: {said['apart']:.1e} from the reference, bound {bound:.0e}")
        elif said["ranks_apart"]:
            wrong.append(f"{run.name}: its ranks' weights differ by {said['ranks_apart']:.1e}")
    assert not wrong, f"{len(wrong)} of {len(runs)} runs:\n" + "\n".join(wrong)


def assert_bounds_tell_defects(side: Side, runs: Sequence[space.Run], defects: Mapping[str, Iterable[str]]) -> None:
    """Assert that each of these defects moves the reference beyond the run's bound. defects: by the loose value of the
    runs, "" for none, or the strategy's name for those in `by_strategy`."""
    for run, said in zip(runs, judged(side, runs, True), strict=True):
        kind = run.loose[0] if run.loose else run.spec.strategy if run.spec.strategy in side.by_strategy else ""
        for defect in defects[kind]:
            found, bound = said["defects"][defect], side.bound_of(run)
            assert found > bound, f"{run.name}: {defect} {found:.1e}, bound {bound:.0e}"


def assert_left_out_is_there(side: Side) -> None:
    """Assert that the values left out exist."""
    offered = {
        space.value_name(option, setting)
        for strategy in space.strategies(side.framework)
        for option, settings in space.options(side.framework, strategy).items()
        for setting in settings
    }
    assert set(side.left_out) <= offered


def judged(side: Side, runs: Sequence[space.Run], defects: bool = False) -> list[dict[str, Any]]:
    asked = [f"options.{side.framework}_side", [run.plain() for run in runs], defects]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:  # too long for a command line
        json.dump(asked, file)
        file.flush()
        found: list[dict[str, Any]] = in_environment(
            side.environment, "options.train_side", "judge_file", file.name, timeout_seconds=SECONDS
        )
    return found
