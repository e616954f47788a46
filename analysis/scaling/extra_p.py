"""Extra-P as a peer (Calotoiu et al. 2013; https://github.com/extra-p/extrap), run in its own environment.

It needs NumPy 1 and PySide6, so it is not a dependency but runs as a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
from collections.abc import Sequence
from typing import Any

from analysis.base.errors import StudyError
from analysis.scaling.backtest import PEERS, SeriesBacktest
from analysis.scaling.baselines import EXTRA_P

ALL_PEERS = (*PEERS, EXTRA_P)
NOT_INSTALLED = "Extra-P: not run; --extrap PYTHON names a Python that has it"
# Reads [[[gpus, step cost], ...], target gpus] per series as JSON; prints one prediction each, null if it has none.
SCRIPT = """
import json, sys
from extrap.entities.callpath import Callpath
from extrap.entities.coordinate import Coordinate
from extrap.entities.experiment import Experiment
from extrap.entities.measurement import Measurement
from extrap.entities.metric import Metric
from extrap.entities.parameter import Parameter
from extrap.modelers.model_generator import ModelGenerator
from extrap.util.options_parser import SINGLE_PARAMETER_MODELER_KEY, SINGLE_PARAMETER_OPTIONS_KEY

def predict(points, target):
    experiment = Experiment()
    experiment.add_parameter(Parameter("p"))
    path, metric = Callpath("step"), Metric("time")
    experiment.add_callpath(path)
    experiment.add_metric(metric)
    for gpus, cost in points:
        place = Coordinate(float(gpus))
        experiment.add_coordinate(place)
        experiment.add_measurement(Measurement(place, path, metric, [cost]))
    generator = ModelGenerator(experiment)
    generator.model_all()
    model = experiment.modelers[0].models[(path, metric)]
    return float(model.hypothesis.function.evaluate(float(target)))

out = []
for points, target in json.load(sys.stdin):
    try:
        out.append(predict(points, target))
    except Exception as error:
        print(repr(error), file=sys.stderr)
        out.append(None)
print("PREDICTED", json.dumps(out))
"""


def with_extrap(tests: Sequence[SeriesBacktest], python: str | None) -> tuple[list[SeriesBacktest], str]:
    """Add Extra-P to the peers of the tests; also return a sentence on where it came from.

    It models GPU-seconds per sample as a function of the number of GPUs. Raises StudyError if `python` lacks Extra-P.
    """
    if python is None:
        return list(tests), NOT_INSTALLED
    tested = [test for test in tests if test.largest is not None]
    asked = [_question(test) for test in tested]
    predicted = iter(_run(python, asked))
    found = []
    for test in tests:
        if test.largest is not None:
            cost = next(predicted)
            usable = cost is not None and math.isfinite(cost) and cost > 0
            rate = test.largest.size.gpus / cost if usable and cost is not None else None
            test = dataclasses.replace(test, peers={**test.peers, EXTRA_P: rate})
        found.append(test)
    return found, f"Extra-P: run by {python}, of GPU-seconds per sample against GPUs"


def _question(test: SeriesBacktest) -> list[Any]:
    costs = dict(zip((size.gpus for size in test.series.sizes), map(float, test.series.costs), strict=True))
    assert test.largest is not None
    return [[(size.gpus, costs[size.gpus]) for size in test.used], test.largest.size.gpus]


def _run(python: str, asked: list[Any]) -> list[float | None]:
    try:
        done = subprocess.run([python, "-c", SCRIPT], input=json.dumps(asked), capture_output=True, text=True)
    except OSError as error:
        raise StudyError(f"--extrap {python} cannot be run: {error.strerror}; name a Python that has Extra-P") from None
    if done.returncode or "PREDICTED" not in done.stdout:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise StudyError(f"--extrap {python} has no Extra-P that runs ({last}); try `pip install extrap` there")
    return json.loads(done.stdout.split("PREDICTED ")[-1])
