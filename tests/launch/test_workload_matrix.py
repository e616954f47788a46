"""The options of the user's own training in all combinations: each is planned, or refused by name; some are run."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from own_training import DDP, RANKS_OF_MPI
from project import PROJECT, Cli
from studies import program, read_json, run_dirs, starts

from harness.config import composition
from harness.config.schema import Config, Container
from harness.config.workload_schema import ProcessesPerNode, Single
from harness.core.errors import UserError
from harness.core.rendezvous import Rendezvous
from harness.node import workload
from harness.plan.plan import make_plan
from harness.plan.request import StudyRequest, study_request

LAUNCHERS = ("harness", "own", "torchrun", "accelerate", "deepspeed", "mpirun")
PER_NODE = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.launch"}
PER_NODE["deepspeed"] = "deepspeed.launcher.launch"
# Of which the default takes one point in so many, coprime to the length of every axis.
EVERY = 13


class Point(NamedTuple):
    kind: str
    launcher: str
    processes_per_node: str | None
    single: str
    shell: bool
    pattern: str | None
    resume_args: tuple[str, ...]
    gpus: int
    scheduler: str
    runtime: str | None
    modules: bool
    pack: bool

    @property
    def starter(self) -> str:
        alone = self.gpus == 1 and self.single == "plain" and self.launcher != "own"
        return "harness" if alone else self.launcher

    @property
    def refusals(self) -> Iterator[str]:
        """Words of the sentences that may refuse it."""
        if self.launcher == "own" and self.processes_per_node == "gpu":
            yield "the harness starts the command once per node, and it starts the rest; leave processes_per_node out"
        if self.launcher in PER_NODE and self.kind == "command":
            yield f"workload.launcher={self.launcher} starts Python scripts: take workload=script"
        if self.launcher in PER_NODE and self.processes_per_node == "node":
            yield f"with workload.launcher={self.launcher}, which starts one process per GPU"
        if self.launcher == "mpirun" and self.runtime == "pyxis":
            yield "workload.launcher=mpirun is not supported with cluster.container.runtime=pyxis"
        if self.shell and self.kind == "script":
            yield "workload.shell=true needs workload=command"
        if self.scheduler == "local":
            if self.runtime == "pyxis":
                yield "cluster.container.runtime=pyxis is a plugin of srun"
            if self.pack:
                yield "pack=true needs cluster.scheduler=slurm"
            if self.modules:
                yield "cluster.modules"


AXES: tuple[tuple[Any, ...], ...] = (
    ("script", "command"),
    LAUNCHERS,
    (None, "gpu", "node"),
    ("distributed", "plain"),
    (False, True),
    (None, "nanogpt"),
    ((), ("--resume",)),
    (1, 4),
    ("local", "slurm"),
    (None, "apptainer", "pyxis"),
    (False, True),
    (False, True),
)
POINTS = list(itertools.starmap(Point, itertools.product(*AXES)))


@pytest.fixture
def bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Config]:
    """A configuration for each kind and scheduler."""
    composition.register()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    program(tmp_path / "bin" / "mpirun", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    monkeypatch.setenv("HF_HOME", str(tmp_path))  # not the configuration of whoever tests
    made = {}
    for kind, scheduler in itertools.product(("script", "command"), ("local", "slurm")):
        machine = (f"cluster={scheduler}", "cluster.device=cpu", "cluster.gpus_per_node=2")
        gres = ("cluster.gres=null",) if scheduler == "slurm" else ()
        command = ["train.py" if kind == "script" else "./train.py"]
        (made[kind, scheduler],) = composition.compose(
            [*machine, *gres, f"workload={kind}"], False, "config", None, command
        )
    return made


def asked(base: Config, point: Point) -> StudyRequest:
    """Raises UserError."""
    own = replace(
        base.workload,
        python=sys.executable if point.kind == "script" and point.runtime is None else None,
        launcher=point.launcher,
        processes_per_node=None if point.processes_per_node is None else ProcessesPerNode[point.processes_per_node],
        single=Single[point.single],
        shell=point.shell,
        pattern=point.pattern,
        resume_args=list(point.resume_args),
    )
    container = Container(runtime=point.runtime, image="i.sif") if point.runtime else Container()
    cluster = replace(base.cluster, container=container, modules=["lang/Python"] if point.modules else [])
    return study_request([replace(base, workload=own, cluster=cluster, gpus=point.gpus, pack=point.pack)])


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.whole, id="whole")])
def test_each_combination_is_planned_or_refused_in_one_sentence(
    bases: dict[tuple[str, str], Config], every: int
) -> None:
    planned = 0
    for point in POINTS[::every]:
        expected = list(point.refusals)
        if expected:
            with pytest.raises(UserError) as refused:
                asked(bases[point.kind, point.scheduler], point)
            said = str(refused.value)
            assert "\n" not in said
            assert any(words in said for words in expected), (point, said)
        else:
            check_plan(point, asked(bases[point.kind, point.scheduler], point))
            planned += 1
    assert planned > len(POINTS) // every // 10


def check_plan(point: Point, study: StudyRequest) -> None:
    (request,) = study.requests
    spec, site, resources = request.spec, request.site, request.resources
    per_node = point.launcher in ("own", *PER_NODE) or point.processes_per_node == "node"
    on_node = spec.placement.ranks_per_node
    assert resources.tasks_per_node == (1 if per_node else on_node), point
    assert resources.mpi == ("mpirun" if point.starter == "mpirun" else None), point
    assert site.max_requeues == (1 if point.resume_args and point.scheduler == "slurm" else 0), point
    (array,) = make_plan(study.requests, (), (), pack=study.pack).arrays
    assert array.in_batch_step == (point.pack or point.starter == "mpirun"), point

    tasks = spec.processes
    rendezvous = Rendezvous(0, tasks.world_size, 0, tasks.ranks_per_node, "n1", 29500)
    run_dir = Path("/study/runs/r")
    argv = workload.command(spec, site, run_dir, run_dir / "attempt-2", rendezvous, {})
    env = workload.environment(spec, site, run_dir / "attempt-2", rendezvous, {"SLURM_PROCID": "0"})
    text = " ".join(argv)
    assert text.endswith(" ".join(["train.py", *point.resume_args])), point
    assert [name for name, module in PER_NODE.items() if module in text] == (
        [point.starter] if point.starter in PER_NODE else []
    ), point
    assert ("i.sif" in text) == (point.runtime is not None), point
    assert ("sh -c ./train.py" in text) == point.shell, point
    told = env.get("SCALING_PROBE", "")
    single = point.starter == "accelerate" and point.gpus == 1
    named = point.starter in ("own", *PER_NODE) and not single
    assert bool(told) == (point.pattern is None), point
    assert ("{rank}" in told) == (named and point.pattern is None), point
    # A process that trains is run by the probe, unless something else starts it.
    runs = point.kind == "script" and point.pattern is None and not named
    assert ("scaling_probe_run.py" in text) == runs, point
    distributed = point.starter == "harness" and not per_node and not (point.gpus == 1 and point.single == "plain")
    assert ("RANK" in env) == distributed, point


def workloads_python() -> Path:
    python = PROJECT / ".envs" / "workloads" / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment workloads: `make test-workloads` builds it")
    return python


SHELL = r"""#!/bin/sh
echo $OMPI_COMM_WORLD_RANK $RANK
step=0
while true; do step=$((step + 1)); sleep 0.01; echo "step $step: 10.0 ms"; done
"""
PATTERN = r"workload.pattern='step (?P<step>\d+): (?P<ms>\S+) ms'"
PRINTED = 'import time\nfor step in range(1, 10000): time.sleep(0.01); print(f"step {step}: 10.0 ms", flush=True)\n'
# --local_rank is DeepSpeed's.
SCRIPT = "import sys\nsys.argv = [word for word in sys.argv if '--local' not in word]\n" + RANKS_OF_MPI + DDP
ALONE = SCRIPT.replace('torch.distributed.init_process_group("gloo")', "").replace(
    "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))", "torch.nn.Linear(8, 8)"
)
TRAIN = ("train.py", "{batch_per_gpu}")


@pytest.mark.whole
@pytest.mark.torch
@pytest.mark.parametrize(
    ("keys", "source", "command", "gpus"),
    [
        (("workload.launcher=torchrun", "container"), SCRIPT, TRAIN, "1,2"),
        (("workload.launcher=torchrun", "workload.single=plain"), ALONE, TRAIN, "1"),
        (("workload.launcher=torchrun", PATTERN), PRINTED, TRAIN, "2"),
        (("workload.launcher=accelerate",), SCRIPT, TRAIN, "2"),
        (("workload.launcher=accelerate",), ALONE, TRAIN, "1"),
        (("workload.launcher=deepspeed", "workload.resume_args=[--resume]"), SCRIPT, ("-m", "train", TRAIN[1]), "1,2"),
        (("workload.launcher=mpirun", "container"), SCRIPT, TRAIN, "1,2"),
        (("workload.launcher=mpirun", "workload.single=plain"), ALONE, TRAIN, "1"),
        (("workload.launcher=mpirun", "workload.processes_per_node=node", PATTERN), PRINTED, TRAIN, "2"),
        (("workload.launcher=harness", "workload.processes_per_node=node", PATTERN), PRINTED, TRAIN, "2"),
        (("workload.launcher=mpirun", "workload.shell=true", PATTERN), SHELL, ("exec ./train.sh",), "1,2"),
        (
            ("workload.launcher=own",),
            SCRIPT,
            ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={gpus_per_node}", *TRAIN),
            "1,2",
        ),
    ],
    ids=str,
)
def test_combinations_that_are_run(
    cli: Cli, tmp_path: Path, keys: tuple[str, ...], source: str, command: tuple[str, ...], gpus: str
) -> None:
    python, environ = workloads_python(), None
    arguments = ["-m", f"gpus={gpus}", "cluster=local", "cluster.device=cpu", "batch=16", "measure=smoke"]
    shell = "workload.shell=true" in keys
    arguments.append("workload=command" if shell else "workload=script")
    arguments += [key for key in keys if key != "container"]
    if "container" in keys:
        # Stands in for Apptainer, whose images set variables of their own.
        (tmp_path / "i.sif").touch()
        program(
            tmp_path / "bin" / "apptainer",
            "#!/bin/bash\nshift\nwhile [[ $1 == -* ]]; do shift; done\nshift\nexport OMP_NUM_THREADS=64 RANK=0\n"
            'cd /\nexec "$@"\n',
        )
        arguments += ["cluster.container.runtime=apptainer", f"cluster.container.image={tmp_path}/i.sif"]
        environ = {"PATH": f"{tmp_path}/bin:{python.parent}:/usr/bin:/bin"}
    elif not shell:
        arguments.append(f"workload.python={python}")
    program(tmp_path / ("train.sh" if shell else "train.py"), source)
    done = cli("harness", *arguments, "--", *command, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    for run_dir in run_dirs(tmp_path):
        spec = read_json(run_dir / "spec.json")["spec"]
        if PATTERN not in keys:
            assert [start["world_size"] for start in starts(run_dir)] == [spec["gpus"]] * spec["gpus"]
