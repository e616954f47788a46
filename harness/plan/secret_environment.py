"""Variables of `cluster.env` that look secret: passed on to the job in the environment, and never written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from harness.config.schema import Cluster
from harness.core.errors import UserError

NAME = re.compile(
    r"[A-Z0-9_]*(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(API|ACCESS|AUTH|LICENSE|PRIVATE|SECRET)_?KEY)",
    re.IGNORECASE,
)
MASK = "***"


def take(clusters: Iterable[Cluster]) -> dict[str, str]:
    """Remove the secret variables from the clusters' `env`, and return them.

    Raises UserError if one has several values, or would not reach the job.
    """
    taken: dict[str, str] = {}
    for cluster in clusters:
        for name in [name for name in cluster.env if NAME.fullmatch(name)]:
            value = str(cluster.env.pop(name))
            if "\0" in value:
                raise UserError(f"cluster.env.{name}: an environment variable cannot contain NUL")
            if taken.setdefault(name, value) != value:
                raise UserError(f"cluster.env.{name} looks secret and cannot be swept: give it one value")
            _check_passed_on(name, cluster)
    return taken


def masked(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return a command line without the secret variables' values."""
    words = [re.sub(rf"^([+~]*cluster\.env\.{NAME.pattern}=).*", rf"\1{MASK}", w, flags=re.I | re.S) for w in argv]
    for value in values.values():
        # A shorter one would mask ordinary words.
        words = [word.replace(value, MASK) if len(value) > 3 else word for word in words]
    return words


def _check_passed_on(name: str, cluster: Cluster) -> None:
    given = str(cluster.sbatch_args.get("export") or os.environ.get("SBATCH_EXPORT") or "ALL")
    for argument in (f"--export={given}", *cluster.srun_args):
        if argument.startswith("--export=") and not argument.startswith("--export=ALL"):
            raise UserError(
                f"cluster.env.{name} looks secret, so it is passed in the environment, but {argument} hides it from "
                "the job; leave that out"
            )
