"""The sbatch script that a shape becomes, kept as text: a change of it is seen in review."""

from __future__ import annotations

from project import PROJECT
from submitit.slurm.slurm import _make_sbatch_string

from harness.launch.slurm import array_parameters
from harness.plan import Resources
from harness.spec import Placement

GOLDEN = PROJECT / "tests" / "golden"


def script(resources: Resources, runs: int) -> str:
    return _make_sbatch_string(
        command="python -u -m submitit.core._submit /study/submitit/%j",
        folder="/study/submitit/%j",
        map_count=runs,
        **array_parameters(resources),
    )


def test_array_of_three_nodes_with_four_v100_each() -> None:
    resources = Resources(
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
    assert script(resources, 15) == (GOLDEN / "array_3x4_v100.sbatch").read_text()


def test_cpu_partition_asks_for_no_gpus() -> None:
    resources = Resources(scheduler="slurm", placement=Placement(2, 8), cpus_per_gpu=1, timeout_minutes=0.5)
    text = script(resources, 3)
    assert "gres" not in text
    assert "gpu" not in text.replace("harness-16gpu", "")
    # Slurm counts whole minutes.
    assert "#SBATCH --time=1\n" in text
