"""The sbatch scripts of job arrays as golden files, so that changes show in review."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import make_request
from project import PROJECT

from harness.core.spec import Placement
from harness.launch.options import advice, batch_script, trial_options
from harness.plan.plan import Array, Resources

GOLDEN = PROJECT / "tests" / "golden"


STAGED = Path("/study/environments/pytorch-0123456789ab.tar.gz")


def script(resources: Resources, runs: int, packed: bool = False) -> str:
    request = dataclasses.replace(make_request(), resources=resources)
    array = Array(resources, ((request,),) * runs, packed)
    text = batch_script(array, "0123456789", Path("/study"), STAGED if resources.staged else None)
    return text.replace(shlex.quote(sys.executable), "python")


def without_modules(text: str) -> str:
    """Replace the names of our modules after checking that each exists."""
    for module in re.findall(r"-m (harness\.[\w.]+)", text):
        assert find_spec(module) is not None, module
    return re.sub(r"-m harness\.[\w.]+", "-m <module>", text)


V100 = Resources(
    scheduler="slurm",
    placement=Placement(3, 4),
    cpus_per_gpu=7,
    timeout_minutes=30,
    gres="gpu",
    gpu_type="v100",
    partition="gpu",
    account="project 42",
    exclusive=True,
    memory_per_node="120GB",
    array_parallelism=2,
    setup=("module load lang/Python",),
    srun_args=("--cpu-bind=cores",),
)
STAGED_V100 = dataclasses.replace(V100, staged="/envs/pytorch", stage_folder="/local disk")
EVERYTHING = Resources(
    scheduler="slurm",
    placement=Placement(2, 8),
    cpus_per_gpu=14,
    timeout_minutes=20,
    signal_seconds=120,
    gres="gpu",
    gpu_option="gpus_per_node",
    gpu_type="h100",
    partition="main,high",
    account="project",
    qos="long",
    constraint="[rack1|rack2]&ib",
    reservation="tuesday",
    modules=("lang/Python/3.11", "system/CUDA"),
    setup=("ulimit -l unlimited", 'export WHERE="$HOME"'),
    srun_args=("--cpu-bind=cores", "--export=ALL,A=it's"),
    sbatch_args=(
        ("comment", 'it\'s "a" \\ b; $(touch /tmp/pwned) & `c` # d'),
        ("mail-type", "END"),
        ("overcommit", ""),
    ),
)


@pytest.mark.parametrize(
    ("name", "resources", "packed"),
    [
        ("array_3x4_v100", V100, False),
        ("array_3x4_pmix", dataclasses.replace(V100, mpi="pmix"), False),
        ("array_2x8_every_key", EVERYTHING, False),
        ("array_3x4_and_2_for_servers", dataclasses.replace(V100, server_nodes=2), False),
        ("array_3x4_staged", dataclasses.replace(STAGED_V100, stage_environment="tar"), False),
        ("array_3x4_broadcast", dataclasses.replace(STAGED_V100, stage_environment="sbcast"), False),
        # Its runs are srun steps started by harness/launch/allocation.py.
        ("packed_2x8_every_key", EVERYTHING, True),
    ],
)
def test_script(name: str, resources: Resources, packed: bool) -> None:
    assert without_modules(script(resources, 15, packed)) == (GOLDEN / f"{name}.sbatch").read_text()


def test_ranks_of_mpirun_are_started_in_the_batch_step() -> None:
    of_mpirun = script(dataclasses.replace(V100, mpi="mpirun"), 15)
    assert of_mpirun == script(V100, 15, packed=True).replace(" 0123456789 '' ", " 0123456789 mpirun ")


def test_one_process_per_node_has_all_cores_and_gpus_of_its_node() -> None:
    text = script(dataclasses.replace(V100, one_process_per_node=True), 15)
    for option in ("--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=28", "--gres=gpu:v100:4"):
        assert f"#SBATCH {option}\n" in text
    assert "--cpus-per-task=28" in text.partition("\nsrun ")[2]


def test_cpu_partition_asks_for_no_gpus() -> None:
    resources = Resources(scheduler="slurm", placement=Placement(2, 8), cpus_per_gpu=1, timeout_minutes=0.5)
    text = script(resources, 3)
    assert "gres" not in text
    assert "gpu" not in text.replace("harness-16gpu", "")
    # Slurm counts whole minutes.
    assert "#SBATCH --time=1\n" in text


def test_slurm_is_asked_beforehand_for_the_same_in_words_that_no_shell_reads() -> None:
    asked = trial_options(EVERYTHING)
    assert '--comment=it\'s "a" \\ b; $(touch /tmp/pwned) & `c` # d' in asked
    assert "--overcommit" in asked
    for option in ("--gpus-per-node=h100:8", "--nodes=2", "--constraint=[rack1|rack2]&ib", "--reservation=tuesday"):
        assert option in asked


@pytest.mark.parametrize(
    ("said", "key"),
    # Messages of Slurm 22.05; tests/cluster/test_site_on_slurm.py provokes most of them.
    [
        ("invalid partition specified: x; allocation failure: Invalid partition name specified", "cluster.partition"),
        ("Required partition not available (inactive or drain)", "cluster.partition"),
        ("Invalid account or account/partition combination specified", "cluster.account"),
        ("Invalid qos specification", "cluster.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "cluster.timeout_minutes"),
        ("Requested reservation is invalid", "cluster.reservation"),
        ("Access denied to requested reservation", "cluster.reservation"),
        ("Invalid feature specification", "cluster.constraint"),
        ("Invalid generic resource (gres) specification", "cluster.gres"),
        ("Requested node configuration is not available", "cluster.gpu_type"),
        ("Node count specification invalid", "fewer gpus"),
        ("More processors requested than permitted", "cluster.cpus_per_gpu"),
        ("Invalid --mem specification", "cluster.memory_per_node"),
        ("Memory required by task is not available", "cluster.memory_per_node"),
        ("unrecognized option '--nosuch=1'; Try \"sbatch --help\" for more information", "cluster.sbatch_args"),
        ("Invalid --mail-type specification", "cluster.sbatch_args"),
        ("Invalid license specification", "cluster.sbatch_args"),
        (
            "AssocMaxSubmitJobLimit; Batch job submission failed: Job violates accounting/QOS policy (job submit "
            "limit, user's size and/or time limits)",
            "cluster.max_submit",
        ),
        ("QOSMaxWallDurationPerJobLimit; Job violates accounting/QOS policy (...)", "cluster.timeout_minutes"),
        ("QOSMaxNodePerJobLimit; Job violates accounting/QOS policy (job submit limit, ...)", "sacctmgr show qos"),
        ("something that is new in Slurm 30", "keys of `cluster`"),
    ],
)
def test_advice_names_what_to_change(said: str, key: str) -> None:
    assert key in advice(said)
