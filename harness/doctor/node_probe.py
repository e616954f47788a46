"""`python -m harness.doctor --probe` with Slurm: submits one tiny job for one or two whole nodes and reports on them.

Both halves communicate through files in a folder next to the results, which also shows whether the nodes share it:
`probe` submits and reads, and the job runs `python -m harness.doctor.node_probe <folder>`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.config.schema import Config
from harness.core import spec
from harness.core.data_location import DataError, locate
from harness.core.errors import UserError
from harness.core.launchers import NODE
from harness.core.placement import place
from harness.core.system.programs import NoAnswer
from harness.doctor import compute
from harness.doctor.checks import MISSING, NOTE, OK, Check, counted, nvidia_smi, uses_cuda
from harness.doctor.compute import Trial
from harness.doctor.frameworks import Silent, ask, judged
from harness.doctor.slurm_checks import whole_nodes
from harness.launch.options import advice, trial_options
from harness.plan import environments, site_resources
from harness.plan.plan import Resources
from harness.plan.request import PROJECT
from harness.slurm.client import Client, Job, SlurmRefused, SlurmUnavailable

# Wall limit of the job, and of one that tries every framework. Each trial takes seconds unless a file system, import or
# compiler hangs.
JOB_MINUTES, EVERY_MINUTES = 15, 45
# Waiting time for the job to start, and for it to end after its wall limit.
WAIT_MINUTES, MARGIN_MINUTES = 10, 2
QUEUE_SECONDS = 3.0
POLL_SECONDS = 0.2
# Delay for a job's last file to become visible on a shared file system.
FILE_SECONDS = 15.0
FRAMEWORK_SECONDS = 60.0
# How long the node waits for this side's timestamp.
CLOCK_SECONDS = 20.0
# A larger difference would reorder the events of two nodes.
MAX_CLOCK_DIFFERENCE_SECONDS = 1.0
WAITING = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")
NOT_SHARED = 77
PING, PONG, QUESTION, ANSWER, RANKS, STDERR = "ping", "pong", "question.json", "answer.json", "ranks", "stderr"
ENDED = "ended"

# No `cd`: lines of cluster.setup may read files relative to the working directory, as in a run.
SCRIPT = """#!/bin/bash
[ -d {folder} ] || exit {not_shared}
exec 2>{folder}/{stderr}
{setup}
PYTHONPATH={project}${{PYTHONPATH:+:$PYTHONPATH}} {python} -m harness.doctor.node_probe {folder}
srun --kill-on-bad-exit=1 --cpus-per-task={cpus} {srun_args} hostname >{folder}/{ranks}
PYTHONPATH={project}${{PYTHONPATH:+:$PYTHONPATH}} {python} -m harness.doctor.compute {folder} >/dev/null
{over_two}
touch {folder}/{ended}
"""
# A two-node trial: one task per node, which starts that node's rank.
OVER_TWO = (
    "PYTHONPATH={project}${{PYTHONPATH:+:$PYTHONPATH}} srun --nodes=2 --ntasks=2 --ntasks-per-node=1 "
    "--cpus-per-task={cpus} {srun_args} {python} -m harness.doctor.compute {folder} {trial}"
)


def probe(config: Config, config_dir: str | None, every: bool, say: Callable[[str], None]) -> Iterator[Check]:
    """Submit the job, wait for it and report its findings. Always cleans up the job and its files.

    every: test every framework whose environment exists, not only the configured one.
    """
    results = Path(config.results).expanduser().absolute()
    nodes = min(2, place(config.gpus, config.cluster.gpus_per_node).nodes)
    asked = replace(whole_nodes(config, nodes), timeout_minutes=EVERY_MINUTES if every else JOB_MINUTES)
    token = secrets.token_hex(8)
    name = f"harness-doctor-{token}"
    folder = results / f".doctor-{token}"
    made = [path for path in (results, *results.parents) if not path.exists()]
    client = Client()
    ended = False
    try:
        folder.mkdir(parents=True)
        spec.write_json(folder / QUESTION, _question(config, results))
        trials = compute.write(config, config_dir, every, asked.placement.ranks_per_node, nodes, folder)
        options = (f"--job-name={name}", "--output=/dev/null", "--no-requeue", *trial_options(asked))
        try:
            job_id = client.submit(_script(asked, folder, trials), options)
        except SlurmRefused as refusal:
            ended = True
            yield _check("job", MISSING, f"Slurm refused it: {refusal}", advice(str(refusal)))
            return
        job = _wait(client, job_id, folder, asked.timeout_minutes, say)
        ended = job.state not in WAITING
        yield from _findings(job_id, job, folder, config, asked)
    except OSError as error:
        how = "set results=<a folder that you can write and the nodes see>"
        yield _check("results folder", MISSING, f"{folder} cannot be written: {error.strerror}", how)
    except SlurmUnavailable as error:
        yield _check("job", MISSING, f"Slurm does not answer: {error}", "try again later")
    finally:
        if not ended:
            # By name: it may have been submitted without its id having been received.
            with contextlib.suppress(SlurmUnavailable):
                client.cancel_named(name)
        shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def on_node(folder: Path) -> None:
    """Run the job's half. Each answer is written at once, so that a hanging check does not hide the others."""
    question = json.loads((folder / QUESTION).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"host": socket.gethostname()}
    spec.write_json(folder / ANSWER, answer)
    try:
        answer["smi"] = [re.sub(r" \(UUID:.*\)", "", line) for line in nvidia_smi("-L")]
        answer["driver"] = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")[0]
    except NoAnswer as error:
        answer["no_smi"] = str(error)
    try:
        data = question["data"]
        answer["data"] = str(locate(data["name"], data["reader"], data["root"]) or "generated from the seed")
    except DataError as error:
        answer["no_data"] = str(error)
    spec.write_json(folder / ANSWER, answer)
    if question["command"]:
        try:
            node = f"--nodelist={os.environ.get('SLURMD_NODENAME', '')}"
            command = [node if word == NODE else word for word in question["command"]]
            answer["framework"] = ask(question["framework"], command, question["variables"], FRAMEWORK_SECONDS)
        except Silent as silent:
            answer["no_framework"] = str(silent)
        spec.write_json(folder / ANSWER, answer)
    answer["clock"] = _clock(folder)
    spec.write_json(folder / ANSWER, answer)


def _clock(folder: Path) -> list[float] | None:
    """Measure [lead of the other side's clock, uncertainty] in seconds; None if it did not answer."""
    asked = time.time()
    (folder / PING).touch()
    while time.time() < asked + CLOCK_SECONDS:
        # Listing the folder avoids the negative caching of shared file systems.
        if PONG in os.listdir(folder):
            theirs, now = float((folder / PONG).read_text()), time.time()
            return [theirs - (asked + now) / 2, (now - asked) / 2]
        time.sleep(POLL_SECONDS)
    return None


def _question(config: Config, results: Path) -> dict[str, Any]:
    """Build the node's instructions. command: the framework's Python; for a container, with its command prefix."""
    framework, container = config.framework, config.cluster.container
    data = {
        "name": config.dataset.name,
        "reader": config.dataset.reader,
        "root": str(Path(config.data.root).expanduser().absolute()),
    }
    command: list[str] | None
    if container.runtime:
        # An image sets variables of its own, so these are exported again inside the container.
        exports = {**config.cluster.env, "PYTHONPATH": str(PROJECT)}.items()
        again = "; ".join(f"export {name}={shlex.quote(str(value))}" for name, value in exports)
        prefix = site_resources.container(container, str(PROJECT), (str(results), data["root"]))
        command = [*prefix, "sh", "-c", f'{again}; exec "$@"', "sh", framework.environment]
    else:
        try:
            modules = config.cluster.modules
            command = [str(environments.interpreter(framework.name, framework.environment, PROJECT, modules))]
        except UserError:
            command = None  # reported by the check of this machine
    return {
        "framework": framework.name,
        "command": command,
        "variables": config.cluster.env,
        "data": data,
    }


def _script(asked: Resources, folder: Path, trials: Sequence[Trial]) -> str:
    same = {
        "folder": shlex.quote(str(folder)),
        "project": shlex.quote(str(PROJECT)),
        # The harness's own Python, which submitit starts on the node.
        "python": shlex.quote(sys.executable),
        "cpus": asked.cpus_per_gpu,
        "srun_args": shlex.join(site_resources.srun_args(asked.mpi, asked.srun_args)),
    }
    over_two = "\n".join(OVER_TWO.format(trial=trial.folder, **same) for trial in trials if trial.nodes == 2)
    setup = "\n".join(site_resources.setup_lines(asked))
    fixed = {"not_shared": NOT_SHARED, "stderr": STDERR, "ranks": RANKS, "ended": ENDED}
    return SCRIPT.format(setup=setup, over_two=over_two, **same, **fixed)


def _wait(client: Client, job_id: str, folder: Path, limit_minutes: float, say: Callable[[str], None]) -> Job:
    """Wait until the job has ended, exceeded its wall limit, or failed to start within WAIT_MINUTES.

    Meanwhile answers the node's clock request. Returns the job's last known state.
    """
    deadline = time.monotonic() + 60 * WAIT_MINUTES
    job = Job("PENDING")
    asked_at, reported, running = float("-inf"), "", False
    while job.state in WAITING and time.monotonic() < deadline:
        if time.monotonic() > asked_at + QUEUE_SECONDS:
            asked_at = time.monotonic()
            with contextlib.suppress(SlurmUnavailable):
                job = _job(client, job_id)
            state = job.state if job.reason in (None, "None") else f"{job.state} {job.reason}"
            if job.state in WAITING and state != reported:
                reported = state
                limit = f"up to {limit_minutes:g} min" if running else f"up to {WAIT_MINUTES} min for its start"
                say(f"probe: job {job_id} is {state}; waiting {limit}, Ctrl-C cancels it")
        if job.state == "RUNNING" and not running:
            running, deadline = True, time.monotonic() + 60 * (limit_minutes + MARGIN_MINUTES)
        if running and PING in os.listdir(folder) and not (folder / PONG).exists():
            (folder / "pong.new").write_text(repr(time.time()))
            (folder / "pong.new").rename(folder / PONG)
        time.sleep(POLL_SECONDS)
    return job


def _job(client: Client, job_id: str) -> Job:
    """Look up the job, in the accounting once the controller has forgotten it. Raises SlurmUnavailable."""
    if known := client.job(job_id):
        return known
    return Job(client.accounting([job_id]).get(job_id, "UNKNOWN").split(" ")[0])


def _findings(job_id: str, job: Job, folder: Path, config: Config, asked: Resources) -> Iterator[Check]:
    state = job.state
    if state in WAITING:
        late = f"end within {asked.timeout_minutes:g} min" if state == "RUNNING" else f"start within {WAIT_MINUTES} min"
        what = f"job {job_id} did not {late}: {state} {job.reason or ''}; it is cancelled"
        yield _check("job", MISSING, what, "try again when the queue is shorter, or use a partition for short jobs")
        return
    if (job.exit_code or "").startswith(f"{NOT_SHARED}:"):
        yield _not_shared(folder.parent, f"node {job.batch_host or ''} does not see {folder.parent}")
        return
    answer = _answer(folder, state == "COMPLETED")
    host = str(answer.get("host", job.batch_host or "a node"))
    if state == "COMPLETED":
        yield _check("job", OK, f"job {job_id} ran on {host}{_queue_time(job)}")
    else:
        ended = f"job {job_id} on {host} ended as {state} ({job.reason or ''}, exit code {job.exit_code})"
        yield _check("job", MISSING, f"{ended}: {_stderr(folder)}", "fix what it reports and run the command again")
    if not (folder / STDERR).exists():
        if state == "COMPLETED":
            yield _not_shared(
                folder.parent, f"job {job_id} wrote into {folder.parent} on {host}, but nothing is visible here"
            )
        return
    yield _check("results folder", OK, f"{host} and this machine read each other's files")
    if answer:
        yield _check("harness", OK, f"{sys.executable} starts on {host}")
    elif state == "COMPLETED":
        found = f"{sys.executable} does not start on {host}: {_stderr(folder)}"
        yield _check("harness", MISSING, found, "build .venv (`make login`) in a folder that the nodes see")
    if (folder / RANKS).exists():
        yield _srun(folder, host, asked)
    if "smi" in answer or "no_smi" in answer:
        yield _gpus(answer, host, config)
    if "framework" in answer:
        cuda, gpus = uses_cuda(config.cluster), asked.placement.ranks_per_node
        pipeline = config.data.pipeline.value
        listed, strategy = answer.get("smi") or [], config.strategy.name
        gpu = re.sub(r"^GPU \d+: ", "", listed[0]) if listed else config.cluster.gpu_type
        of_node = (pipeline, gpu, answer.get("driver"))
        yield judged("probe", answer["framework"], config.framework, strategy, cuda, gpus, *of_node)
    elif "no_framework" in answer:
        how = "build it in a folder that the nodes see, or correct cluster.modules and cluster.setup"
        yield _check(config.framework.name, MISSING, f"on {host}: {answer['no_framework']}", how)
    if "data" in answer:
        yield _check(f"data set {config.dataset.name}", OK, f"on {host}: {answer['data']}")
    elif "no_data" in answer:
        found, _, how = answer["no_data"].partition(". To get it: ")
        yield _check(f"data set {config.dataset.name}", MISSING, f"on {host}: {found}", f"{how}; or set data.root")
    if "clock" in answer:
        yield _clocks(answer["clock"], host)
    if answer:
        _wait_for_file(folder / ENDED, state == "COMPLETED")
        yield from compute.results(folder, host)


def _answer(folder: Path, wait: bool) -> dict[str, Any]:
    """Read the node's answers; empty if they are not visible here."""
    deadline = time.monotonic() + (FILE_SECONDS if wait else 0)
    while True:
        try:
            answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
            if "clock" in answer or time.monotonic() > deadline:
                return dict(answer)
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                return {}
        time.sleep(POLL_SECONDS)


def _wait_for_file(file: Path, wait: bool) -> None:
    """Wait for the job's last file to become visible on a shared file system."""
    deadline = time.monotonic() + (FILE_SECONDS if wait else 0)
    while file.name not in os.listdir(file.parent) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _srun(folder: Path, host: str, asked: Resources) -> Check:
    started = (folder / RANKS).read_text(encoding="utf-8").split()
    ranks = asked.placement.nodes * asked.placement.ranks_per_node
    found = f"srun started {len(started)} of {ranks} ranks on {host}"
    if len(started) == ranks:
        return _check("ranks", OK, found)
    return _check("ranks", MISSING, f"{found}: {_stderr(folder)}", "correct cluster.srun_args, or ask the site")


def _gpus(answer: dict[str, Any], host: str, config: Config) -> Check:
    if listed := answer.get("smi"):
        found = counted([re.sub(r"^GPU \d+: ", "", line) for line in listed])
        return _check("GPUs", OK, f"{host} has {found}, driver {answer.get('driver', 'unknown')}")
    found = f"{host} lists none ({answer['no_smi']})"
    if uses_cuda(config.cluster):
        how = "set cluster.gres and cluster.partition to nodes with GPUs, or set cluster.device=cpu"
        return _check("GPUs", MISSING, found, how)
    return _check("GPUs", OK, f"{found}; none needed with cluster.device=cpu")


def _clocks(clock: list[float] | None, host: str) -> Check:
    if clock is None:
        return _check("clock", NOTE, f"not compared: files take more than {CLOCK_SECONDS:.0f} s to appear on {host}")
    ahead, give_or_take = clock
    found = f"{host} and this machine agree, to within {abs(ahead) + give_or_take:.1f} s"
    if abs(ahead) > MAX_CLOCK_DIFFERENCE_SECONDS + give_or_take:
        found = f"{host} is {abs(ahead):.1f} s {'behind' if ahead > 0 else 'ahead of'} this machine's"
        return _check(
            "clock", NOTE, found, "ask the site to synchronise the clocks; times of two nodes cannot be compared"
        )
    return _check("clock", OK, found)


def _queue_time(job: Job) -> str:
    try:
        submitted, started = (datetime.fromisoformat(text or "") for text in (job.submit_time, job.start_time))
    except ValueError:
        return ""
    return f" after {(started - submitted).total_seconds():.0f} s in the queue"


def _stderr(folder: Path) -> str:
    """The last lines of the job's stderr."""
    try:
        lines = (folder / STDERR).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "no output"
    return "; ".join([line.strip() for line in lines if line.strip()][-3:]) or "no output"


def _not_shared(results: Path, found: str) -> Check:
    return _check(
        "results folder", MISSING, found, f"{results} is not shared: set results=<a folder that the nodes see>"
    )


def _check(name: str, state: str, found: str, how: str = "") -> Check:
    return Check("probe", name, state, found, how)


if __name__ == "__main__":
    on_node(Path(sys.argv[1]))
