"""What the doctor looks at without a scheduler: this machine, the frameworks' environments, the data sets."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import environments, machine, mpi, profiling, scheduler
from harness.config import CONF, compose
from harness.errors import UserError
from harness.plan import MPIRUN
from harness.request import PROJECT
from harness.scheduler import Away
from harness.schema import Cluster, Config, Container, Dataset, Device, Framework, Scheduler
from harness.spec import DALI, EMULATED, HARNESS, NSYS
from harness.worker.data.locate import SYNTHETIC, DataError, locate

OK, MISSING, NOTE = "ok", "missing", "note"
OLDEST_PYTHON = (3, 11)
PACKAGES = ("hydra-core", "submitit", "rich", "pandas")
SMI_SECONDS = 30
# A first import of a framework from a busy shared file system takes minutes.
FRAMEWORK_SECONDS = 180.0
# A small study with its checkpoints needs less.
LITTLE_SPACE = 2**30
QUESTION = (
    "import importlib, json; from importlib import metadata; of = importlib.import_module('harness.worker.{}'); "
    "carriers = {{d.metadata['Name']: d.version for d in metadata.distributions()}}; "
    "print(json.dumps({{'versions': of.versions(), 'gpus': of.gpus(), "
    "'carriers': {{name: carriers[name] for name in {} if name in carriers}}}}))"
)
# What carries the gradients of a strategy, and is installed beside the framework.
CARRIERS = {"horovod": "horovod", "mpi": "mpi4py"}


@dataclass(frozen=True)
class Check:
    """One line of the doctor's. state: OK, MISSING (the configuration needs it), NOTE (good to know, or needed by
    another configuration). advice: what to do; empty where there is nothing."""

    group: str
    name: str
    state: str
    found: str
    advice: str = ""


class Silent(Exception):
    """A framework's environment did not say what it has; the message says why."""


def here(config: Config) -> Iterator[Check]:
    """This machine, and the harness's own environment."""
    old = sys.version_info < OLDEST_PYTHON
    needs = f"use a Python of at least {'.'.join(map(str, OLDEST_PYTHON))}: `make login` builds .venv with one"
    version = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    yield Check("here", "Python", MISSING if old else OK, version, needs if old else "")
    for package in PACKAGES:
        try:
            yield Check("here", package, OK, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Check("here", package, MISSING, f"not in {sys.executable}", "`make login` builds .venv with it")
    code = machine.code_version(PROJECT)
    if code == "unknown":
        yield Check(
            "here", "code version", NOTE, "unknown: not a git checkout; results cannot say which code made them"
        )
    elif code.endswith("-dirty"):
        yield Check(
            "here", "code version", NOTE, f"{code}: tracked files are edited", "commit, to have it reproducible"
        )
    else:
        yield Check("here", "code version", OK, code)
    yield _results(Path(config.results).expanduser().absolute())
    yield _gpus(config.cluster)


def frameworks(config: Config, config_dir: str | None) -> Iterator[Check]:
    """The configured framework, and every other one that conf/ has."""
    yield _container(config.cluster) if config.cluster.container.runtime else _framework(config.framework, config)
    if mpi.needed(config.strategy):
        yield _mpi(config)
    if config.trace == NSYS:
        yield _nsys(config)
    for name, other in _others("framework", config.framework.name, config_dir):
        if isinstance(other, Framework):
            yield _as_note(_framework(other, config))
        else:
            yield Check("frameworks", name, NOTE, str(other))


def datasets(config: Config, config_dir: str | None) -> Iterator[Check]:
    """The configured data set, and every other one that conf/ has."""
    mine = _dataset(config.dataset, config.data.root)
    if mine.state == MISSING and not config.data.check:
        advice = "with data.check=false only the nodes need to see it: --probe looks there" + f"; {mine.advice}"
        mine = replace(mine, state=NOTE, advice=advice)
    yield mine
    for name, other in _others("dataset", config.dataset.name, config_dir):
        if isinstance(other, Dataset):
            check = _dataset(other, config.data.root)
            # Of a data set that is not asked for, every place that was looked at is too much.
            brief = f"not found under {config.data.root}" if check.state == MISSING else check.found
            yield replace(_as_note(check), found=brief)
        else:
            yield Check("data sets", name, NOTE, str(other))


def uses_cuda(cluster: Cluster) -> bool:
    """Whether its runs compute on GPUs; `auto` is told apart on this machine."""
    return cluster.device is Device.cuda or (cluster.device is Device.auto and bool(machine.gpus()))


def ask(
    framework: str, command: Sequence[str], variables: Mapping[str, str], seconds: float = FRAMEWORK_SECONDS
) -> dict[str, Any]:
    """What the framework says of itself: versions (name -> version) and gpus (their names); and what of CARRIERS is
    beside it, with its version.

    command: its Python, in a container with what stands before it. variables: cluster.env. Raises Silent.
    """
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    argv = [*command, "-c", QUESTION.format(framework, tuple(CARRIERS.values()))]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, env={**env, **variables}
        )
    except subprocess.TimeoutExpired:
        raise Silent(f"{argv[0]} did not load it within {seconds:.0f} s") from None
    except OSError as error:
        raise Silent(f"{argv[0]}: {error.strerror}") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        versions, carriers = dict(answer["versions"]), dict(answer["carriers"])
        return {"versions": versions, "carriers": carriers, "gpus": list(answer["gpus"])}
    except (IndexError, ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Silent(f"{command[-1]} does not load harness.worker.{framework}: {said[-1].strip()}") from None


def judged(
    group: str,
    answer: dict[str, Any],
    framework: Framework,
    strategy: str,
    cuda: bool,
    gpus: int | None,
    pipeline: str = HARNESS,
) -> Check:
    """What an environment has, against what the configuration computes on, and with which strategy and input pipeline.

    gpus: how many it must see where it was asked; None where that says nothing, as on a login node.
    """
    name, versions, carriers, seen = framework.name, answer["versions"], answer["carriers"], answer["gpus"]
    found = ", ".join(f"{key} {value}" for key, value in {**versions, **carriers}.items())
    if gpus is not None and seen:
        found += f"; sees {counted(seen)}"
    if cuda and "cuda" not in versions:
        build = f"VARIANT=cuda sbatch/env/{framework.environment}.sh"
        how = f"build it with `{build}`" if _has_builder(framework) else "install a CUDA build there"
        return Check(
            group, name, MISSING, f"{found}: a build without CUDA", f"{how}, or take cluster.device=cpu on CPU nodes"
        )
    if cuda and gpus is not None and len(seen) < gpus:
        return Check(
            group,
            name,
            MISSING,
            f"{found}: of {gpus} GPUs it sees {len(seen)}",
            "see that the driver is new enough for the build's CUDA version, and that a job is given as many",
        )
    if DALI in framework.pipelines and DALI not in versions:
        found += f"; no NVIDIA DALI: data.pipeline={DALI} cannot run"
        if pipeline == DALI:
            with_it = f"`DALI=1 sbatch/env/{framework.environment}.sh` builds the environment with it"
            advice = with_it if _has_builder(framework) else "install nvidia-dali-cuda130 there"
            return Check(group, name, MISSING, found, f"{advice}, or take data.pipeline={HARNESS}")
    offered = {of: carrier for of, carrier in CARRIERS.items() if of in framework.strategies}
    if lacking := {of: carrier for of, carrier in offered.items() if carrier not in carriers}:
        found += f"; no {' and no '.join(lacking.values())}: strategy={','.join(lacking)} cannot run"
        again = f"`sbatch/env/{framework.environment}.sh` builds the environment with all of it"
        advice = again if _has_builder(framework) else f"install {', '.join(lacking.values())} there"
        return Check(group, name, MISSING if strategy in lacking else NOTE, found, advice)
    return Check(group, name, OK, found)


def nvidia_smi(*argv: str) -> list[str]:
    """The lines that it prints. Raises Away with its words where there is no driver."""
    done = scheduler.command("nvidia-smi", *argv, seconds=SMI_SECONDS)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        raise Away("; ".join([*lines, *done.stderr.splitlines()]) or "nvidia-smi lists no GPU")
    return lines


def counted(names: Sequence[str]) -> str:
    """['A', 'A', 'B'] -> '2 x A, B'."""
    return ", ".join(f"{number} x {name}" if number > 1 else name for name, number in Counter(names).items())


def only_in_jobs(cluster: Cluster) -> bool:
    """Whether jobs load something first, so that what is missing here may be there."""
    return cluster.scheduler is not Scheduler.local and bool(cluster.modules or cluster.setup)


def _results(folder: Path) -> Check:
    """Makes a file where the results are to go, locks it, and takes it away again."""
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".doctor-") as file:
            free = shutil.disk_usage(existing).free
            found = f"{folder} can be written, {free / 2**30:.1f} GiB free"
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                advice = "start one command at a time per study"
                return Check("here", "results folder", NOTE, f"{found}; no file locks ({error.strerror})", advice)
    except OSError as error:
        advice = "set results=<a folder that you can write, and that the nodes see>"
        return Check("here", "results folder", MISSING, f"{folder} cannot be written: {error.strerror}", advice)
    if free < LITTLE_SPACE:
        return Check("here", "results folder", NOTE, f"{found}: little", "set results=<a folder with more space>")
    return Check("here", "results folder", OK, f"{found}, file locks work")


def _gpus(cluster: Cluster) -> Check:
    try:
        listed = nvidia_smi("--query-gpu=name,driver_version", "--format=csv,noheader")
        return Check("here", "GPUs", OK, counted([line.replace(", ", ", driver ", 1) for line in listed]))
    except Away as away:
        said = str(away)
    if cluster.scheduler is not Scheduler.local:
        return Check("here", "GPUs", OK, f"none here ({said}); jobs get theirs on the nodes")
    if cluster.device is Device.cuda:
        return Check("here", "GPUs", MISSING, f"none ({said})", "take cluster.device=cpu, or a machine with GPUs")
    return Check("here", "GPUs", OK, f"none ({said}): runs compute on {machine.cores()} cores")


def _framework(framework: Framework, config: Config) -> Check:
    try:
        python = environments.interpreter(framework.name, framework.environment, PROJECT)
    except UserError as error:
        found, _, advice = str(error).partition("; ")
        return Check("frameworks", framework.name, MISSING, found, advice)
    try:
        answer = ask(framework.name, [str(python)], config.cluster.env)
    except Silent as silent:
        how = (
            f"build it again: `sbatch/env/{framework.environment}.sh`"
            if _has_builder(framework)
            else "install it there"
        )
        advice = f"{how}, or set framework.environment to an interpreter that has it"
        if only_in_jobs(config.cluster):
            advice = f"jobs load cluster.modules and cluster.setup first: --probe looks there; otherwise {advice}"
            return Check("frameworks", framework.name, NOTE, str(silent), advice)
        return Check("frameworks", framework.name, MISSING, str(silent), advice)
    gpus = len(machine.gpus()) if config.cluster.scheduler is Scheduler.local else None
    cuda = uses_cuda(config.cluster) and framework.name != EMULATED
    pipeline = config.data.pipeline.value
    return judged("frameworks", answer, framework, config.strategy.name, cuda, gpus, pipeline)


def _mpi(config: Config) -> Check:
    """What starts the ranks of a strategy over MPI."""
    framework, cluster = config.framework, config.cluster
    starter = mpi.starter(cluster)
    if starter != MPIRUN:
        found = f"srun --mpi={starter} starts the ranks of strategy {config.strategy.name}"
        try:
            known = scheduler.mpi_kinds()
        except Away as away:
            return Check("frameworks", "MPI", MISSING, f"{found}; srun cannot be asked: {away}", "try again later")
        if starter in known:
            return Check("frameworks", "MPI", OK, found)
        how = f"set cluster.mpi to one of {', '.join([*known, MPIRUN])}"
        return Check("frameworks", "MPI", MISSING, f"{found}, which this srun does not have", how)
    try:
        python = environments.interpreter(framework.name, framework.environment, PROJECT)
        return Check("frameworks", "MPI", OK, f"{mpi.mpirun(str(python))} starts the ranks of {config.strategy.name}")
    except UserError as error:
        found, _, advice = str(error).partition("; ")
        return Check("frameworks", "MPI", NOTE if only_in_jobs(cluster) else MISSING, found, advice)


def _nsys(config: Config) -> Check:
    """NVIDIA's profiler, for trace=nsys."""
    found = profiling.found_nsys(config)
    if found:
        return Check("frameworks", NSYS, OK, found)
    # Login nodes often do not have what nodes have.
    state = NOTE if config.cluster.scheduler is Scheduler.slurm else MISSING
    how = "install NVIDIA Nsight Systems, or load its module where the ranks run (cluster.modules)"
    return Check("frameworks", NSYS, state, "not on the PATH here, and trace=nsys starts every rank with it", how)


def _container(cluster: Cluster) -> Check:
    """The container's own Python is asked only by --probe: login nodes often cannot start it."""
    container = cluster.container
    runtime, image = str(container.runtime), str(container.image)
    found, advice = _runtime(runtime)
    if advice:
        state = NOTE if only_in_jobs(cluster) else MISSING
        return Check("frameworks", "container", state, found, advice)
    if not _is_path(container):
        return Check("frameworks", "container", OK, f"{found}; {image} is fetched when a run starts")
    if os.path.exists(os.path.expanduser(image)):
        return Check("frameworks", "container", OK, f"{found}; image {image}")
    where = "set cluster.container.image to a file that is there, or to a registry's address"
    return Check("frameworks", "container", MISSING, f"{found}; no image at {os.path.abspath(image)}", where)


def _runtime(runtime: str) -> tuple[str, str]:
    """(what was found, what to do; empty where the runtime is there)."""
    argv = ("srun", "--help") if runtime == "pyxis" else (runtime, "--version")
    try:
        done = scheduler.command(*argv, seconds=30)
    except Away as away:
        return str(away), f"install {runtime}, or load its module with cluster.modules"
    if runtime == "pyxis":
        if "--container-image" in done.stdout + done.stderr:
            return "srun has the plugin pyxis", ""
        return "srun has no option --container-image", "ask the site for the plugin pyxis, or take apptainer"
    if done.returncode != 0:
        return scheduler.words(done.stderr) or f"{runtime} --version fails", f"mend {runtime} on this machine"
    return done.stdout.strip(), ""


def _is_path(container: Container) -> bool:
    image = str(container.image)
    return image.startswith(("/", "./", "~")) if container.runtime == "pyxis" else "://" not in image


def _dataset(dataset: Dataset, root: str) -> Check:
    if dataset.reader == SYNTHETIC:
        return Check("data sets", dataset.name, OK, "made from the seed, needs no files")
    try:
        folder = locate(dataset.name, dataset.reader, str(Path(root).expanduser().absolute()))
    except DataError as error:
        found, _, how = str(error).removeprefix(f"data set '{dataset.name}' was ").partition(". To get it: ")
        return Check("data sets", dataset.name, MISSING, found, f"{how}; or set data.root" if how else "")
    return Check("data sets", dataset.name, OK, str(folder))


def _others(group: str, configured: str, config_dir: str | None) -> Iterator[tuple[str, Any]]:
    """Every other choice of a group: its name, and what it composes to, or the UserError for why it cannot be."""
    folders = [CONF, *([Path(config_dir)] if config_dir else [])]
    for choice in sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")}):
        if choice == configured:
            continue
        try:
            composed = getattr(compose([f"{group}={choice}", "cluster=local"], False, "config", config_dir)[0], group)
        except UserError as error:
            yield choice, error
            continue
        if composed.name != configured:
            yield choice, composed


def _as_note(check: Check) -> Check:
    state = NOTE if check.state == MISSING else check.state
    return replace(check, state=state)


def _has_builder(framework: Framework) -> bool:
    return (PROJECT / "sbatch" / "env" / f"{framework.environment}.sh").is_file()
