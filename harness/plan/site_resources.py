"""Translates `cluster` settings into `Resources` and a quoted command prefix."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from harness.config.cluster_checks import as_sbatch_takes_it, check_option, is_asked
from harness.config.schema import Cluster, Container, Scheduler, StageEnvironment
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN, NODE
from harness.core.spec import Placement
from harness.plan.plan import Resources

# Of Slurm's PMIx plugin. By default it mixes this collective with a tree, by which a rank can leave MPI_Init before
# another has joined, and the first message then crashes that one (as in github.com/open-mpi/ompi/issues/12495). Of
# starts of four ranks on two busy virtual nodes, 21 of 110 crashed with the tree, 6 of 430 with the mixture and none of
# 450 with the ring.
PMIX_FENCE = ("SLURM_PMIX_FENCE", "ring")


def resources(
    cluster: Cluster,
    placement: Placement,
    cpus_per_gpu: int,
    mpi: str | None = None,
    server_nodes: int = 0,
    staged: str | None = None,
) -> Resources:
    """Build the resources of a job. mpi, server_nodes, staged: as in Resources. Raises UserError."""
    asked = {f.name: getattr(cluster, f.name) for f in fields(Resources) if hasattr(cluster, f.name)}
    asked.update(
        scheduler=cluster.scheduler.name,
        placement=placement,
        cpus_per_gpu=cpus_per_gpu,
        mpi=mpi,
        server_nodes=server_nodes,
        staged=staged,
        stage_environment=cluster.stage_environment.name,
        gpu_option=cluster.gpu_option.name,
        modules=tuple(cluster.modules),
        setup=tuple(cluster.setup),
        srun_args=tuple(cluster.srun_args),
        sbatch_args=tuple(
            (name, as_sbatch_takes_it(value)) for name, value in sorted(cluster.sbatch_args.items()) if is_asked(value)
        ),
    )
    return Resources(**asked)


def container(config: Container, project: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Build the command prefix that starts `python` in the container. folders: what the rank reads and writes.

    Apptainer and Singularity start the rank directly. Pyxis is an srun plugin, so each rank is a step of its own on its
    supervisor's node with all of the job's resources there (--overlap): the supervisor's step already holds the cores.

    Raises UserError.
    """
    if config.runtime is None:
        return ()
    seen = tuple(dict.fromkeys((project, *folders)))
    for folder in seen:
        if re.search("[:,]", folder):
            raise UserError(
                f"cluster.container: the folder {folder!r} contains ':' or ',', which separate "
                "folders in a container's options; choose another one"
            )
    image = str(config.image)
    if config.runtime == "pyxis":
        step = ("srun", "--overlap", "--nodes=1", "--ntasks=1", NODE, "--cpu-bind=none", "--export=ALL", "--unbuffered")
        mounts = ",".join(f"{folder}:{folder}" for folder in seen)
        return (*step, f"--container-image={image}", f"--container-mounts={mounts}", *config.args)
    return (config.runtime, "exec", "--nv", *(f"--bind={folder}" for folder in seen), *config.args, image)


def staged(cluster: Cluster, python: str, starter: str | None, pack: bool) -> str | None:
    """Return the folder of the environment to unpack on the nodes; None if it is not staged.

    starter: as in Resources.mpi. Raises UserError for an unsupported combination.
    """
    asked = f"cluster.stage_environment={cluster.stage_environment.name}"
    if cluster.stage_environment is StageEnvironment.none:
        if cluster.stage_folder is not None:
            raise UserError(f"cluster.stage_folder={cluster.stage_folder!r} has no effect with {asked}; leave it out")
        return None
    if cluster.scheduler is not Scheduler.slurm:
        raise UserError(f"{asked} needs cluster.scheduler=slurm; other schedulers use the environment in place")
    if cluster.container.runtime is not None:
        raise UserError(
            f"{asked} cannot be combined with cluster.container, whose image is already a single file; "
            "leave one of the two out"
        )
    if pack:
        raise UserError(f"{asked} is not supported with pack=true, whose jobs may need several environments")
    if starter == MPIRUN:
        raise UserError(f"{asked} is not supported with cluster.mpi={MPIRUN}, whose ranks it does not reach; use srun")
    folder = Path(python).parent.parent
    if not (folder / "pyvenv.cfg").is_file():
        raise UserError(
            f"{asked} needs a relocatable virtual environment; {folder} has no pyvenv.cfg: set it to none, or "
            "set framework.environment to a virtual environment"
        )
    if cluster.stage_folder is not None:
        check_option("cluster.stage_folder", cluster.stage_folder)
        if not cluster.stage_folder.startswith("/"):
            raise UserError(
                f"cluster.stage_folder={cluster.stage_folder!r} is used literally: give an absolute path, such as "
                "/scratch, or null for $SLURM_TMPDIR, $TMPDIR or /tmp of the batch script"
            )
    return str(folder)


def setup_lines(asked: Resources) -> list[str]:
    """Shell lines before srun, whose settings reach every rank. A module that cannot be loaded fails the job."""
    load = [f"module load {' '.join(map(shlex.quote, asked.modules))} || exit"] if asked.modules else []
    name, value = PMIX_FENCE
    fence = [f"export {name}=${{{name}:-{value}}}"] if (asked.mpi or "").startswith("pmix") else []
    return [*load, *asked.setup, *fence]


def srun_args(starter: str | None, asked: Sequence[str]) -> list[str]:
    """The site's options for the srun that starts ranks. starter: as in Resources.mpi."""
    return [*([f"--mpi={starter}"] if starter not in (None, MPIRUN) else []), *asked]


def escaped(value: str) -> str:
    """Escape for an #SBATCH line: sbatch treats a backslash as an escape character even inside quotes."""
    return value.replace("\\", "\\\\")
