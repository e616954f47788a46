"""`python -m analysis simulate results/<study> gpus=...`: command line of the simulation."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError
from analysis.commands.sources import declare_reading, study_of

if TYPE_CHECKING:
    from analysis.simulation.study import Options

# Key: (default, minimum, whether the minimum itself is allowed, help).
KEYS: dict[str, tuple[float | None, float, bool, str]] = {
    "steps": (1000, 1, True, "steps to simulate for each size"),
    "latency_us": (
        5.0,
        0,
        True,
        "latency between GPUs in microseconds; the default is typical of InfiniBand, not measured",
    ),
    "bus_gb_per_s": (None, 0, False, "bus bandwidth between nodes; default: as measured"),
    "bucket_mb": (None, 0, False, "size of a gradient bucket; default: the study's, or 25"),
    "late_probability": (0.0, 0, True, "probability that a GPU is late in a step"),
    "late_seconds": (0.0, 0, True, "delay of a late GPU"),
    "mtbf_hours": (None, 0, False, "mean hours between failures of a node; with it, failing runs are simulated"),
    "checkpoint_seconds": (60.0, 0, False, "time to save a checkpoint"),
    "restart_seconds": (300.0, 0, True, "time from a failure until training resumes"),
    "work_hours": (168.0, 0, False, "duration of a run without failures"),
    "weibull_shape": (1.0, 0, False, "shape of the distribution of times between failures; 1: exponential"),
    "seed": (0, 0, True, "seed of the random numbers"),
}
WHOLE = ("steps", "seed")
MOST_DRAWS = 2e8  # GPUs x steps; about half a minute
NOTE = (
    "Simulated, not measured: each GPU's own noise is that of the measured ones, the network is as fast on many nodes "
    "as on the measured ones, and nobody else uses it."
)


def declare(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Simulates synchronous steps, and runs that fail, on many more GPUs than a study has measured."
    parser.epilog = "keys:\n  gpus=64,256\n" + "".join(f"  {_key(key)}\n" for key in KEYS)
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>")
    declare_reading(parser)
    parser.add_argument("keys", nargs="*", metavar="key=value", help="gpus=..., and those below")


def run(options: argparse.Namespace) -> int:
    """Print the simulation. Raises StudyError for errors the user can fix, or if no series can be simulated."""
    return _simulate(options, _options(options.keys))


def _key(key: str) -> str:
    default, _, _, about = KEYS[key]
    return f"{key}={'' if default is None else f'{default:g}':<8} {about}"


def _options(texts: list[str]) -> Options:
    from analysis.simulation.study import Options

    given = {}
    for text in texts:
        key, equals, said = text.partition("=")
        if not equals or key not in ("gpus", *KEYS):
            raise StudyError(f"{text!r}: give key=value, with one of gpus, {', '.join(KEYS)}")
        given[key] = said
    try:
        gpus = tuple(int(part) for part in given.pop("gpus", "").split(","))
    except ValueError:
        gpus = ()
    if not gpus or min(gpus) < 1:
        raise StudyError("gpus=...: give the numbers of GPUs to simulate, such as gpus=64,256")
    values: dict[str, float | None] = {key: default for key, (default, *_) in KEYS.items()}
    for key, said in given.items():
        _, least, included, _ = KEYS[key]
        try:
            value = float(said)
        except ValueError:
            value = math.nan
        if not (least < value < math.inf or (included and value == least)) or (key in WHOLE and value != int(value)):
            kind = "whole number" if key in WHOLE else "number"
            raise StudyError(
                f"{key}={said}: give a {kind} {'from' if included else 'above'} {least:g}{' on' * included}"
            )
        values[key] = int(value) if key in WHOLE else value
    if max(gpus) * (values["steps"] or 1) > MOST_DRAWS:
        raise StudyError(
            f"gpus={max(gpus)} steps={values['steps']}: give at most {MOST_DRAWS:,.0f} steps of a GPU in all, such as "
            f"steps={max(1, int(MOST_DRAWS / max(gpus)))}"
        )
    return Options(gpus=gpus, **values)  # type: ignore[arg-type]


def _simulate(arguments: argparse.Namespace, options: Options) -> int:
    from analysis.base.text import gpus_text
    from analysis.measures.speedup import points_of
    from analysis.simulation import study as simulation

    folder: Path = arguments.study
    study = study_of(folder, arguments)
    simulated, left_out = simulation.simulate(points_of(study.runs), folder, options)
    if not simulated:
        raise StudyError(
            f"nothing of {folder} can be simulated: " + ("; ".join(left_out) or "it has no measured point")
        )
    for found in simulated:
        print(*simulation.sentences(found), sep="\n")
    print(*left_out, sep="\n", end="\n" if left_out else "")
    if options.mtbf_hours is not None:
        largest = max((found.measured for found in simulated), key=lambda point: point.ranks_per_node)
        per_node, device = largest.ranks_per_node, largest.device
        nodes = {gpus: -(-gpus // per_node) for gpus in options.gpus}
        print(f"Runs that fail, with {gpus_text(per_node, device)} to a node:")
        print(*simulation.failure_sentences(options, nodes, device), sep="\n")
    print(NOTE)
    return 0
