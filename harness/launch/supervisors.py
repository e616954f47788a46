"""Starts the supervisors of a run's ranks with one srun or mpirun command and waits for it."""

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

# Open MPI 4 reads OMPI_MCA_*, Open MPI 5 reads PRTE_MCA_*; each ignores the other's.
MPIRUN_VARIABLES = {
    # A failing supervisor has reported why, and the others must reach their own ends.
    "OMPI_MCA_orte_abort_on_non_zero_status": "0",
    "OMPI_MCA_orte_allowed_exit_without_sync": "1",
    "PRTE_MCA_state_base_error_non_zero_exit": "0",
    "PRTE_MCA_prte_allowed_exit_without_sync": "1",
    # Seconds after MPI_Abort until mpirun sends SIGTERM to the supervisors, and again until SIGKILL. By then the
    # supervisors have acted themselves (attempt.VANISHED_SECONDS).
    "OMPI_MCA_odls_base_sigkill_timeout": "15",
}
# Under Slurm, mpirun starts a daemon on each node through srun.
DAEMON = f"{sys.executable} -m {daemon.__name__}"
SLURM_VARIABLES = {
    # Start one on the first node too: Slurm sends its warnings to the processes of steps.
    "OMPI_MCA_ras_base_launch_orted_on_hn": "1",
    "PRTE_MCA_ras_base_launch_orted_on_hn": "1",
    "OMPI_MCA_orte_launch_agent": f"{DAEMON} orted",
    "PRTE_MCA_prte_launch_agent": f"{DAEMON} prted",
}
# Removed so that the daemon, a single task, gets all of the job's cores on its node.
UNSET_FOR_DAEMONS = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK")
POLL_SECONDS = 0.1
RESEND_SECONDS = 1.0
# Longer than a supervisor gives its rank to save and exit.
EXIT_SECONDS = 30.0


def run(
    run_dir: Path,
    attempt: int,
    token: str,
    starter: str | None,
    srun_args: Sequence[str],
    port: int,
    environ: Mapping[str, str],
) -> bool:
    """Run one attempt to its end.

    On SIGTERM (with mpirun also SIGINT) the supervisors are told to stop. With mpirun, KeyboardInterrupt follows
    once they have ended; a second SIGINT kills them immediately.

    Args:
        run_dir: the run directory.
        attempt: number of the attempt.
        token: identifies the submission.
        starter: as in Resources.mpi.
        srun_args: the site's options for srun.
        port: the rendezvous port.
        environ: environment of srun or mpirun.

    Returns:
        False if srun or mpirun failed.

    Raises:
        UserError: there is no mpirun.
    """
    attempt_dir = run_files.attempt_dir(run_dir, attempt)
    attempt_dir.mkdir(exist_ok=True)
    argv = command(run_dir, attempt, token, starter, srun_args)
    _, site = spec.read_run(run_dir)
    environment = {**environ, MASTER_PORT: str(port)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (site.project, environ.get("PYTHONPATH"))))
    if starter != MPIRUN:
        environment.setdefault(*site_resources.PMIX_FENCE)
        process = subprocess.Popen(argv, env=environment)
        # srun forwards Ctrl-C itself.
        previous = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
        try:
            return process.wait() == 0
        finally:
            signal.signal(signal.SIGTERM, previous)
    for name in UNSET_FOR_DAEMONS:
        environment.pop(name, None)
    variables = {**MPIRUN_VARIABLES, **(SLURM_VARIABLES if "SLURM_JOB_ID" in environment else {})}
    with open(attempt_dir / run_files.MPIRUN_LOG, "ab") as log:
        process = subprocess.Popen(
            argv,
            env={**variables, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # mpirun would react to the terminal's Ctrl-C by killing the supervisors.
            start_new_session=True,
            preexec_fn=_before_exec,
        )
        return _wait_for_mpirun(process)


def command(run_dir: Path, attempt: int, token: str, starter: str | None, srun_args: Sequence[str]) -> list[str]:
    """Build the command that starts the supervisors of a run. Raises UserError."""
    run_spec, site = spec.read_run(run_dir)
    placement = run_spec.processes
    cpus_per_task = run_spec.cluster.cpus_per_gpu * run_spec.placement.world_size // placement.world_size
    supervisor = (sys.executable, "-u", "-m", "harness.node.attempt", str(run_dir), str(attempt), token)
    if starter == MPIRUN:
        return [
            mpi.mpirun(site.python),
            *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
            *("-n", str(placement.world_size), "--map-by", f"ppr:{placement.ranks_per_node}:node"),
            # Oversubscription is the user's decision; the run is flagged.
            *("--oversubscribe", "--bind-to", "none"),
            *(word for name in (MASTER_PORT, RESTARTS_HERE, "PYTHONPATH") for word in ("-x", name)),
            # Started by its path, mpirun puts its folder first on the PATH of what it starts, and the `python3` there.
            *("env", f"PATH={os.environ['PATH']}"),
            *supervisor,
        ]
    return [
        "srun",
        f"--nodes={placement.nodes}",
        f"--ntasks={placement.world_size}",
        f"--ntasks-per-node={placement.ranks_per_node}",
        f"--cpus-per-task={cpus_per_task}",
        "--kill-on-bad-exit=1",
        "--unbuffered",
        f"--output={_escaped(run_files.attempt_dir(run_dir, attempt))}/watcher.rank%t",
        *site_resources.srun_args(starter, srun_args),
        *supervisor,
    ]


def _wait_for_mpirun(process: subprocess.Popen[bytes]) -> bool:
    """Wait for mpirun. On SIGTERM it would kill the supervisors, whereas it forwards SIGUSR1 to them."""
    received: list[int] = []
    previous = {n: signal.signal(n, lambda number, _: received.append(number)) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        deadline = send_at = float("inf")
        while process.poll() is None:
            now = time.monotonic()
            if received and deadline == float("inf"):
                deadline, send_at = now + EXIT_SECONDS, now
            if now > deadline or received.count(signal.SIGINT) > 1:
                process.kill()  # the supervisors notice
            elif now >= send_at:
                # Repeated: mpirun may still be starting them.
                process.send_signal(signal.SIGUSR1)
                send_at = now + RESEND_SECONDS
            time.sleep(POLL_SECONDS)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt
    return process.returncode == 0


def _before_exec() -> None:
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, daemon.BLOCKED_SIGNALS)


def _escaped(path: Path) -> str:
    """Escape '%' for srun's --output, which expands it."""
    return str(path).replace("%", "%%")
