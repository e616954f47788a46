"""Which interpreter a framework runs in."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import UserError


def interpreter(framework: str, environment: str, project: Path) -> Path:
    """The Python of an environment: a name under `.envs/`, a virtual environment's folder, or an interpreter.

    Raises UserError where it is not there.
    """
    given = Path(environment).expanduser()
    named = len(given.parts) == 1
    folder = project / ".envs" / environment if named else given
    python = folder if folder.is_file() else folder / "bin" / "python"
    if python.is_file() and os.access(python, os.X_OK):
        # Not resolved: a virtual environment is known by the path of its link to the interpreter.
        return python.absolute()
    build = f"sbatch/env/{environment}.sh"
    how = f"build it with `{build}`" if named and (project / build).is_file() else "give a virtual environment's folder"
    raise UserError(
        f"the environment '{environment}' of framework '{framework}' is not there: no Python at {python}; "
        f"{how}, or set framework.environment to an interpreter that has the framework"
    )
