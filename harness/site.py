"""What a site needs of a job: a configuration's `cluster` as `Resources` and as a command prefix, checked and quoted.

A value reaches Slurm, and the ranks, exactly as it is written, or is refused here. Only `cluster.setup` is shell.
"""

from __future__ import annotations

import locale
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.command import NODE, OWN_VARIABLES
from harness.errors import UserError
from harness.plan import MPIRUN, Resources
from harness.schema import Cluster, Container, GpuOption, Precision, Scheduler, StageEnvironment
from harness.spec import Placement

ONLY_SLURM = (
    *("gres", "gpu_option", "gpu_type", "partition", "account", "qos", "constraint", "reservation", "memory_per_node"),
    *("exclusive", "array_parallelism", "max_submit", "modules", "setup", "sbatch_args", "srun_args"),
    *("stage_environment", "stage_folder"),
)
# Keys whose text becomes the value of one option of sbatch.
TEXTS = ("gres", "gpu_type", "partition", "account", "qos", "constraint", "reservation", "memory_per_node")
# Stands for an option without a value, such as --overcommit; no value is empty.
SWITCH = ""
RUNTIMES = ("apptainer", "singularity", "pyxis")
# What the harness itself asks of sbatch; to set it twice would be to set it to chance.
OWN_OPTIONS = {
    *("array", "chdir", "cpus-per-task", "error", "export", "input", "job-name", "nodes", "ntasks", "ntasks-per-node"),
    *("open-mode", "output", "parsable", "requeue", "no-requeue", "signal", "test-only", "time", "wait", "wrap"),
    *("help", "usage", "version"),  # with these, sbatch submits nothing
}
KEY_OF_OPTION = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "constraint": "constraint",
    "mem": "memory_per_node",
    "reservation": "reservation",
    "exclusive": "exclusive",
    "gres": "gres",
    "gpus-per-node": "gpu_option",
}


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
            (name, _plain(value)) for name, value in sorted(cluster.sbatch_args.items()) if _asked(value)
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
        _check_option("cluster.stage_folder", cluster.stage_folder)
        if not cluster.stage_folder.startswith("/"):
            raise UserError(
                f"cluster.stage_folder={cluster.stage_folder!r} is taken as it is written: give a whole path, such as "
                "/scratch, or null for $SLURM_TMPDIR, $TMPDIR or /tmp of the batch script"
            )
    return str(folder)


def check(cluster: Cluster) -> None:
    """Raises UserError for what no scheduler needs to be asked about."""
    for name in cluster.peak_tflops:
        if name not in Precision.__members__:
            raise UserError(
                f"cluster.peak_tflops: {name!r} is no precision; there are {', '.join(Precision.__members__)}"
            )
    _check_env(cluster.env)
    if cluster.gpu_type and not cluster.gres:
        raise UserError(
            f"cluster.gpu_type={cluster.gpu_type!r} has no effect without cluster.gres; set cluster.gres=gpu"
        )
    if cluster.gpu_option is GpuOption.gpus_per_node and not cluster.gres:
        raise UserError("cluster.gpu_option=gpus_per_node: cluster.gres=null asks for no GPUs; set cluster.gres=gpu")
    _check_container(cluster.container)
    if cluster.scheduler is Scheduler.local:
        defaults = Cluster()
        for key in ONLY_SLURM:
            if getattr(cluster, key) != getattr(defaults, key):
                raise UserError(f"cluster.{key} has no effect without a scheduler; leave it out, or take cluster=slurm")
        if cluster.container.runtime == "pyxis":
            raise UserError("cluster.container.runtime=pyxis is a plugin of srun; without a scheduler take apptainer")
        if cluster.mpi not in (None, MPIRUN):
            raise UserError(f"cluster.mpi={cluster.mpi} is a name for srun; without a scheduler there is only {MPIRUN}")
        return
    if cluster.mpi is not None and not re.fullmatch(r"\w+", cluster.mpi):
        raise UserError(f"cluster.mpi={cluster.mpi!r}: give {MPIRUN}, or a name that `srun --mpi=list` has")
    if cluster.bind_cpus:
        raise UserError("cluster.bind_cpus is for runs without a scheduler; take cluster.srun_args=[--cpu-bind=cores]")
    if cluster.signal_seconds >= 60 * math.ceil(cluster.timeout_minutes):
        raise UserError(
            f"cluster.signal_seconds={cluster.signal_seconds}: the ranks are to be warned so long before a wall limit "
            f"of {math.ceil(cluster.timeout_minutes)} min (cluster.timeout_minutes); take less, or a longer limit"
        )
    for key in TEXTS:
        if (value := getattr(cluster, key)) is not None:
            _check_option(f"cluster.{key}", value)
    for line in cluster.setup:
        _check_text("cluster.setup", line)
        if re.search("[\n\r]", line):
            raise UserError("cluster.setup: a line has a line break in it; give each line of shell as one element")
        if re.match(r"\s*#\s*(SBATCH|PBS|BSUB)\b", line):
            raise UserError(
                f"cluster.setup: '{line}' would be read by sbatch; options of sbatch go into cluster.sbatch_args"
            )
    for name in cluster.modules:
        if not re.fullmatch(r"[A-Za-z0-9_.+/@:=-]+", name) or name.startswith("-"):
            raise UserError(f"cluster.modules: {name!r} is not a module's name; give names such as lang/Python/3.11")
    for argument in cluster.srun_args:
        _check_argument("cluster.srun_args", argument)
        if argument.startswith("--mpi"):
            raise UserError(f"cluster.srun_args: '{argument}' has a key of its own: cluster.mpi")
    _check_sbatch_args(cluster.sbatch_args)


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


def _check_env(env: dict[str, str]) -> None:
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise UserError(f"cluster.env: {name!r} is not a name of an environment variable")
        if name in OWN_VARIABLES:
            raise UserError(f"cluster.env: {name} is set by the harness itself, for each rank; leave it out")
        _check_text(f"cluster.env.{name}", value)


def _check_sbatch_args(options: dict[str, Any]) -> None:
    for option, value in options.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]*", str(option)):
            raise UserError(
                f"cluster.sbatch_args: {option!r} is not a long option of sbatch; write it as mail-type: END"
            )
        if option in OWN_OPTIONS:
            raise UserError(f"cluster.sbatch_args: '{option}' is set by the harness itself; leave it out")
        if option in KEY_OF_OPTION:
            raise UserError(f"cluster.sbatch_args: '{option}' has a key of its own: cluster.{KEY_OF_OPTION[option]}")
        if not isinstance(value, str | int | float | None):
            raise UserError(f"cluster.sbatch_args.{option}: give one text or number, not {value!r}")
        if _asked(value) and value is not True:
            _check_option(f"cluster.sbatch_args.{option}", _plain(value))


def _check_container(config: Container) -> None:
    if config.runtime is None:
        if config.image is not None:
            raise UserError(f"cluster.container.image={config.image!r} has no effect without cluster.container.runtime")
        if config.args:
            raise UserError("cluster.container.args has no effect without cluster.container.runtime")
        return
    if config.runtime not in RUNTIMES:
        raise UserError(
            f"cluster.container.runtime={config.runtime!r}: there are {', '.join(RUNTIMES)}, or null for none"
        )
    if not config.image:
        raise UserError(f"cluster.container.runtime={config.runtime} needs an image: set cluster.container.image")
    _check_text("cluster.container.image", config.image)
    if config.image.startswith("-"):
        raise UserError(f"cluster.container.image={config.image!r} would be taken for an option; give a path or a name")
    for argument in config.args:
        _check_argument("cluster.container.args", argument)


def _check_argument(key: str, argument: str) -> None:
    _check_text(key, argument)
    if not argument.startswith("-"):
        raise UserError(f"{key}: {argument!r} is not an option; write --name=value as one element")


def _check_option(key: str, value: str) -> None:
    """sbatch takes any text between quotes as it is, but for what ends the line."""
    _check_text(key, value)
    if not value:
        raise UserError(f"{key} is empty; write null for none")
    if re.search("[\n\r]", value):
        raise UserError(f"{key}={value!r} has a line break in it, which an option of sbatch cannot have; leave it out")


def _check_text(key: str, value: str) -> None:
    """What no file of text, no command line and no environment variable can hold."""
    try:
        value.encode(locale.getpreferredencoding(False))
    except UnicodeEncodeError as error:
        bad = value[error.start]
        raise UserError(f"{key}={value!r} has {bad!r} in it, which this machine's locale has no code for") from None
    if "\0" in value:
        raise UserError(f"{key}={value!r} has a zero character in it, which ends a text; leave it out")


def _asked(value: Any) -> bool:
    """null and false leave an option out."""
    return value is not None and value is not False


def _plain(value: Any) -> str:
    """As sbatch takes it; true is an option without a value."""
    return SWITCH if value is True else str(value)
