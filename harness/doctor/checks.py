"""Checks of this machine and of the data sets, without a scheduler or a framework."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.config.composition import CONF, compose
from harness.config.schema import Cluster, Config, Dataset, Device, Scheduler
from harness.core.data_location import SYNTHETIC, DataError, locate
from harness.core.errors import UserError
from harness.core.system import programs
from harness.core.system.programs import NoAnswer
from harness.plan import machine
from harness.plan.request import PROJECT

OK, MISSING, NOTE = "ok", "missing", "note"
OLDEST_PYTHON = (3, 11)
PACKAGES = ("hydra-core", "submitit", "rich", "pandas")
SMI_SECONDS = 30
# A small study with its checkpoints fits in this.
MIN_FREE_BYTES = 2**30


@dataclass(frozen=True)
class Check:
    """One line of the doctor's output.

    state: OK, MISSING (required by the configuration) or NOTE (informative, or required by another configuration).
    advice: what to do; empty if there is nothing to do.
    """

    group: str
    name: str
    state: str
    found: str
    advice: str = ""


def here(config: Config) -> Iterator[Check]:
    """Check this machine and the harness's own environment."""
    old = sys.version_info < OLDEST_PYTHON
    needs = f"use a Python of at least {'.'.join(map(str, OLDEST_PYTHON))}: `make login` builds .venv with one"
    version = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    yield Check("here", "Python", MISSING if old else OK, version, needs if old else "")
    for package in PACKAGES:
        try:
            yield Check("here", package, OK, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Check("here", package, MISSING, f"not in {sys.executable}", "`make login` builds .venv with it")
    code = machine.code_version(PROJECT)
    if code == "unknown":
        yield Check(
            "here", "code version", NOTE, "unknown: not a git checkout; results cannot name the code that produced them"
        )
    elif code.endswith("-dirty"):
        yield Check(
            "here",
            "code version",
            NOTE,
            f"{code}: tracked files are modified",
            "commit them to make results reproducible",
        )
    else:
        yield Check("here", "code version", OK, code)
    yield _results(Path(config.results).expanduser().absolute())
    yield _gpus(config.cluster)


def datasets(config: Config, config_dir: str | None) -> Iterator[Check]:
    """Check the configured data set, then every other one in conf/."""
    mine = _dataset(config.dataset, config.data.root)
    if mine.state == MISSING and not config.data.check:
        advice = "with data.check=false only the nodes need it: --probe checks there; " + mine.advice
        mine = replace(mine, state=NOTE, advice=advice)
    yield mine
    for name, other in other_choices("dataset", config.dataset.name, config_dir):
        if isinstance(other, Dataset):
            check = _dataset(other, config.data.root)
            # For other data sets, the list of all folders searched would be too long.
            brief = f"not found under {config.data.root}" if check.state == MISSING else check.found
            yield replace(as_note(check), found=brief)
        else:
            yield Check("data sets", name, NOTE, str(other))


def uses_cuda(cluster: Cluster) -> bool:
    """Return whether runs use GPUs; `auto` is resolved on this machine."""
    return cluster.device is Device.cuda or (cluster.device is Device.auto and bool(machine.gpus()))


def nvidia_smi(*argv: str) -> list[str]:
    """Run nvidia-smi and return its lines. Raises NoAnswer with its message if there is no driver."""
    done = programs.run("nvidia-smi", *argv, seconds=SMI_SECONDS)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        raise NoAnswer("; ".join([*lines, *done.stderr.splitlines()]) or "nvidia-smi lists no GPU")
    return lines


def counted(names: Sequence[str]) -> str:
    """Count duplicates: ['A', 'A', 'B'] -> '2 x A, B'."""
    return ", ".join(f"{number} x {name}" if number > 1 else name for name, number in Counter(names).items())


def only_in_jobs(cluster: Cluster) -> bool:
    """Return whether jobs load modules or run setup lines first, so that something missing here may exist there."""
    return cluster.scheduler is not Scheduler.local and bool(cluster.modules or cluster.setup)


def _results(folder: Path) -> Check:
    """Check that a file can be created and locked where results will be written."""
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".doctor-") as file:
            free = shutil.disk_usage(existing).free
            found = f"{folder} can be written, {free / 2**30:.1f} GiB free"
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                advice = "run one command per study at a time"
                return Check("here", "results folder", NOTE, f"{found}; no file locks ({error.strerror})", advice)
    except OSError as error:
        advice = "set results=<a folder that you can write and the nodes see>"
        return Check("here", "results folder", MISSING, f"{folder} cannot be written: {error.strerror}", advice)
    if free < MIN_FREE_BYTES:
        return Check(
            "here", "results folder", NOTE, f"{found}, which is little", "set results=<a folder with more space>"
        )
    return Check("here", "results folder", OK, f"{found}, file locks work")


def _gpus(cluster: Cluster) -> Check:
    try:
        listed = nvidia_smi("--query-gpu=name,driver_version", "--format=csv,noheader")
        return Check("here", "GPUs", OK, counted([line.replace(", ", ", driver ", 1) for line in listed]))
    except NoAnswer as error:
        reason = str(error)
    if cluster.scheduler is not Scheduler.local:
        return Check("here", "GPUs", OK, f"none here ({reason}); jobs use those of the nodes")
    if cluster.device is Device.cuda:
        return Check("here", "GPUs", MISSING, f"none ({reason})", "set cluster.device=cpu, or use a machine with GPUs")
    return Check("here", "GPUs", OK, f"none ({reason}): runs compute on {machine.cores()} cores")


def _dataset(dataset: Dataset, root: str) -> Check:
    if dataset.reader == SYNTHETIC:
        return Check("data sets", dataset.name, OK, "generated from the seed, needs no files")
    try:
        folder = locate(dataset.name, dataset.reader, str(Path(root).expanduser().absolute()))
    except DataError as error:
        found, _, how = str(error).removeprefix(f"data set '{dataset.name}' was ").partition(". To get it: ")
        return Check("data sets", dataset.name, MISSING, found, f"{how}; or set data.root" if how else "")
    return Check("data sets", dataset.name, OK, str(folder))


def other_choices(group: str, configured: str, config_dir: str | None) -> Iterator[tuple[str, Any]]:
    """Compose every other choice of a config group; yields its name and the config, or the UserError."""
    folders = [CONF, *([Path(config_dir)] if config_dir else [])]
    for choice in sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")}):
        if choice == configured:
            continue
        try:
            composed = getattr(compose([f"{group}={choice}", "cluster=local"], False, "config", config_dir)[0], group)
        except UserError as error:
            yield choice, error
            continue
        if composed.name != configured:
            yield choice, composed


def as_note(check: Check) -> Check:
    state = NOTE if check.state == MISSING else check.state
    return replace(check, state=state)
