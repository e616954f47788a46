"""Checks of a site's `cluster` keys, made before any call to the scheduler.

Values reach Slurm and the ranks verbatim or are rejected here. Only `cluster.setup` is shell code.
"""

from __future__ import annotations

import locale
import math
import re
from typing import Any

from harness.config.schema import Cluster, Container, GpuOption, Precision, Scheduler
from harness.core import environment_variables
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN

ONLY_SLURM = (
    *("gres", "gpu_option", "gpu_type", "partition", "account", "qos", "constraint", "reservation", "memory_per_node"),
    *("exclusive", "array_parallelism", "max_submit", "modules", "setup", "sbatch_args", "srun_args"),
    *("stage_environment", "stage_folder"),
)
# Keys whose value is passed to one sbatch option.
TEXTS = ("gres", "gpu_type", "partition", "account", "qos", "constraint", "reservation", "memory_per_node")
# Value of an option that takes none, such as --overcommit.
SWITCH = ""
RUNTIMES = ("apptainer", "singularity", "pyxis")
# Options that the harness sets itself.
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


def check(cluster: Cluster) -> None:
    """Raise UserError for the first invalid `cluster` value."""
    for name in cluster.peak_tflops:
        if name not in Precision.__members__:
            raise UserError(
                f"cluster.peak_tflops: {name!r} is not a precision; valid ones are {', '.join(Precision.__members__)}"
            )
    _check_env(cluster.env)
    if cluster.gpu_type and not cluster.gres:
        raise UserError(
            f"cluster.gpu_type={cluster.gpu_type!r} has no effect without cluster.gres; set cluster.gres=gpu"
        )
    if cluster.gpu_option is GpuOption.gpus_per_node and not cluster.gres:
        raise UserError("cluster.gpu_option=gpus_per_node: cluster.gres=null requests no GPUs; set cluster.gres=gpu")
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
            f"cluster.signal_seconds={cluster.signal_seconds}: the ranks would be warned before they start: the wall "
            f"limit is {math.ceil(cluster.timeout_minutes)} min (cluster.timeout_minutes); take less, or a longer limit"
        )
    for key in TEXTS:
        if (value := getattr(cluster, key)) is not None:
            check_option(f"cluster.{key}", value)
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


def _check_env(env: dict[str, str]) -> None:
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise UserError(f"cluster.env: {name!r} is not a name of an environment variable")
        if name in environment_variables.OF_A_RANK:
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
        if is_asked(value) and value is not True:
            check_option(f"cluster.sbatch_args.{option}", as_sbatch_takes_it(value))


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


def check_option(key: str, value: str) -> None:
    """Raise UserError if a quoted sbatch option cannot hold the text."""
    _check_text(key, value)
    if not value:
        raise UserError(f"{key} is empty; write null for none")
    if re.search("[\n\r]", value):
        raise UserError(f"{key}={value!r} has a line break in it, which an option of sbatch cannot have; leave it out")


def _check_text(key: str, value: str) -> None:
    """Raise UserError for characters that text files, command lines or environment variables cannot hold."""
    try:
        value.encode(locale.getpreferredencoding(False))
    except UnicodeEncodeError as error:
        bad = value[error.start]
        raise UserError(f"{key}={value!r} has {bad!r} in it, which this machine's locale has no code for") from None
    if "\0" in value:
        raise UserError(f"{key}={value!r} has a zero character in it, which ends a text; leave it out")


def is_asked(value: Any) -> bool:
    """Return False for null and false, which leave an option out."""
    return value is not None and value is not False


def as_sbatch_takes_it(value: Any) -> str:
    """Return the value as text for sbatch; true becomes an option without a value."""
    return SWITCH if value is True else str(value)
