"""Locates a framework's Python interpreter and names its environment in the run's identity."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.config.schema import Cluster, Framework
from harness.core import gpu_types
from harness.core.errors import UserError

# Commands resolved on the node, after cluster.modules and cluster.setup.
COMMAND = re.compile(r"python(3(\.\d+)?)?")
QUESTION = "import sys; from importlib.util import find_spec; print(*[n for n in sys.argv[1:] if not find_spec(n)])"
# Markers of a virtual environment and a conda environment.
MARKERS = ("pyvenv.cfg", "conda-meta")


def interpreter(framework: str, environment: str, project: Path, modules: Sequence[str] = ()) -> Path:
    """Find the Python of an environment.

    Args:
        framework: name, for messages.
        environment: a name of one that sbatch/env/ built or of a conda environment, a folder, or an interpreter.
        project: root of the checkout, or of what was installed.
        modules: cluster.modules; with it, `python3` is the one found on the node.

    Raises:
        UserError: there is none.
    """
    python = find(environment, project, modules)
    if str(python) == environment and modules and COMMAND.fullmatch(environment):
        return python
    if python.is_file() and os.access(python, os.X_OK):
        return python
    named = _is_name(environment)
    how = "give the folder of a virtual or conda environment"
    if script := gpu_types.builder(environment):
        how = f"build it with `{script}`"
    elif named and COMMAND.fullmatch(environment):
        how = "give its full path, or set cluster.modules to the module that provides it"
    raise UserError(
        f"the environment '{environment}' of framework '{framework}' does not exist: no Python at {python}; "
        f"{how}, or set framework.environment to an interpreter with the framework"
    )


def find(environment: str, project: Path, modules: Sequence[str] = (), key: str = "framework.environment") -> Path:
    """Return where the Python of an environment is expected. Arguments: as for `interpreter`; key: for messages."""
    named = _is_name(environment)
    if named and modules and COMMAND.fullmatch(environment):
        return Path(environment)
    folder = Path(environment).expanduser()
    if named:
        ours = _built(project) / environment
        folder = ours if ours.exists() else _conda(environment, key) or ours
    # Not resolved: a virtual environment is identified by the path of its interpreter link.
    return (folder if folder.is_file() else folder / "bin" / "python").absolute()


def canonical(environment: str, project: Path, modules: Sequence[str] = ()) -> str:
    """Return one canonical name for an environment; it becomes part of the run id.

    That is the name of one that sbatch/env/ built; `module:<modules>:<command>` for an interpreter from modules;
    otherwise the absolute path of the environment's folder, or of a standalone interpreter.
    """
    if _is_name(environment):
        if modules and COMMAND.fullmatch(environment):
            return f"module:{','.join(modules)}:{environment}"
        if (_built(project) / environment).exists():
            return environment
        found = _conda(environment)
        return environment if found is None else str(found)
    # Made absolute without resolving links, so that two environments never collapse into one.
    path = Path(os.path.abspath(Path(environment).expanduser()))
    folder = path.parent.parent
    if path.parent.name == "bin" and COMMAND.fullmatch(path.name) and any((folder / name).exists() for name in MARKERS):
        path = folder
    ours = _built(project)
    for name in sorted(os.listdir(ours)) if ours.is_dir() else []:
        if path.exists() and os.path.samefile(path, ours / name):
            return name
    return str(path)


class Lookup:
    """The environments of one plan, each looked up once: thousands of points share a few. Raises UserError like the
    functions above."""

    def __init__(self, project: Path) -> None:
        self._interpreter = functools.cache(functools.partial(interpreter, project=project))
        self._find = functools.cache(functools.partial(find, project=project))
        self._canonical = functools.cache(functools.partial(canonical, project=project))

    def interpreter(self, framework: Framework, cluster: Cluster) -> Path:
        return self._interpreter(framework.name, framework.environment, modules=tuple(cluster.modules))

    def find(self, environment: str, cluster: Cluster, key: str) -> Path:
        return self._find(environment, modules=tuple(cluster.modules), key=key)

    def identity(self, environment: str, cluster: Cluster) -> str:
        """Return its canonical name; in a container, the image determines what runs."""
        container = cluster.container
        if container.runtime:
            return f"{container.runtime}:{container.image}:{environment}"
        return self._canonical(environment, modules=tuple(cluster.modules))


@functools.lru_cache
def absent_packages(python: str, needed: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of these packages the interpreter lacks; none if it does not answer."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = subprocess.run([python, "-c", QUESTION, *needed], capture_output=True, text=True, env=env, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()


def _built(project: Path) -> Path:
    """Folder of the environments that sbatch/env/ builds: of this checkout, or of this user if it is installed."""
    if not gpu_types.installed(project):
        return project / ".envs"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "scaling-harness" / "envs"


def _is_name(environment: str) -> bool:
    return os.sep not in environment.rstrip(os.sep) and not environment.startswith("~")


def _conda(name: str, key: str = "framework.environment", environ: Mapping[str, str] = os.environ) -> Path | None:
    """Find the conda environment of this name; None if there is none. Raises UserError if there are several.

    conda, mamba and micromamba register every environment in ~/.conda/environments.txt and keep their own in `envs`
    under their root.
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
            f"{key}={name}: several conda environments have that name: "
            f"{', '.join(map(str, found))}; give the folder of one"
        )
    return found[0] if found else None
