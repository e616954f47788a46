"""A rank in a container: its command line, its variables, and rejected container settings."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
from builders import make_site, make_spec
from hypothesis import given, settings
from site_builder import NASTY, RANK_3, TEXT, refused, slurm_cluster

from harness.config import cluster_checks
from harness.config.schema import Cluster, Container, Scheduler
from harness.core.environment_variables import CONTAINER_ENVIRONMENT
from harness.core.errors import UserError
from harness.core.launchers import NODE
from harness.node.command import rank_command, rank_environment
from harness.plan import site_resources

FOLDERS = ("/results", "/data", "/results")


def command(container: Container, **environ: str) -> list[str]:
    prefix = site_resources.container(container, "/project", FOLDERS)
    return rank_command(make_site(python="python3", container=prefix), Path("/run"), Path("/run/attempt-1"), environ)


WORKER = ["python3", "-u", "-m", "harness.worker", "/run", "/run/attempt-1"]
IN_CONTAINER = ["sh", "-c", 'trap "" USR2; eval "$HARNESS_ENVIRONMENT" && exec "$@"', "sh"]


def test_without_a_container_the_rank_is_started_as_it_is() -> None:
    assert command(Container()) == WORKER


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_apptainer_and_singularity_start_the_rank(runtime: str) -> None:
    container = Container(runtime, "/images/my torch.sif", ["--bind=/scratch", "--writable-tmpfs"])
    assert command(container) == [
        *(runtime, "exec", "--nv", "--bind=/project", "--bind=/results", "--bind=/data"),
        *("--bind=/scratch", "--writable-tmpfs", "/images/my torch.sif", *IN_CONTAINER, *WORKER),
    ]


def test_with_pyxis_the_rank_is_a_step_of_its_own_on_the_node_of_its_supervisor() -> None:
    container = Container("pyxis", "nvcr.io#nvidia/pytorch:24.01-py3", ["--no-container-mount-home"])
    assert command(container, SLURMD_NODENAME="gpu7") == [
        *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu7", "--cpu-bind=none", "--export=ALL"),
        *("--unbuffered", "--container-image=nvcr.io#nvidia/pytorch:24.01-py3"),
        *("--container-mounts=/project:/project,/results:/results,/data:/data", "--no-container-mount-home"),
        *(*IN_CONTAINER, *WORKER),
    ]
    assert NODE not in command(container)


@given(image=TEXT | NASTY, argument=TEXT | NASTY)
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("runtime", cluster_checks.RUNTIMES)
def test_image_and_arguments_reach_the_runtime_as_they_are(runtime: str, image: str, argument: str) -> None:
    container = Container(runtime, image, [f"--x={argument}"])
    if refused(slurm_cluster(container=container)):
        assert not image or image.startswith("-") or "\0" in image + argument
        return
    argv = command(container, SLURMD_NODENAME="n1")
    assert f"--x={argument}" in argv
    assert image in argv or f"--container-image={image}" in argv


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (Container("docker", "x"), "cluster.container.runtime='docker': there are apptainer, singularity, pyxis"),
        (Container("apptainer"), "set cluster.container.image"),
        (Container(None, "x.sif"), "cluster.container.image='x.sif' has no effect without cluster.container.runtime"),
        (Container(None, None, ["--x"]), "cluster.container.args has no effect"),
        (Container("apptainer", "--help"), "would be taken for an option"),
        (Container("apptainer", "x.sif", ["--bind", "/scratch"]), "'/scratch' is not an option"),
    ],
)
def test_a_mistake_in_the_container_gets_one_sentence(container: Container, words: str) -> None:
    assert words in (refused(slurm_cluster(container=container)) or "accepted")


@pytest.mark.parametrize("folder", ["/a:b", "/a,b"])
def test_a_folder_that_a_container_cannot_be_told_of_is_refused(folder: str) -> None:
    with pytest.raises(UserError, match="choose another one"):
        site_resources.container(Container("apptainer", "x.sif"), "/project", (folder,))


def test_pyxis_needs_slurm() -> None:
    cluster = Cluster(name="local", scheduler=Scheduler.local, container=Container("pyxis", "x"))
    assert "without a scheduler take apptainer" in (refused(cluster) or "accepted")


def in_container(env: dict[str, str], image: dict[str, str], *, program: str) -> str:
    """Return the output of a rank's program in an image that sets its own variables."""
    argv = command(Container("apptainer", "x.sif"))
    start = argv.index("sh")
    done = subprocess.run(
        [*argv[start : start + len(IN_CONTAINER)], "bash", "-c", program],
        env={"PATH": os.environ["PATH"], **env, **image},
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()  # without newline translation, to keep '\r'


@given(value=TEXT | NASTY)
@settings(max_examples=25, deadline=None)
def test_in_the_container_the_ranks_variables_win_over_the_images(value: str) -> None:
    if "\0" in value:
        return
    spec = dataclasses.replace(make_spec(), env={"NCCL_X": value})
    contained = make_site(container=site_resources.container(Container("apptainer", "x.sif"), "/project", ()))
    env = rank_environment(spec, contained, RANK_3, {"PYTHONPATH": "/modules"})
    image = {"NCCL_X": "images", "RANK": "0", "OMP_NUM_THREADS": "64", "PYTHONPATH": "/opt/image"}
    program = 'printf "%s\\0" "$RANK" "$OMP_NUM_THREADS" "$PYTHONPATH" "$NCCL_X"'
    assert in_container(env, image, program=program).split("\0")[:-1] == ["3", "1", "/project:/opt/image", value]


def test_exit_request_does_not_kill_a_starting_rank_in_a_container() -> None:
    assert in_container({CONTAINER_ENVIRONMENT: ""}, {}, program="kill -USR2 $$; echo alive") == "alive\n"


def test_the_supervisors_step_does_not_describe_the_ranks() -> None:
    """srun would take these variables as options and bind all ranks to the first one's cores."""
    contained = make_site(container=site_resources.container(Container("pyxis", "x"), "/project", ()))
    supervisor = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x3,0xC",
        "SLURM_NTASKS": "4",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_TRES_PER_TASK": "gres:gpu:1",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "7",
        "SLURM_CONF": "/etc/slurm.conf",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "HOME": "/h",
    }
    env = rank_environment(make_spec(), contained, RANK_3, supervisor)
    assert sorted(name for name in env if name.startswith("SLURM")) == ["SLURM_CONF", "SLURM_JOB_ID"]
    assert env["HOME"] == "/h"
    # A rank started by srun directly keeps Slurm's variables, which are its own.
    assert rank_environment(make_spec(), make_site(), RANK_3, supervisor)["SLURM_NTASKS"] == "4"
