"""What a site needs of a job: a configuration's `cluster` as `Resources` and as a command prefix, quoted."""

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


def resources(
    cluster: Cluster,
    placement: Placement,
    cpus_per_gpu: int,
    mpi: str | None = None,
    server_nodes: int = 0,
    staged: str | None = None,
) -> Resources:
    """What Slurm is asked for. mpi, server_nodes, staged: as in Resources. Raises UserError."""
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
    """What stands before `python` on a rank's command line. folders: what the rank reads and writes. Raises UserError.

    Apptainer and Singularity start the rank themselves. Pyxis is a plugin of srun: each rank is a step of its own, on
    the node of its watcher, and with all that the job has there: to count cores twice, once for the watcher and once
    for the rank, would leave none.
    """
    if config.runtime is None:
        return ()
    seen = tuple(dict.fromkeys((project, *folders)))
    for folder in seen:
        if re.search("[:,]", folder):
            raise UserError(
                f"cluster.container: the folder {folder!r} has a ':' or ',' in its name, which stands between folders "
                "where a container is told of them; choose another one"
            )
    image = str(config.image)
    if config.runtime == "pyxis":
        step = ("srun", "--overlap", "--nodes=1", "--ntasks=1", NODE, "--cpu-bind=none", "--export=ALL", "--unbuffered")
        mounts = ",".join(f"{folder}:{folder}" for folder in seen)
        return (*step, f"--container-image={image}", f"--container-mounts={mounts}", *config.args)
    return (config.runtime, "exec", "--nv", *(f"--bind={folder}" for folder in seen), *config.args, image)


def staged(cluster: Cluster, python: str, starter: str | None, pack: bool) -> str | None:
    """The folder of the environment that is to be unpacked on the nodes; None where none is. starter: as in
    Resources.mpi. Raises UserError where that cannot work."""
    asked = f"cluster.stage_environment={cluster.stage_environment.name}"
    if cluster.stage_environment is StageEnvironment.none:
        if cluster.stage_folder is not None:
            raise UserError(f"cluster.stage_folder={cluster.stage_folder!r} has no effect with {asked}; leave it out")
        return None
    if cluster.scheduler is not Scheduler.slurm:
        raise UserError(f"{asked} is for job arrays, cluster.scheduler=slurm; here the environment is used where it is")
    if cluster.container.runtime is not None:
        raise UserError(f"{asked} with cluster.container: the image is one file already; leave one of the two out")
    if pack:
        raise UserError(f"{asked} is not offered with pack=true, whose jobs may need several environments")
    if starter == MPIRUN:
        raise UserError(f"{asked} is not offered with cluster.mpi={MPIRUN}, whose ranks it does not reach; take srun's")
    folder = Path(python).parent.parent
    if not (folder / "pyvenv.cfg").is_file():
        raise UserError(
            f"{asked} needs a virtual environment, which runs from any folder; {folder} has no pyvenv.cfg: leave it at "
            "none, or set framework.environment to one"
        )
    if cluster.stage_folder is not None:
        check_option("cluster.stage_folder", cluster.stage_folder)
        if not cluster.stage_folder.startswith("/"):
            raise UserError(
                f"cluster.stage_folder={cluster.stage_folder!r} is taken as it is written: give a whole path, such as "
                "/scratch, or null for $SLURM_TMPDIR, $TMPDIR or /tmp of the batch script"
            )
    return str(folder)


def setup_lines(asked: Resources) -> list[str]:
    """The shell lines before srun: what they set holds for every rank. A module that cannot be loaded ends the job."""
    load = [f"module load {' '.join(map(shlex.quote, asked.modules))} || exit"] if asked.modules else []
    return [*load, *asked.setup]


def srun_args(starter: str | None, asked: Sequence[str]) -> list[str]:
    """The site's options of the srun that starts ranks. starter: as in Resources.mpi."""
    return [*([f"--mpi={starter}"] if starter not in (None, MPIRUN) else []), *asked]


def escaped(value: str) -> str:
    """For an #SBATCH line: inside of quotes, too, sbatch takes a backslash for the mark of a character to keep."""
    return value.replace("\\", "\\\\")
