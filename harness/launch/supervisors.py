"""Starts the watchers of a run's ranks by one command, srun or mpirun, and stays with it to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core import run_files, spec
from harness.core.environment_variables import MASTER_PORT, RESTARTS_HERE
from harness.core.launchers import MPIRUN
from harness.launch import daemon
from harness.node.rank_supervisor import die_with_parent
from harness.plan import mpi, site_resources

# Variables of Open MPI 4 (OMPI_MCA_) and 5 (PRTE_MCA_), each of which passes over the other's.
MPIRUN_VARIABLES = {
    # A watcher that fails has said why, and the others are to come to their own ends.
    "OMPI_MCA_orte_abort_on_non_zero_status": "0",
    "OMPI_MCA_orte_allowed_exit_without_sync": "1",
    "PRTE_MCA_state_base_error_non_zero_exit": "0",
    "PRTE_MCA_prte_allowed_exit_without_sync": "1",
    # After an MPI_Abort, mpirun ends the watchers: by SIGTERM after so many seconds, by SIGKILL after as many again. By
    # then they have seen to it themselves (job.VANISHED_SECONDS).
    "OMPI_MCA_odls_base_sigkill_timeout": "15",
}
# Under Slurm, where mpirun starts a daemon on each node by srun.
DEAF = f"{sys.executable} -m {daemon.__name__}"
IN_A_STEP = {
    # Also on the first node: Slurm warns the processes of steps.
    "OMPI_MCA_ras_base_launch_orted_on_hn": "1",
    "PRTE_MCA_ras_base_launch_orted_on_hn": "1",
    "OMPI_MCA_orte_launch_agent": f"{DEAF} orted",
    "PRTE_MCA_prte_launch_agent": f"{DEAF} prted",
}
# The daemon, one task, is to have all cores of the job on its node.
NOT_FOR_DAEMONS = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK")
POLL_SECONDS = 0.1
TELL_SECONDS = 1.0
# Longer than a rank's watcher gives it to save and leave.
PATIENCE_SECONDS = 30.0


def run(
    run_dir: Path,
    attempt: int,
    token: str,
    starter: str | None,
    srun_args: Sequence[str],
    port: int,
    environ: Mapping[str, str],
) -> bool:
    """One attempt, to its end; False where srun or mpirun failed. starter: as in Resources.mpi.

    Told to end (SIGTERM, with mpirun also SIGINT), it tells the watchers. With mpirun it raises KeyboardInterrupt after
    their end, and a second SIGINT ends it at once. Raises UserError where there is no mpirun.
    """
    attempt_dir = run_files.attempt_dir(run_dir, attempt)
    attempt_dir.mkdir(exist_ok=True)
    argv = command(run_dir, attempt, token, starter, srun_args)
    _, where = spec.read_run(run_dir)
    environment = {**environ, MASTER_PORT: str(port)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (where.project, environ.get("PYTHONPATH"))))
    if starter != MPIRUN:
        process = subprocess.Popen(argv, env=environment)
        # A Ctrl-C is handed on by srun itself.
        previous = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
        try:
            return process.wait() == 0
        finally:
            signal.signal(signal.SIGTERM, previous)
    for name in NOT_FOR_DAEMONS:
        environment.pop(name, None)
    variables = {**MPIRUN_VARIABLES, **(IN_A_STEP if "SLURM_JOB_ID" in environment else {})}
    with open(attempt_dir / run_files.MPIRUN_LOG, "ab") as log:
        process = subprocess.Popen(
            argv,
            env={**variables, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # It would answer the terminal's Ctrl-C by ending the watchers.
            start_new_session=True,
            preexec_fn=_before_exec,
        )
        return _stay(process)


def command(run_dir: Path, attempt: int, token: str, starter: str | None, srun_args: Sequence[str]) -> list[str]:
    """What starts the watchers of a run. Raises UserError."""
    run_spec, where = spec.read_run(run_dir)
    placement = run_spec.placement
    watcher = (sys.executable, "-u", "-m", "harness.node.attempt", str(run_dir), str(attempt), token)
    if starter == MPIRUN:
        return [
            mpi.mpirun(where.python),
            *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
            *("-n", str(placement.world_size), "--map-by", f"ppr:{placement.ranks_per_node}:node"),
            # More ranks than cores are the user's to ask for, and marked as such.
            *("--oversubscribe", "--bind-to", "none"),
            *(word for name in (MASTER_PORT, RESTARTS_HERE, "PYTHONPATH") for word in ("-x", name)),
            *watcher,
        ]
    return [
        "srun",
        f"--nodes={placement.nodes}",
        f"--ntasks={placement.world_size}",
        f"--ntasks-per-node={placement.ranks_per_node}",
        f"--cpus-per-task={run_spec.cluster.cpus_per_gpu}",
        "--kill-on-bad-exit=1",
        "--unbuffered",
        f"--output={_escaped(run_files.attempt_dir(run_dir, attempt))}/watcher.rank%t",
        *site_resources.srun_args(starter, srun_args),
        *watcher,
    ]


def _stay(process: subprocess.Popen[bytes]) -> bool:
    """With mpirun, to its end. Told to end, it would end the watchers; SIGUSR1 it hands on to them."""
    told: list[int] = []
    previous = {n: signal.signal(n, lambda number, _: told.append(number)) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        deadline = tell_at = float("inf")
        while process.poll() is None:
            now = time.monotonic()
            if told and deadline == float("inf"):
                deadline, tell_at = now + PATIENCE_SECONDS, now
            if now > deadline or told.count(signal.SIGINT) > 1:
                process.kill()  # the watchers notice
            elif now >= tell_at:
                # Repeated: mpirun may just be starting them.
                process.send_signal(signal.SIGUSR1)
                tell_at = now + TELL_SECONDS
            time.sleep(POLL_SECONDS)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if told:
        raise KeyboardInterrupt
    return process.returncode == 0


def _before_exec() -> None:
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, daemon.DEAF_TO)


def _escaped(path: Path) -> str:
    """In the name of an output file, srun replaces what follows a '%'."""
    return str(path).replace("%", "%%")
