"""Requests of runs of the user's own training (`workload`)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from harness.config import value_ranges
from harness.config import workload as checks
from harness.config.schema import Cluster, Config, Scheduler
from harness.config.workload_schema import Kind, Single
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN
from harness.core.spec import DatasetSpec, MeasureSpec, OptimizerSpec, RunSpec
from harness.core.system.secret_names import MASK, PLACEHOLDER
from harness.core.workload import code_identity, launchers, templates
from harness.core.workload.spec import OWN, WorkloadSpec
from harness.plan import environments, run_shape, site_resources
from harness.plan.plan import Request
from harness.plan.run_shape import PROJECT, Shape

NO_DATASET = DatasetSpec(OWN, OWN, 0, 0, 0, (), ())
DEFAULT_PYTHON = "python3"


def request(config: Config, lookup: environments.Lookup) -> Request:
    """Build the request for one run. lookup: that of its plan. Raises UserError."""
    value_ranges.check(config)
    checks.check(config)
    cluster, workload = config.cluster, config.workload
    if cluster.stage_environment.name != "none":
        raise UserError(
            f"cluster.stage_environment={cluster.stage_environment.name} is not offered with workload=; leave it out"
        )
    shape = run_shape.shape(config)
    cwd = Path(workload.cwd or ".").expanduser().absolute()
    contained = cluster.container.runtime is not None
    if not contained:
        _check_files(config, cwd)
    environment = _environment(config)
    python = "" if environment is None else _interpreter(cluster, environment, lookup)
    data_root = str(Path(config.data.root).expanduser().absolute())
    spec = RunSpec(
        framework=workload.kind.name,
        framework_options={},
        environment="" if environment is None else lookup.identity(environment, cluster),
        strategy=OWN,
        strategy_options={},
        model=checks.name(workload),
        dataset=NO_DATASET,
        precision=OWN,
        gpus=config.gpus,
        placement=shape.placement,
        scaling=config.scaling.name,
        global_batch=shape.global_batch,
        batch_per_gpu=shape.batch_per_gpu,
        seed=config.seed,
        repeat=config.repeat,
        optimizer=OptimizerSpec(),
        measure=_measure(config),
        cluster=run_shape.cluster_spec(cluster, shape),
        env=dict(sorted(cluster.env.items())),
        workload=_workload(config, shape, cwd, python),
    )
    where = run_shape.site(
        config,
        shape,
        python=python,
        data_root=data_root,
        folders=(str(cwd), *([data_root] if "data_root" in _placeholders(spec) else [])),
        # Without a way to resume, a requeued run would reach the wall limit again.
        max_requeues=config.checkpoint.max_requeues if workload.resume_args else 0,
        cwd=str(cwd),
    )
    resources = site_resources.resources(cluster, shape.placement, shape.cpus_per_gpu, _mpi_starter(config))
    resources = replace(resources, one_process_per_node=spec.processes != spec.placement)
    return Request(spec, where, resources, cluster.gpu_memory_gb)


def notes(requests: Sequence[Request]) -> Iterator[str]:
    """Yield remarks about the runs for the plan."""
    for request in requests:
        if not {"batch_per_gpu", "global_batch"} & set(_placeholders(request.spec)):
            yield (
                "the command has neither {batch_per_gpu} nor {global_batch}: `batch` has no effect on the training, "
                "and throughput counts workload.samples_per_step per step"
            )
    shared: dict[str | None, int] = {}
    for request in requests:
        if "run_dir" not in _placeholders(request.spec) and request.resources.scheduler == "slurm":
            shared[request.site.cwd] = shared.get(request.site.cwd, 0) + 1
    for cwd, count in shared.items():
        if count > 1 and requests[0].resources.array_parallelism != 1:
            yield (
                f"{count} runs may work in {cwd} at the same time; if the training writes files there, such as "
                "checkpoints, direct each run's to its own folder with {run_dir} in the command"
            )


def command_line(request: Request) -> str:
    """Return the command of a run as a shell takes it. What only its nodes know stays in braces."""
    workload, spec = request.spec.workload, request.spec
    assert workload is not None
    values = {
        **{name: f"{{{name}}}" for name in templates.NAMES},
        **spec.placeholder_values,
        "data_root": request.site.data_root,
        **workload.params,
        **dict.fromkeys(filter(PLACEHOLDER.fullmatch, _placeholders(spec)), MASK),
    }
    words = [templates.expand(text, values) for text in workload.command]
    ranks = f"mpirun -n {spec.processes.world_size} " if request.resources.mpi else ""
    if workload.shell:
        return ranks + words[0]
    if (starter := workload.starter(spec.gpus)) in launchers.PER_NODE:
        devices = ",".join(request.site.visible_gpus or map(str, range(spec.placement.ranks_per_node)))
        node = launchers.Node(
            nodes=spec.placement.nodes,
            rank="{node_rank}",
            processes=spec.placement.ranks_per_node,
            address="{master_addr}",
            port="{master_port}",
            devices="" if spec.cluster.device == "cpu" else devices,
        )
        words = launchers.command(starter, request.site.python, node, words)
    else:
        words = [*filter(None, [request.site.python]), *words]
    return ranks + " ".join(map(_quoted, words))


def _mpi_starter(config: Config) -> str | None:
    """What starts the ranks with workload.launcher=mpirun: as in Resources.mpi."""
    asked = config.workload
    if asked.launcher != MPIRUN or (config.gpus == 1 and asked.single is Single.plain):
        return None
    return config.cluster.mpi or MPIRUN


def _quoted(word: str) -> str:
    """Quote for a shell, but leave the braces of placeholders readable."""
    return word if re.fullmatch(r"[\w@%+=:,./{}-]+", word) else shlex.quote(word)


def _placeholders(spec: RunSpec) -> list[str]:
    assert spec.workload is not None
    return [name for text in spec.workload.command for name in templates.placeholders(text)]


def _workload(config: Config, shape: Shape, cwd: Path, python: str) -> WorkloadSpec:
    asked = config.workload
    return WorkloadSpec(
        kind=asked.kind.name,
        name=checks.name(asked),
        command=tuple(asked.command),
        params=dict(sorted(asked.params.items())),
        code=code(asked.kind.name, tuple(asked.command), asked.shell, cwd, python),
        samples_per_step=checks.samples_per_step(asked, _values(config, shape)),
        unit=asked.unit,
        cwd=asked.cwd,
        shell=asked.shell,
        launcher=asked.launcher,
        processes_per_node=checks.processes_per_node(asked).name,
        single=asked.single.name,
        step=asked.step,
        pattern=asked.pattern,
        stop=asked.stop,
        resume_args=tuple(asked.resume_args),
        signals=asked.signals,
        probe_steps=asked.probe_steps,
        trace=asked.trace,
        probe_limit=asked.probe_limit,
        launcher_config=_accelerate_config() if asked.launcher == launchers.ACCELERATE else "",
    )


def _accelerate_config() -> str:
    """Return the hash of what `accelerate config` wrote, which `accelerate launch` reads; empty if there is none.

    Raises UserError.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    path = Path(os.environ.get("HF_HOME", f"{cache}/huggingface"), "accelerate", "default_config.yaml").expanduser()
    found = code_identity.of_file(path)
    kind = re.search(r"^distributed_type:\W*(\w+)", path.read_text(errors="replace") if found else "", re.MULTILINE)
    if kind and kind[1] != "NO" and not kind[1].startswith("MULTI_"):
        raise UserError(
            f"workload.launcher=accelerate starts plain data parallelism, but {path} asks for {kind[1]}: take "
            "workload.launcher=own and write `accelerate launch` with its options in the command"
        )
    return found


def _values(config: Config, shape: Shape) -> dict[str, int]:
    """Values of the numeric placeholders."""
    return {
        "batch_per_gpu": shape.batch_per_gpu,
        "global_batch": shape.global_batch,
        "gpus": config.gpus,
        "nodes": shape.placement.nodes,
        "gpus_per_node": shape.placement.ranks_per_node,
        "seed": config.seed,
        "repeat": config.repeat,
    }


def _measure(config: Config) -> MeasureSpec:
    """How to measure, without what only the built-in training loop does."""
    asked = config.measure
    return MeasureSpec(
        warmup_steps=asked.warmup_steps,
        steps=asked.steps,
        block_steps=asked.block_steps,
        probe_steps=0,
        evaluate_samples=0,
        precision=asked.precision,
    )


# --- environment ------------------------------------------------------------------------------------------------------


def _environment(config: Config) -> str | None:
    """Return the environment asked for, or the default; None for a command, which brings its own. Raises UserError."""
    workload, cluster = config.workload, config.cluster
    if workload.kind is Kind.command:
        return None
    if (name := workload.python) is not None:
        # A folder here, such as venv, rather than a name.
        here = os.sep not in name and Path(name, "bin", "python").exists()
        return str(Path(name).absolute()) if here and cluster.container.runtime is None else name
    if cluster.modules or cluster.container.runtime is not None:
        return DEFAULT_PYTHON
    ours = {str(Path(sys.prefix, "bin")), str(PROJECT / ".venv" / "bin")}
    folders = [folder for folder in os.get_exec_path() if str(Path(folder).absolute()) not in ours]
    if found := shutil.which(DEFAULT_PYTHON, path=os.pathsep.join(folders)):
        return found
    raise UserError(
        f"there is no {DEFAULT_PYTHON} on the PATH but the harness's own; set workload.python=<environment>"
    )


def _interpreter(cluster: Cluster, environment: str, lookup: environments.Lookup) -> str:
    """Find the environment's Python. Raises UserError."""
    if cluster.container.runtime is not None or (cluster.modules and environments.COMMAND.fullmatch(environment)):
        return environment  # only the container or the node can tell whether it exists
    found = lookup.find(environment, cluster, "workload.python")
    if found.is_file() and os.access(found, os.X_OK):
        return str(found)
    raise UserError(
        f"workload.python={environment}: there is no Python at {found}; give the folder of a virtual or conda "
        "environment, or an interpreter"
    )


code = cache(code_identity.of_command)


def _check_files(config: Config, cwd: Path) -> None:
    """Raise UserError if the working directory or the program does not exist."""
    workload = config.workload
    if not cwd.is_dir():
        raise UserError(f"workload.cwd={workload.cwd}: there is no folder {cwd}")
    if workload.shell or "{" in (first := workload.command[0]):
        return
    if workload.kind is Kind.script:
        if first != "-m" and not (cwd / first).is_file():
            raise UserError(f"there is no script {cwd / first}; give its path from {cwd}, or set workload.cwd")
        return
    local = config.cluster.scheduler is Scheduler.local
    there = (cwd / first).is_file() if os.sep in first else bool(shutil.which(first)) or not local
    if not there:
        where = f"no program {cwd / first}" if os.sep in first else f"no program '{first}' on the PATH"
        raise UserError(f"there is {where}; give its path, such as ./{Path(first).name}")
