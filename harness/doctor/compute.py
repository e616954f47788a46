"""Computations of `python -m harness.doctor --probe`: tiny runs of the real worker, each testing one thing.

`write` puts the trials' specs into a folder and `run` executes those of one node. Jobs execute `python -m
harness.doctor.compute`: `<folder>` on the first node, `<folder> <trial>` on each node of a two-node trial. `results`
reads the outcomes. Each trial has its own deadline, and its outcome is written immediately.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.config.composition import compose
from harness.config.schema import Config, Framework, Precision, Strategy
from harness.core import events, gpu_types, run_files, spec
from harness.core.errors import UserError
from harness.core.rendezvous import Rendezvous, from_launcher, make_token
from harness.core.spec import EMULATED, Placement
from harness.core.system.ports import held_port
from harness.core.system.programs import NoAnswer
from harness.doctor.checks import MISSING, NOTE, OK, Check, nvidia_smi, other_choices, uses_cuda
from harness.node.command import rank_command, rank_environment
from harness.node.rank_supervisor import die_with_parent
from harness.plan import machine
from harness.plan.request import study_request
from harness.study import outcome

# Allows for a framework's first import from a busy shared file system, and for a compiler.
TRIAL_SECONDS = 180.0
POLL_SECONDS = 0.05
# Time for the peers of a failed rank to report.
PEER_SECONDS = 2.0
TRIALS, ATTEMPT, DONE = "trials.json", "attempt-1", "done.rank{}.json"
# Ranks of an allreduce on CPUs.
CPU_RANKS = 2
# Framework options that enable an optional compiler.
COMPILERS = ("compile", "jit_compile")
# Compiler caches. Each trial has its own: one killed at its deadline could leave a partial file that breaks later runs.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
SMALL = (
    *("cluster=local", "model=cnn_small", "dataset=synthetic", "strategy=plain", "measure=smoke", "batch=8"),
    *("measure.evaluate_samples=0", "measure.record=false", "measure.probe_steps=0", "measure.warmup_steps=2"),
)


@dataclass(frozen=True)
class Trial:
    """A tiny run that tests one thing."""

    name: str  # what it tests
    folder: str  # of its run, below the folder of the trials
    needed: bool  # whether the configuration requires it
    advice: str
    ranks: int = 1
    nodes: int = 1
    half: str | None = None  # half precision that it tests, for GPUs that support it
    refused: str = ""  # why it cannot run


def write(config: Config, config_dir: str | None, every: bool, ranks: int, nodes: int, folder: Path) -> list[Trial]:
    """Write the trials' specs and return the trials in order of execution.

    Args:
        config: the checked configuration.
        config_dir: the user's configuration folder.
        every: include every framework whose environment exists, not only the configured one.
        ranks: ranks of the allreduce on one node.
        nodes: 2 adds an allreduce over two nodes.
        folder: where to write.
    """
    trials: list[Trial] = []
    for framework, mine in _frameworks(config, config_dir, every):
        for trial, point in _trials(config, config_dir, framework, mine, ranks, nodes):
            try:
                (asked,) = study_request([point]).requests
            except UserError as error:  # usually an unsupported combination
                if trial.needed:
                    trials.append(replace(trial, refused=str(error)))
                continue
            run = asked.spec if trial.nodes == 1 else replace(asked.spec, placement=Placement(2, 1))
            trial = replace(trial, folder=str(len(trials)))
            (folder / trial.folder / ATTEMPT).mkdir(parents=True)
            make_token(folder / trial.folder / ATTEMPT)
            spec.write_run(folder / trial.folder, run, asked.site)
            trials.append(trial)
    spec.write_json(folder / TRIALS, [asdict(trial) for trial in trials])
    return trials


def here(config: Config, config_dir: str | None, every: bool) -> Iterator[Check]:
    """Run the trials on this machine and yield each result when it is known. Leaves no files."""
    results = Path(config.results).expanduser().absolute()
    made = [path for path in (results, *results.parents) if not path.exists()]
    folder = results / f".doctor-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True)
        ranks = len(machine.gpus()) if uses_cuda(config.cluster) else CPU_RANKS
        write(config, config_dir, every, max(1, ranks), 1, folder)
        for trial in run(folder):
            if check := outcome_of(folder, trial, "this machine"):
                yield check
    except OSError as error:
        how = "set results=<a folder that you can write>"
        yield Check("probe", "results folder", MISSING, f"{folder} cannot be written: {error.strerror}", how)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def run(folder: Path) -> Iterator[Trial]:
    """Run the trials of this node and yield each when it is done."""
    half = _half(gpus_here())
    for trial in _read(folder):
        if trial.refused:
            yield trial
        elif trial.nodes == 1 and (trial.half is None or half is None or trial.half == half):
            with held_port() as port:
                ranks = [
                    Rendezvous(rank, trial.ranks, rank, trial.ranks, "127.0.0.1", port) for rank in range(trial.ranks)
                ]
                run_ranks(folder / trial.folder, ranks, TRIAL_SECONDS)
            yield trial


def run_ranks(folder: Path, ranks: Sequence[Rendezvous], seconds: float) -> None:
    """Run ranks of a trial on this machine and write the outcome next to its spec."""
    of_run, site = spec.read_run(folder)
    attempt, began = folder / ATTEMPT, time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    caches = {name: str(folder / "cache") for name in CACHES}
    why = ""
    try:
        for rank in ranks:
            with open(attempt / run_files.stderr(rank.rank), "wb") as stderr:
                processes.append(
                    subprocess.Popen(
                        rank_command(site, folder, attempt),
                        env={**rank_environment(of_run, site, rank, os.environ), **caches},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=stderr,
                        start_new_session=True,
                        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
                    )
                )
        why = _wait(processes, ranks, attempt, began + seconds, seconds)
    except OSError as error:
        why = f"{site.python}: {error.strerror}"
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    result = {"why": why, "seconds": time.monotonic() - began, **_device(attempt, ranks[0].rank)}
    spec.write_json(folder / DONE.format(ranks[0].rank), result)


def results(folder: Path, where: str, group: str = "probe") -> Iterator[Check]:
    """Read the outcomes of the trials. where: the machine that ran them."""
    for trial in _read(folder):
        check = outcome_of(folder, trial, where, group)
        if check is not None:
            yield check


def outcome_of(folder: Path, trial: Trial, where: str, group: str = "probe") -> Check | None:
    """Read one trial's outcome. None if these GPUs lack its precision."""
    if trial.refused:
        found, _, advice = trial.refused.partition("; ")
        return Check(group, trial.name, MISSING, found, advice)
    answers = [_json(folder / trial.folder / DONE.format(number)) for number in range(trial.nodes)]
    known = [answer for answer in answers if answer]
    state = MISSING if trial.needed else NOTE
    if failed := next((answer for answer in known if answer["why"]), None):
        found, _, advice = failed["why"].partition("; ") if "; " in failed["why"] else (failed["why"], "", trial.advice)
        return Check(group, trial.name, state, f"on {where}: {found}", advice)
    if len(known) < trial.nodes:
        if trial.half and any((folder / each.folder / DONE.format(0)).exists() for each in _read(folder) if each.half):
            return None
        return Check(group, trial.name, state, f"on {where}: not reached before the job's end", "try again")
    seconds = max(answer["seconds"] for answer in known)
    found = f"on {known[0]['device'] or where}, {seconds:.0f} s including start-up"
    if fallback := known[0]["fallback"]:
        return Check(group, trial.name, NOTE, f"{found}; {fallback}")
    return Check(group, trial.name, OK, found)


def gpus_here() -> list[str]:
    """Names of this machine's GPUs."""
    try:
        return [re.sub(r"^GPU \d+: | \(UUID:.*\)", "", line) for line in nvidia_smi("-L")]
    except NoAnswer:
        return []


def _frameworks(config: Config, config_dir: str | None, every: bool) -> Iterator[tuple[Framework, bool]]:
    yield config.framework, True
    if every and not config.cluster.container.runtime:
        for _, other in other_choices("framework", config.framework.name, config_dir):
            if isinstance(other, Framework):
                yield other, False


def _trials(
    config: Config, config_dir: str | None, framework: Framework, mine: bool, ranks: int, nodes: int
) -> Iterator[tuple[Trial, Config]]:
    if framework.name == EMULATED:  # nothing to compute
        return
    (point,) = compose([*SMALL, f"framework={framework.name}"], False, "config", config_dir)
    plain = replace(
        point,
        framework=replace(point.framework, environment=framework.environment),
        cluster=config.cluster,
        results=config.results,
        precision=Precision.fp32,
    )
    name = framework.name
    on_gpu = "check the driver and the environment's build: docs/troubleshooting.md"
    yield Trial(f"{name}: convolution, fp32", "", mine, on_gpu), plain
    for half in (Precision.bf16, Precision.fp16):
        needed = mine and config.precision is half
        yield (
            Trial(f"{name}: convolution, {half.name}", "", needed, f"do not set precision={half.name}", half=half.name),
            replace(plain, precision=half),
        )
    for option in COMPILERS:
        if hasattr(plain.framework.options, option):
            needed = mine and bool(getattr(config.framework.options, option))
            compiled = replace(plain.framework, options=replace(plain.framework.options, **{option: True}))
            how = f"keep framework.options.{option}=false"
            yield Trial(f"{name}: {option}=true", "", needed, how), replace(plain, framework=compiled)
    how = "cluster.env.NCCL_DEBUG=INFO shows what NCCL tries; docs/troubleshooting.md"
    (over,) = compose([*SMALL, f"framework={name}", "strategy=allreduce"], False, "config", config_dir)
    exchanging = replace(plain, strategy=Strategy(name="allreduce", options=over.strategy.options))
    needed = mine and config.gpus > 1
    ranked = f"{ranks} rank{'s' * (ranks > 1)}"
    yield Trial(f"{name}: allreduce, {ranked}", "", needed, how, ranks), replace(exchanging, gpus=ranks)
    if nodes == 2:
        of_two = replace(config.cluster, gpus_per_node=None)
        yield (
            Trial(f"{name}: allreduce, 2 nodes", "", needed, how, 2, 2),
            replace(exchanging, gpus=2, cluster=of_two),
        )


def _half(gpus: Sequence[str]) -> str | None:
    """The half precision of these GPUs' tensor cores; None if unknown or without GPUs."""
    found = [known for gpu in gpus if (known := gpu_types.capability(gpu))]
    return None if not found else ("bf16" if min(found) >= gpu_types.AMPERE else "fp16")


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    ranks: Sequence[Rendezvous],
    attempt: Path,
    deadline: float,
    seconds: float,
) -> str:
    """Wait until all ranks succeeded or one failed. Returns the reason, or '' on success."""
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if failed := [rank.rank for rank, code in zip(ranks, codes, strict=True) if code]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in processes:
                    process.wait(PEER_SECONDS / len(processes))
            return _last_error(attempt, failed[0])
        if all(code == 0 for code in codes):
            return ""
        time.sleep(POLL_SECONDS)
    return f"not finished within {seconds:.0f} s"


def _last_error(attempt: Path, rank: int) -> str:
    """The last error message of a rank, without Python's prefix."""
    lines = [line.strip() for line in outcome.stderr_tail(attempt, rank) if line.strip()]
    errors = [line for line in lines if re.match(r"(error:|[\w.]*(Error|Exception|Exit)\b)", line)]
    last = (errors or lines or ["it ended without output"])[-1]
    return re.sub(r"^error: ", "", last)


def _device(attempt: Path, rank: int) -> dict[str, Any]:
    """The device that was used, and any fallback."""
    file = attempt / run_files.events(rank)
    log = events.read_events(file).events if file.exists() else []
    start = next((event for event in log if event["ev"] == "start"), {})
    fallback = next((event["what"] for event in log if event["ev"] == "fallback"), None)
    kind = "the CPU" if start.get("device") == "cpu" else start.get("device_name")
    return {"device": kind, "fallback": fallback}


def _read(folder: Path) -> list[Trial]:
    return [Trial(**fields) for fields in json.loads((folder / TRIALS).read_text(encoding="utf-8"))]


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def main(folder: Path, trial: str | None, say: Callable[[str], None] = print) -> None:
    if trial is None:
        for done in run(folder):
            say(done.name)
    else:
        run_ranks(folder / trial, [from_launcher(os.environ)], TRIAL_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
