"""Which interpreter a framework runs in, and what an environment is called in a run's identity."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core.errors import UserError

# Commands that are looked up on the node, after cluster.modules and cluster.setup.
COMMAND = re.compile(r"python(3(\.\d+)?)?")
# What makes a folder an environment of its own: a virtual environment, and one of conda.
MARKS = ("pyvenv.cfg", "conda-meta")


def interpreter(framework: str, environment: str, project: Path, modules: Sequence[str] = ()) -> Path:
    """The Python of an environment: a name under `.envs/` or of a conda environment, a folder, or an interpreter.

    Args:
        modules: what jobs load first (cluster.modules); with it, `python3` is the one that the node then has.

    Raises:
        UserError: it is not there.
    """
    named = _is_name(environment)
    if named and modules and COMMAND.fullmatch(environment):
        return Path(environment)
    folder = Path(environment).expanduser()
    if named:
        ours = project / ".envs" / environment
        folder = ours if ours.exists() else _conda(environment) or ours
    python = folder if folder.is_file() else folder / "bin" / "python"
    if python.is_file() and os.access(python, os.X_OK):
        # Not resolved: a virtual environment is known by the path of its link to the interpreter.
        return python.absolute()
    build = f"sbatch/env/{environment}.sh"
    how = "give the folder of a virtual or conda environment"
    if named and (project / build).is_file():
        how = f"build it with `{build}`"
    elif named and COMMAND.fullmatch(environment):
        how = "give its whole path, or the module that has it in cluster.modules"
    raise UserError(
        f"the environment '{environment}' of framework '{framework}' is not there: no Python at {python}; "
        f"{how}, or set framework.environment to an interpreter that has the framework"
    )


def canonical(environment: str, project: Path, modules: Sequence[str] = ()) -> str:
    """One name for an environment, however it was given: what a run's id is made of.

    The name for one under `.envs/` of this checkout; `module:<modules>:<command>` for what modules bring; else the
    absolute path of the environment's folder, and of an interpreter that is in none.
    """
    if _is_name(environment):
        if modules and COMMAND.fullmatch(environment):
            return f"module:{','.join(modules)}:{environment}"
        if (project / ".envs" / environment).exists():
            return environment
        found = _conda(environment)
        return environment if found is None else str(found)
    # Made absolute as text: links are left as they are, so that no two environments become one.
    path = Path(os.path.abspath(Path(environment).expanduser()))
    folder = path.parent.parent
    if path.parent.name == "bin" and COMMAND.fullmatch(path.name) and any((folder / mark).exists() for mark in MARKS):
        path = folder
    ours = project / ".envs"
    for name in sorted(os.listdir(ours)) if ours.is_dir() else []:
        if path.exists() and os.path.samefile(path, ours / name):
            return name
    return str(path)


def _is_name(environment: str) -> bool:
    return os.sep not in environment.rstrip(os.sep) and not environment.startswith("~")


def _conda(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the conda environment of this name; None where there is none. Raises UserError for several.

    conda, mamba and micromamba list the folder of every environment that they make in ~/.conda/environments.txt, and
    have theirs in `envs` under their root.
    """
    roots = [environ.get("MAMBA_ROOT_PREFIX"), environ.get("CONDA_ROOT")]
    if executable := environ.get("CONDA_EXE"):
        roots.append(str(Path(executable).parent.parent))
    folders = [Path(root) / "envs" / name for root in roots if root]
    folders += [Path(path) / name for path in filter(None, environ.get("CONDA_ENVS_PATH", "").split(os.pathsep))]
    try:
        listed = (Path.home() / ".conda" / "environments.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, RuntimeError):
        listed = []
    folders += [Path(line.strip()) for line in listed if Path(line.strip()).name == name]
    found = sorted({folder.absolute() for folder in folders if (folder / "conda-meta").is_dir()})
    if len(found) > 1:
        raise UserError(
            f"framework.environment={name}: there are several conda environments of that name: "
            f"{', '.join(map(str, found))}; give the folder of one"
        )
    return found[0] if found else None
