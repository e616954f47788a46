"""Checks of the frameworks' environments and of what starts their ranks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness.config import profiling
from harness.config.framework_capabilities import CAPABILITIES
from harness.config.schema import Cluster, Config, Container, Framework, Scheduler
from harness.core import gpu_types
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN
from harness.core.spec import DALI, EMULATED, HARNESS, NSYS
from harness.core.strategies import STRATEGIES, offered_by, packages_of
from harness.core.system import programs
from harness.core.system.programs import NoAnswer
from harness.doctor.checks import (
    MISSING,
    NOTE,
    OK,
    Check,
    as_note,
    counted,
    nvidia_smi,
    only_in_jobs,
    other_choices,
    uses_cuda,
)
from harness.plan import environments, machine, mpi
from harness.plan.request import PROJECT
from harness.slurm.client import Client, SlurmUnavailable, error_message

# A framework's first import from a busy shared file system takes minutes.
FRAMEWORK_SECONDS = 180.0
# Without looking for garbage in what the framework makes as it is imported, neither then nor at the end.
QUESTION = (
    "import gc, importlib, json; from importlib import metadata; gc.disable(); "
    "of = importlib.import_module('harness.worker.{}'); "
    "carriers = {{d.metadata['Name']: d.version for d in metadata.distributions()}}; "
    "print(json.dumps({{'versions': of.versions(), 'gpus': of.gpus(), "
    "'build': vars(of.build()) if hasattr(of, 'build') else None, "
    "'carriers': {{name: carriers[name] for name in {} if name in carriers}}}})); gc.freeze()"
)
# Packages that a strategy needs in addition to the framework.
CARRIERS = {row.name: row.package for row in STRATEGIES.values() if row.package}


class Silent(Exception):
    """A framework's environment could not be queried; the message says why."""


def configured(config: Config) -> Iterator[Check]:
    """Check the configured framework and what starts its ranks."""
    yield _container(config.cluster) if config.cluster.container.runtime else _framework(config.framework, config)
    if mpi.needed(config.strategy):
        yield _mpi(config)
    if config.trace == NSYS:
        yield _nsys(config)


def others(config: Config, config_dir: str | None, load: bool) -> Iterator[Check]:
    """Check every framework in conf/ other than the configured one, side by side: each is a process of its own.

    load: import it, which takes seconds each; otherwise only find its package.
    """

    def check(choice: tuple[str, object]) -> Check:
        name, other = choice
        if isinstance(other, Framework):
            return as_note(_framework(other, config, load))
        return Check("frameworks", name, NOTE, str(other))

    with ThreadPoolExecutor(min(4, machine.cores())) as side_by_side:
        yield from side_by_side.map(check, other_choices("framework", config.framework.name, config_dir))


def ask(
    framework: str, command: Sequence[str], variables: Mapping[str, str], seconds: float = FRAMEWORK_SECONDS
) -> dict[str, Any]:
    """Ask a framework's environment what it contains.

    Args:
        framework: name of the framework.
        command: its Python; for a container, with the container's command prefix.
        variables: cluster.env.
        seconds: deadline.

    Returns:
        versions (name -> version), gpus (their names), build (fields of a `gpu_types.Build`, or None) and carriers
        (installed packages of CARRIERS -> version).

    Raises:
        Silent: the environment could not be queried.
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
        return {"versions": versions, "carriers": carriers, "gpus": list(answer["gpus"]), "build": answer["build"]}
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
    gpu_type: str | None = None,
    driver: str | None = None,
) -> Check:
    """Compare an environment with what the configuration needs.

    Args:
        gpus: number of GPUs it must see; None if irrelevant, as on a login node.
        gpu_type: name of the GPUs to compute on; None if unknown.
        driver: version of their driver; None if unknown.
    """
    name, versions, carriers, seen = framework.name, answer["versions"], answer["carriers"], answer["gpus"]
    builder = gpu_types.builder(framework.environment)
    found = ", ".join(f"{key} {value}" for key, value in {**versions, **carriers}.items())
    if gpus is not None and seen:
        found += f"; sees {counted(seen)}"
    if cuda and "cuda" not in versions:
        capability = gpu_types.capability(gpu_type)
        # On a node the build script asks nvidia-smi; on a login node it must be told.
        unknown = "GPU=<v100, a100, ...>" if gpus is None else "VARIANT=cuda"
        setting = f"GPU={gpu_types.usual_name(capability)}" if capability else unknown
        how = f"build it with `{setting} {builder}`" if builder else "install a CUDA build there"
        return Check(
            group, name, MISSING, f"{found}: a build without CUDA", f"{how}, or set cluster.device=cpu on CPU nodes"
        )
    if cuda and (unfit := _unfit(answer, framework, gpu_type, driver)):
        why, advice = unfit
        return Check(group, name, MISSING, f"{found}: {why}", advice)
    if cuda and gpus is not None and len(seen) < gpus:
        return Check(
            group,
            name,
            MISSING,
            f"{found}: sees {len(seen)} of {gpus} GPUs",
            "check that the driver supports the build's CUDA version and that jobs get that many GPUs",
        )
    if DALI in CAPABILITIES[framework.name].pipelines and DALI not in versions:
        found += f"; no NVIDIA DALI: data.pipeline={DALI} cannot run"
        if pipeline == DALI:
            with_it = f"`DALI=1 {builder}` builds the environment with it"
            advice = with_it if builder else "install nvidia-dali-cuda120 (CUDA 12) or -cuda130 there"
            return Check(group, name, MISSING, found, f"{advice}, or set data.pipeline={HARNESS}")
    offered = {of: carrier for of, carrier in CARRIERS.items() if of in offered_by(framework.name)}
    if lacking := {of: carrier for of, carrier in offered.items() if carrier not in carriers}:
        found += f"; no {' and no '.join(lacking.values())}: strategy={','.join(lacking)} cannot run"
        with_it = f"`{builder}` builds the environment with all of it"
        advice = with_it if builder else f"install {', '.join(lacking.values())} there"
        return Check(group, name, MISSING if strategy in lacking else NOTE, found, advice)
    return Check(group, name, OK, found)


def _unfit(
    answer: dict[str, Any], framework: Framework, gpu_type: str | None, driver: str | None
) -> tuple[str, str] | None:
    """Return (why the build does not run on the GPUs, what to do); None if it does, or if unknown."""
    if not answer.get("build"):
        return None
    build = gpu_types.Build(**{**answer["build"], "architectures": tuple(answer["build"]["architectures"])})
    environment = framework.environment
    names = answer["gpus"] or ([gpu_type] if gpu_type else [])
    for gpu in dict.fromkeys(names):
        found = gpu_types.capability(gpu)
        if found and (why := gpu_types.misfit(build, found)):
            clause = f"{gpu} has compute capability {gpu_types.written(found)}, and {why}"
            return clause, gpu_types.advice(build, found, environment)
    if old := gpu_types.old_driver(build, driver):
        return old, f"{gpu_types.advice(build, None, environment)}, or ask for a newer driver"
    return None


def _framework(framework: Framework, config: Config, load: bool = True) -> Check:
    """load: as for `others`."""
    try:
        modules = config.cluster.modules
        python = environments.interpreter(framework.name, framework.environment, PROJECT, modules)
    except UserError as error:
        found, _, advice = str(error).partition("; ")
        return Check("frameworks", framework.name, MISSING, found, advice)
    try:
        if not load:
            if absent := environments.absent_packages(str(python), packages_of(framework.name)):
                raise Silent(f"{python} has no {', '.join(absent)}")
            return Check("frameworks", framework.name, NOTE, f"installed in {python}, not loaded", "--all loads it")
        answer = ask(framework.name, [str(python)], config.cluster.env)
    except Silent as silent:
        advice = gpu_types.completion(framework.environment)
        if only_in_jobs(config.cluster):
            advice = f"jobs load cluster.modules and cluster.setup first: --probe checks there; otherwise {advice}"
            return Check("frameworks", framework.name, NOTE, str(silent), advice)
        return Check("frameworks", framework.name, MISSING, str(silent), advice)
    cluster, pipeline = config.cluster, config.data.pipeline.value
    cuda = uses_cuda(cluster) and framework.name != EMULATED
    gpus, gpu_type, driver = None, cluster.gpu_type, None
    if cluster.scheduler is Scheduler.local:
        gpus = len(machine.gpus())
        gpu_type, driver = _first_gpu()
    return judged("frameworks", answer, framework, config.strategy.name, cuda, gpus, pipeline, gpu_type, driver)


def _first_gpu() -> tuple[str | None, str | None]:
    """Name and driver version of this machine's first GPU."""
    try:
        name, _, driver = nvidia_smi("--query-gpu=name,driver_version", "--format=csv,noheader")[0].partition(", ")
        return name, driver
    except NoAnswer:
        return None, None


def _mpi(config: Config) -> Check:
    """Check what starts the ranks of an MPI strategy."""
    framework, cluster = config.framework, config.cluster
    starter = mpi.starter(cluster)
    if starter != MPIRUN:
        found = f"srun --mpi={starter} starts the ranks of strategy {config.strategy.name}"
        try:
            known = Client().mpi_kinds()
        except SlurmUnavailable as error:
            return Check("frameworks", "MPI", MISSING, f"{found}; srun does not answer: {error}", "try again later")
        if starter in known:
            return Check("frameworks", "MPI", OK, found)
        how = f"set cluster.mpi to one of {', '.join([*known, MPIRUN])}"
        return Check("frameworks", "MPI", MISSING, f"{found}, which this srun does not support", how)
    try:
        python = environments.interpreter(framework.name, framework.environment, PROJECT, cluster.modules)
        return Check("frameworks", "MPI", OK, f"{mpi.mpirun(str(python))} starts the ranks of {config.strategy.name}")
    except UserError as error:
        found, _, advice = str(error).partition("; ")
        return Check("frameworks", "MPI", NOTE if only_in_jobs(cluster) else MISSING, found, advice)


def _nsys(config: Config) -> Check:
    """Check NVIDIA's profiler, for trace=nsys."""
    found = profiling.found_nsys(config)
    if found:
        return Check("frameworks", NSYS, OK, found)
    # Login nodes often lack software that the nodes have.
    state = NOTE if config.cluster.scheduler is Scheduler.slurm else MISSING
    how = "install NVIDIA Nsight Systems, or load its module where the ranks run (cluster.modules)"
    return Check("frameworks", NSYS, state, "not on the PATH, but trace=nsys starts every rank with it", how)


def _container(cluster: Cluster) -> Check:
    """Check the container runtime and image. Only --probe starts the image: login nodes often cannot."""
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
    where = "set cluster.container.image to an existing file or a registry address"
    return Check("frameworks", "container", MISSING, f"{found}; no image at {os.path.abspath(image)}", where)


def _runtime(runtime: str) -> tuple[str, str]:
    """Return (what was found, what to do); the latter is empty if the runtime works."""
    try:
        if runtime == "pyxis":
            if Client(seconds=30).has_pyxis():
                return "srun has the pyxis plugin", ""
            return "srun has no option --container-image", "ask the site for the pyxis plugin, or use apptainer"
        done = programs.run(runtime, "--version", seconds=30)
    except NoAnswer as error:
        return str(error), f"install {runtime}, or load its module with cluster.modules"
    if done.returncode != 0:
        return error_message(done.stderr) or f"{runtime} --version fails", f"repair {runtime} on this machine"
    return done.stdout.strip(), ""


def _is_path(container: Container) -> bool:
    image = str(container.image)
    return image.startswith(("/", "./", "~")) if container.runtime == "pyxis" else "://" not in image
