"""The options matrix: the half that trains, inside a framework's environment (Python 3.8 syntax, no test packages).

`judge` trains runs (space.py) with real ranks, several runs in a process, and compares their weights with those of the
framework's reference. A framework adds a file `tests/options/<framework>_side.py` beside pytorch_side.py, with

    reference(spec, batches, defect="") -> list of float32 arrays
        The weights after STEPS steps, in the order and layout of `models.initial`, trained as plainly as the framework
        can: one process, no option of spec.framework_options except REFERENCE_OPTIONS, no communication.
        `batches(rank)` is an iterator of that rank's NumPy batches, (uint8 [n, height, width, channels], int64 [n]).
        It includes what the ranks do together: the mean of the gradients over the replicas, or averaging weights every
        few steps. defect: one of DEFECTS, introduced on purpose.
    DEFECTS: the defects that every bound must distinguish from the reference.
    REFERENCE_OPTIONS: optional; the options of spec.framework_options that the reference supports.
    ONCE: optional; the strategies that can be joined only once per process.
    reset(): optional; called between two runs in one process.
    loss_scale(adapter) -> float: optional; reference() then takes `skipped`, per rank the steps that the loss scaler of
        an fp16 run skipped: close to overflow rounding decides, and the runs would be a step apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np
from builders import make_site
from noise import flat

from harness.core.rendezvous import Rendezvous
from harness.core.serialization import from_plain
from harness.core.spec import RunSpec
from harness.core.system.ports import held_port
from harness.worker.data.pipelines import open_pipeline
from harness.worker.data.readers import open_dataset

STEPS = 8
# Ranks of one run, all on this machine.
Plain = Dict[str, Any]
# A longer run hangs; on two busy cores, compiling is slowest.
SECONDS = 240.0


def judge_file(path: str) -> List[Dict[str, Any]]:
    """Call `judge` with the arguments in a file."""
    return judge(*json.loads(Path(path).read_text()))


def judge(side: str, runs: List[Plain], defects: bool = False) -> List[Dict[str, Any]]:
    """Train runs. Return for each: `apart`, the largest distance of its ranks' weights from the reference, relative to
    how far that one moved; `ranks_apart`, the largest difference between its ranks' weights; or `error`, an output.

    side: the module's name. defects: also return `defects`, the distance of the reference with each defect.
    """
    framework = importlib.import_module(side)
    groups: Dict[str, List[int]] = {}
    for number, run in enumerate(runs):
        alone = run["spec"]["strategy"] in getattr(framework, "ONCE", ()) or _forks(run)
        groups.setdefault(f"{_process_of(run)} {number if alone else ''}", []).append(number)
    trained: Dict[int, Any] = {}
    for numbers in groups.values():
        trained.update(_trained(side, runs, numbers))
    known: Dict[str, np.ndarray] = {}
    found = []
    for number, run in enumerate(runs):
        if isinstance(trained[number], str):
            found.append({"error": trained[number]})
            continue
        ranks = trained[number]
        spec = from_plain(RunSpec, run["spec"])
        options = {name: spec.framework_options[name] for name in getattr(framework, "REFERENCE_OPTIONS", ())}
        key = json.dumps({**run["spec"], "framework_options": options, "data": None})
        given = {"skipped": [rank["skipped"].tolist() for rank in ranks]} if hasattr(framework, "loss_scale") else {}
        key += json.dumps(given)
        if key not in known:
            known[key] = flat(framework.reference(spec, _batches_of(spec), **given))
        reference, start = known[key], ranks[0]["start"]
        moved = float(np.linalg.norm(reference - start))
        said = {
            "apart": max(float(np.linalg.norm(rank["weights"] - reference)) for rank in ranks) / moved,
            "ranks_apart": max(float(np.abs(rank["weights"] - ranks[0]["weights"]).max()) for rank in ranks),
            "moved": moved,
        }
        if defects:
            worse = {
                name: flat(framework.reference(spec, _batches_of(spec), name, **given)) for name in framework.DEFECTS
            }
            said["defects"] = {
                name: float(np.linalg.norm(weights - reference)) / moved for name, weights in worse.items()
            }
        found.append(said)
    return found


def rank(folder: str, own: int) -> None:
    """Run one rank of a group of runs, given by `group.json` in the folder."""
    group = json.loads((Path(folder) / "group.json").read_text())
    side = importlib.import_module(group["side"])
    last = group["runs"][-1][0]
    for number, run, port in group["runs"]:
        try:
            _train(
                side,
                from_plain(RunSpec, run["spec"]),
                own,
                port,
                Path(folder) / f"run{number}.rank{own}",
                number == last,
            )
        except BaseException:
            (Path(folder) / f"run{number}.rank{own}.error").write_text(traceback.format_exc())
            os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # see harness/worker/__main__.py


def _train(side: Any, spec: RunSpec, own: int, port: int, result: Path, last: bool) -> None:
    if hasattr(side, "reset"):
        side.reset()
    framework = importlib.import_module(f"harness.worker.{spec.framework}")
    train, _ = open_dataset(spec.dataset, None, spec.seed)
    batches = open_pipeline(spec, train, own, 0, getattr(framework, "PIPELINES", {}))
    rendezvous = Rendezvous(own, spec.gpus, own, spec.gpus, "127.0.0.1", port)
    adapter = framework.Adapter(spec, make_site(timeout_seconds=SECONDS), rendezvous, batches)
    batches.start()
    start = flat(adapter.weights())
    scale_of, skipped = getattr(side, "loss_scale", lambda _: 0.0), []
    for step in range(STEPS):
        before = scale_of(adapter)
        adapter.step()
        if scale_of(adapter) < before:
            skipped.append(step)
    adapter.fence()
    with adapter.evaluation():  # with the weights that the ranks trained together
        weights = flat(adapter.weights())
    adapter.allreduce_sum([0.0])
    # MPI and Horovod can be finalised only once per process.
    if last or spec.strategy not in ("mpi", "horovod"):
        adapter.close()
    batches.close()
    half = result.with_name(f".{result.name}.npz")
    np.savez(half, start=start, weights=weights, skipped=np.array(skipped, np.int64))
    half.replace(result.with_name(f"{result.name}.npz"))


def _process_of(run: Plain) -> str:
    """Return a key: runs with equal keys can train in the same processes, one after another."""
    spec = run["spec"]
    # Settings of MPI and Horovod, and environment variables, apply to a whole process.
    own = spec["strategy_options"] if spec["strategy"] == "horovod" else None
    once = spec["strategy"] in ("mpi", "horovod")
    return json.dumps([spec["gpus"], _over_mpi(spec), once, own, _compiled(run), run["environment"]])


def _compiled(run: Plain) -> bool:
    """Return whether torch.compile is used, which leaves threads behind."""
    return bool(run["spec"]["framework_options"].get("compile"))


def _forks(run: Plain) -> bool:
    """Return whether DataLoader forks workers; as in a real run, it must do so before the process has threads."""
    data = run["spec"]["data"]
    return run["spec"]["framework"] == "pytorch" and data["pipeline"] == "framework" and data["workers"] > 0


def _over_mpi(spec: Plain) -> bool:
    return spec["strategy"] == "mpi" or spec["strategy_options"].get("controller") == "mpi"


def _trained(side: str, runs: List[Plain], numbers: Sequence[int]) -> Dict[int, Any]:
    """Return for each run what its ranks saved, or its output if it failed; the others then continue without it."""
    found: Dict[int, Any] = {}
    left = list(numbers)
    while left:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
            ports = [held.enter_context(held_port()) for _ in left]
            group = {"side": side, "runs": [(n, runs[n], port) for n, port in zip(left, ports)]}
            (Path(folder) / "group.json").write_text(json.dumps(group))
            _processes(Path(folder), runs[left[0]])
            count = runs[left[0]]["spec"]["gpus"]
            while left:
                files = [Path(folder) / f"run{left[0]}.rank{r}.npz" for r in range(count)]
                if not all(file.exists() for file in files):
                    break
                found[left.pop(0)] = [dict(np.load(file)) for file in files]
            if left:
                errors = sorted(Path(folder).glob(f"run{left[0]}.*.error"))
                said = "\n".join(file.read_text() for file in errors)
                found[left.pop(0)] = said or (Path(folder) / "output").read_text()[-3000:] or "a rank hung"
    return found


def _processes(folder: Path, run: Plain) -> None:
    """Run the ranks of a group until they end, one fails, or nothing has been saved for SECONDS."""
    spec = run["spec"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment.update(run["environment"])
    code = "import os, sys\nfrom options import train_side\ntrain_side.rank(sys.argv[1], int({rank}))"
    if _over_mpi(spec):
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        beside = Path(sys.executable).with_name("mpirun")
        mpirun = str(beside) if beside.exists() else str(shutil.which("mpirun"))
        own = code.format(rank="os.environ['OMPI_COMM_WORLD_RANK']")
        start = [mpirun, "-n", str(spec["gpus"]), "--oversubscribe", "--bind-to", "none"]
        commands = [[*start, sys.executable, "-c", own, str(folder)]]
    else:
        commands = [[sys.executable, "-c", code.format(rank=r), str(folder)] for r in range(spec["gpus"])]
    with open(folder / "output", "wb") as output:
        streams: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        processes = [subprocess.Popen(command, env=environment, **streams) for command in commands]
        try:
            seen, since = 0, time.monotonic()
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    time.sleep(2)  # lets its peers report it
                    return
                files = len(list(folder.glob("*.npz")))
                if files > seen:
                    seen, since = files, time.monotonic()
                if time.monotonic() - since > SECONDS:
                    return
                time.sleep(0.05)
        finally:
            for process in processes:
                process.terminate()  # mpirun stops its ranks
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
                process.wait()


def _batches_of(spec: RunSpec) -> Callable[[int], Iterator[Tuple[np.ndarray, np.ndarray]]]:
    """Return a function that yields a rank's batches from the NumPy pipeline."""
    plain = dataclasses.replace(spec, data=dataclasses.replace(spec.data, pipeline="harness", workers=0, prefetch=0))
    train, _ = open_dataset(spec.dataset, None, spec.seed)
    return lambda rank: iter(open_pipeline(plain, train, rank, 0, {}))
