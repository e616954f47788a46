"""Secrets of a command: they are passed on to the job in the environment, and never written.

Variables of `cluster.env` whose names look secret, those that `cluster.secret_env` lists, and what looks secret in the
command of the user's own training and in its parameters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from harness.config.schema import Cluster
from harness.config.workload_schema import Workload
from harness.core.errors import UserError
from harness.core.system.secret_names import (
    FEWEST_CHARACTERS,
    MASK,
    NAME,
    PLACEHOLDER,
    is_of_command,
    looks_secret,
    masked_words,
    parameter_variable,
    word_variable,
)
from harness.core.workload import templates


def take(clusters: Iterable[Cluster]) -> dict[str, str]:
    """Remove the secret variables from the clusters' `env`, and return them.

    Raises UserError if one has several values, or would not reach the job.
    """
    taken: dict[str, str] = {}
    for cluster in clusters:
        listed = _listed(cluster)
        for name in dict.fromkeys([*(name for name in cluster.env if NAME.fullmatch(name)), *listed]):
            value = str(cluster.env.pop(name)) if name in cluster.env else listed[name]
            if "\0" in value:
                raise UserError(f"cluster.env.{name}: an environment variable cannot contain NUL")
            if taken.setdefault(name, value) != value:
                raise UserError(f"cluster.env.{name} looks secret and cannot be swept: give it one value")
            _check_passed_on(f"cluster.env.{name}", cluster)
    return taken


def take_from_commands(points: Iterable[tuple[Workload, Cluster]]) -> dict[str, str]:
    """Replace what looks secret in the commands and parameters, and return the variables that have the values.

    Raises UserError if one has several values, or would not reach the job.
    """
    taken: dict[str, str] = {}
    for workload, cluster in {id(workload): (workload, cluster) for workload, cluster in points}.values():
        found: dict[str, str] = {}
        texts = [*workload.command, *workload.resume_args]
        if any(PLACEHOLDER.fullmatch(name) for text in texts for name in templates.placeholders(text)):
            raise UserError("the command has {secret_1}: placeholders of this name are for what looks secret in it")

        def replaced(value: str, found: dict[str, str] = found) -> str:
            found[word_variable(len(found) + 1)] = value.replace("{{", "{").replace("}}", "}")
            return f"{{secret_{len(found)}}}"

        workload.command = masked_words(list(workload.command), replaced, workload.shell)
        workload.resume_args = masked_words(list(workload.resume_args), replaced, workload.shell)
        secret = [name for name in workload.params if looks_secret(name) and isinstance(workload.params[name], str)]
        found.update({parameter_variable(name): workload.params[name] for name in secret})
        workload.params = {**workload.params, **dict.fromkeys(secret, MASK)}
        for name, value in found.items():
            if taken.setdefault(name, value) != value:
                raise UserError("what looks secret in the command or its parameters cannot be swept: give one value")
        if found:
            _check_passed_on("what is in the command or its parameters", cluster)
    return taken


def masked(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return a command line without the secret variables' values."""
    words = [re.sub(rf"^([+~]*cluster\.env\.{NAME.pattern}=).*", rf"\1{MASK}", w, flags=re.I | re.S) for w in argv]
    for name, value in values.items():
        if len(value) >= FEWEST_CHARACTERS:
            words = [word.replace(value, MASK) for word in words]
        elif value:  # elsewhere, it would mask ordinary words
            named = re.compile(rf"(\b{re.escape(name)}['\"]?\s*[:=]\s*['\"]?){re.escape(value)}(?!\w)")
            words = [named.sub(rf"\1{MASK}", word) for word in words]
    if "--" in words:
        at = words.index("--")
        words[at:] = masked_words(words[at:], lambda _: MASK)
    return words


def notes(values: Mapping[str, str]) -> list[str]:
    """Return remarks about the secrets for the user, one sentence each."""
    short = [name for name, value in values.items() if 0 < len(value) < FEWEST_CHARACTERS]
    named = ", ".join(name for name in short if not is_of_command(name)) or "a secret of the command"
    return [f"{named}: fewer than {FEWEST_CHARACTERS} characters, not masked in the runs' output"] if short else []


def _listed(cluster: Cluster) -> dict[str, str]:
    """Return the variables of `cluster.secret_env` with their values, of this environment if `cluster.env` has none."""
    found = {}
    for name in cluster.secret_env:
        value = cluster.env.get(name, os.environ.get(name))
        if value is None:
            raise UserError(
                f"cluster.secret_env lists {name}, which neither cluster.env nor the environment has; set it there"
            )
        found[name] = str(value)
    return found


def _check_passed_on(what: str, cluster: Cluster) -> None:
    given = str(cluster.sbatch_args.get("export") or os.environ.get("SBATCH_EXPORT") or "ALL")
    for argument in (f"--export={given}", *cluster.srun_args):
        if argument.startswith("--export=") and not argument.startswith("--export=ALL"):
            raise UserError(
                f"{what} looks secret, so it is passed in the environment, but {argument} hides it from "
                "the job; leave that out"
            )
