"""The user's own training on two nodes of a real Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from own_training import DDP, RANKS_OF_MPI
from processes import command_lines, wait_for
from project import PROJECT, Cli
from slurm_study import started
from studies import described, hosts, logged, program, read_json, run_dirs, run_of, starts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SLURM = ("cluster.device=cpu", "cluster.cpus_per_gpu=1", "batch=16")
PATTERN = r"workload.pattern='step (?P<step>\d+): (?P<ms>\S+) ms'"
TRAIN = ("--", "train.py", "{batch_per_gpu}")
MEASURE = ("measure.warmup_steps=10", "measure.steps=60", "measure.block_steps=10")
SHELL = """#!/bin/sh
echo node $NODE_RANK of $NNODES at $MASTER_ADDR with $(env | grep -c '^RANK=')
trap 'echo told; exit 0' TERM
step=0
while true; do step=$((step + 1)); sleep 0.01; echo "step $step: 10.0 ms"; done
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "launchers", [("torchrun",), pytest.param(("harness", "torchrun", "mpirun"), marks=pytest.mark.whole)], ids=",".join
)
def test_ranks_of_each_launcher_on_two_nodes_are_told_the_same_step(
    cli: Cli, slurm: Any, tmp_path: Path, torch_python: Path, launchers: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(RANKS_OF_MPI + DDP)
    sweep = ("-m", f"workload.launcher={','.join(launchers)}", f"workload.python={torch_python}")
    measure = ("cluster.gpus_per_node=1", "measure.steps=3000", "measure.precision=0.3")
    done = cli("harness", "gpus=2", "workload=script", *sweep, *SLURM, *measure, *TRAIN, env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(run_dirs(tmp_path)) == len(launchers)
    for run_dir in run_dirs(tmp_path):
        assert len(set(hosts(run_dir))) == 2
        assert [start["world_size"] for start in starts(run_dir)] == [2, 2]
        ended = [logged(run_dir, "end", rank=rank)[0]["steps"] for rank in range(2)]
        assert ended[0] == ended[1] < 3000
        assert logged(run_dir, "protocol")[0]["stopped"] == "precision"


@pytest.mark.whole
@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["harness", "torchrun", "mpirun"])
def test_sizes_inside_one_allocation(slurm: Any, tmp_path: Path, torch_python: Path, launcher: str) -> None:
    (tmp_path / "train.py").write_text(RANKS_OF_MPI + DDP)
    log = tmp_path / "headless.log"
    keys = ("workload=script", f"workload.launcher={launcher}", f"workload.python={torch_python}", *SLURM, *MEASURE)
    allocation = ("--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--time=10", f"--output={log}")
    submitted = slurm.run(
        *(
            "sbatch",
            "--parsable",
            "--wait",
            *allocation,
            PROJECT / "sbatch" / "headless.sh",
            "-m",
            "gpus=1,4",
            "cluster=slurm",
        ),
        *("cluster.gpus_per_node=2", f"results={tmp_path}/results", *keys, "--", tmp_path / "train.py", TRAIN[-1]),
        cwd=PROJECT,
        timeout=500,
    )
    assert submitted.returncode == 0, log.read_text()
    assert {read_json(folder / "result.json")["job_id"] for folder in run_dirs(tmp_path)} == {submitted.stdout.strip()}
    for gpus in (1, 4):
        run_dir = run_of(tmp_path, gpus)
        assert [start["world_size"] for start in starts(run_dir)] == [gpus] * gpus
        assert len(set(hosts(run_dir))) == (1 if gpus == 1 else 2)


@pytest.mark.torch
@pytest.mark.whole  # in CI, built-in networks in a container
def test_a_launcher_in_a_container_with_modules(cli: Cli, slurm: Any, tmp_path: Path, torch_python: Path) -> None:
    """A program stands in for Apptainer. Like an image's, its variables would hide those of the run; like Slurm's
    plugin pyxis, it makes the launcher a task, which is no rank."""
    (tmp_path / "image.sif").touch()
    program(
        tmp_path / "bin" / "apptainer",
        "#!/bin/bash\n[ \"$1 $2\" = 'exec --nv' ] || exit 9\nshift\nwhile [[ $1 == -* ]]; do shift; done\nshift\n"
        'export OMP_NUM_THREADS=64 SLURM_PROCID=0\ncd /\nexec "$@"\n',
    )
    program(tmp_path / "bin" / "python3", f'#!/bin/sh\n[ "$LOADED" = yes ] && exec {torch_python} "$@"\n')
    environ = {
        **slurm.env,
        "PATH": f"{tmp_path}/bin:{slurm.env['PATH']}",
        "BASH_FUNC_module%%": f"() {{  echo $* >> {tmp_path}/modules; export LOADED=yes; }}",
    }
    (tmp_path / "train.py").write_text("import os; assert os.environ['OMP_NUM_THREADS'] == '1'\n" + DDP)
    container = {"runtime": "apptainer", "image": str(tmp_path / "image.sif")}
    description = described(tmp_path, container=container, modules=["lang/Python"], gpus_per_node=1, cpus_per_gpu=1)
    keys = ("workload=script", "workload.launcher=torchrun", "batch=16", *MEASURE)
    done = cli("harness", "gpus=2", *keys, *description, *TRAIN, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = run_of(tmp_path, 2)
    assert [start["world_size"] for start in starts(run_dir)] == [2] * 2
    assert len(set(hosts(run_dir))) == 2
    assert (tmp_path / "modules").read_text() == "load lang/Python\n"


def test_a_launcher_of_its_own_starts_once_on_each_node_and_all_are_ended(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    program(tmp_path / "train.sh", SHELL)
    keys = ("gpus=4", "cluster.gpus_per_node=2", "workload=command", "workload.launcher=own", PATTERN)
    done = cli("harness", *keys, *SLURM, "--", "./train.sh", env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    attempt = run_of(tmp_path, 4) / "attempt-1"
    said = [(attempt / f"stdout.rank{rank}").read_text().splitlines() for rank in range(2)]
    assert [lines[0].split()[:4] for lines in said] == [["node", "0", "of", "2"], ["node", "1", "of", "2"]]
    assert {lines[0].split()[-1] for lines in said} == {"0"}, "no variables of ranks"
    assert {lines[-1] for lines in said} == {"told"}
    assert not (attempt / "stdout.rank2").exists()


def test_a_cancelled_training_is_told_and_its_run_is_unfinished(slurm: Any, tmp_path: Path) -> None:
    program(tmp_path / "train.sh", SHELL)
    keys = ("gpus=2", "cluster.gpus_per_node=1", "workload=command", "workload.stop=false", PATTERN)
    with started(slurm, tmp_path, *keys, *SLURM, "--", "./train.sh"):
        outputs = [f"results/scaling/runs/*/attempt-1/stdout.rank{rank}" for rank in range(2)]
        wait_for(
            lambda: (
                all("step" in file.read_text() for text in outputs for file in tmp_path.glob(text))
                and len([file for text in outputs for file in tmp_path.glob(text)]) == 2
            )
        )
        slurm.run("scancel", "--me")
        exits = "results/scaling/runs/*/attempt-1/exit.rank*.json"
        wait_for(lambda: len(list(tmp_path.glob(exits))) == 2)
        for file in tmp_path.glob(exits):
            assert read_json(file)["interrupted"]
            assert (file.parent / f"stdout.rank{file.stem[-1]}").read_text().splitlines()[-1] == "told"
        assert not list(tmp_path.glob("results/scaling/runs/*/result.json"))


def test_secrets_reach_two_nodes_and_no_file_and_an_exported_one_no_command_line(
    cli: Cli, slurm: Any, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    program(tmp_path / "train.sh", SHELL.replace("step=0", f"echo $1 $LOGIN | tee {told}.$NODE_RANK\nstep=0"))
    keys = ("workload=command", "workload.launcher=own", PATTERN, *SLURM, *MEASURE, "cluster.gpus_per_node=1")
    env = {**slurm.env, "LOGIN": "value-of-login"}
    with command_lines("value-of-") as seen:
        asked = (*keys, "cluster.secret_env=[LOGIN]", "--", "./train.sh", "--api-key=value-of-key")
        done = cli("harness", "gpus=2", *asked, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / f"told.{node}").read_text() for node in (0, 1)] == [
        "--api-key=value-of-key value-of-login\n"
    ] * 2
    (run_dir,) = run_dirs(tmp_path)
    assert "--api-key=***" in (run_dir / "attempt-1" / "stdout.rank1").read_text()
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert not [path for path in written if b"value-of-" in path.read_bytes()]
    # The virtual nodes' processes are this machine's too: sbatch, slurmstepd, srun, supervisors, the training.
    assert any("-m harness" not in line for line in seen)
    assert all("./train.sh --api-key=value-of-key" in line and "value-of-login" not in line for line in seen), seen
