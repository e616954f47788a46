"""Reads the environment of an attempt from its env.json: every leaf whose difference between runs means something.

Excluded is what always differs: the file's version, ids of jobs, processes and ports, and names of machines and GPUs.
Machine names are kept separately (`Environment.hosts`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from analysis.base.text import printable
from analysis.read.log.file import LARGEST_DOCUMENT_BYTES, open_file
from harness.core.seals import CRC, is_intact

MOST_LEAVES = 500
LONGEST_VALUE = 300  # characters
# Names and values whose form is kept, since the runs of a study share nearly all of them.
MOST_KEPT = 4096
VERSION = "version of "
OWN = ("v", "host", "t", CRC)
# Variables of the scheduler and Open MPI that contain ids of jobs, processes or ports, or names of machines.
_OWN_VARIABLE = re.compile(
    r"(JOB_?ID|JOB_NAME|TASK_ID|PID|PORT|URI|ADDR(ESS)?|COMM_ID|HOST(NAME|S)?|NODENAME|NODELIST|TRANSPORTS)$",
    re.IGNORECASE,
)
_JOBS = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID")
_NODES = ("SLURM_JOB_NODELIST", "SLURMD_NODENAME")
# UUID of a GPU or MIG device as the NVIDIA driver prints it.
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


class Environment(NamedTuple):
    """leaves: printable text by dotted name. hosts: rank 0's machine, and those of its job if recorded."""

    leaves: Mapping[str, str]
    hosts: str | None

    @property
    def digest(self) -> str:
        """Hash of the leaves: equal for runs in equal environments, as far as recorded."""
        return hashlib.sha256(json.dumps(self.leaves, sort_keys=True).encode()).hexdigest()[:16]


def read_environment(path: Path) -> Environment | None:
    """Return None if the file cannot be read or is not a JSON object; no figure depends on it."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST_DOCUMENT_BYTES:
                return None
            document = json.loads(file.read())
        if not isinstance(document, dict) or not document or not is_intact(document):
            return None
        return Environment(_compared(document, path), _hosts(document))
    except (OSError, ValueError, RecursionError):
        return None


def _compared(document: Mapping[str, Any], path: Path) -> dict[str, str]:
    attempt, run = path.parent.name, path.parent.parent.name
    found: dict[str, str] = {}
    rest, n_rest = hashlib.sha256(), 0
    for name, value in _leaves(document):
        if _is_own(name):
            continue
        if run in value:
            value = value.replace(f"{run}/{attempt}", "<run>").replace(run, "<run>")
        if name == "interpreter":
            value = _without_job(value, document)
        if len(found) < MOST_LEAVES:
            found[_shown(name)] = _short(value)
        else:
            n_rest += 1
            rest.update(f"{name}={value}\n".encode("utf-8", "replace"))
    if n_rest:
        found["further values"] = f"{n_rest:,}, sha256 {rest.hexdigest()[:16]}"
    return found


@lru_cache(maxsize=MOST_KEPT)
def _is_own(name: str) -> bool:
    return name in OWN or (name.startswith("variables.") and _OWN_VARIABLE.search(name) is not None)


@lru_cache(maxsize=MOST_KEPT)
def _shown(name: str) -> str:
    """Return the name of a leaf in the report; the runs' rows use the same for versions."""
    return printable(f"{VERSION}{name.removeprefix('versions.')}" if name.startswith("versions.") else name)


def _without_job(interpreter: str, document: Mapping[str, Any]) -> str:
    """Replace names of job and node in the path of an interpreter, since staged environments are in such folders."""
    variables = _variables(document)
    places = [str(document.get("host")), *(variables.get(name, "") for name in (*_JOBS, *_NODES))]
    for place in places:
        if place and place in interpreter:
            interpreter = re.sub(rf"(?<![A-Za-z0-9]){re.escape(place)}(?![A-Za-z0-9])", "<job>", interpreter)
    return interpreter


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, text): strings as they are, other values as JSON; nothing for an empty list or object."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _short(value: str) -> str:
    """Replace UUIDs and what cannot be printed, and shorten a long value; results are equal only for equal values."""
    if len(value) <= LONGEST_VALUE:
        return _printable(value)
    value = _printable.__wrapped__(value)
    if len(value) <= LONGEST_VALUE:
        return value
    digest = hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{value[: LONGEST_VALUE - 60]}… ({len(value):,} characters, sha256 {digest})"


@lru_cache(maxsize=MOST_KEPT)
def _printable(value: str) -> str:
    return printable(_UUID.sub(r"\1-<uuid>", value))


def _hosts(document: Mapping[str, Any]) -> str | None:
    host, nodes = document.get("host"), _variables(document).get(_NODES[0])
    if not isinstance(host, str) or not host:
        return None
    return _short(host if nodes in (None, host) else f"{host}, of {nodes}")


def _variables(document: Mapping[str, Any]) -> Mapping[str, str]:
    variables = document.get("variables")
    return {k: v for k, v in variables.items() if isinstance(v, str)} if isinstance(variables, dict) else {}
