"""Records what the user's own training runs on: env.json, with the versions of what its environment has installed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.core import run_files
from harness.core.measuring.environment import environment
from harness.core.seals import sealed
from harness.core.serialization import write_json
from harness.core.spec import Site
from harness.node import workload
from harness.node.command import container_command

# A container's image may have to be fetched first.
ASK_SECONDS = 120.0
DISTRIBUTIONS = (
    *("torch", "torchvision", "tensorflow", "keras", "jax", "jaxlib", "mxnet", "numpy", "horovod", "mpi4py"),
    *("lightning", "pytorch-lightning", "transformers", "accelerate", "deepspeed", "megatron-core", "torchtitan"),
)
# Imports none of them.
ASK = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps([platform.python_version(), sys.executable, found]))
"""


def write(site: Site, attempt_dir: Path, cwd: str | None, environ: Mapping[str, str]) -> None:
    """Write env.json. cwd, environ: of the process that trains. Of a program, the interpreter is unknown."""
    python, interpreter, versions = (site.python and _asked(site, cwd, environ)) or (None, site.python or None, {})
    document = environment(site.code_version, python, interpreter, versions, environ)
    write_json(attempt_dir / run_files.ENVIRONMENT, sealed(document))


def _asked(site: Site, cwd: str | None, environ: Mapping[str, str]) -> tuple[str, str, dict[str, str]] | None:
    """Ask the interpreter; None if it does not answer."""
    argv = [site.python, "-c", ASK, *DISTRIBUTIONS]
    if site.container:
        argv = container_command(site, os.environ, workload.IN_CONTAINER, argv)
    variables = {name: value for name, value in environ.items() if name != workload.PROBE_VARIABLE}
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_SECONDS
        )
        python, interpreter, versions = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    return python, interpreter, versions
