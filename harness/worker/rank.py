"""One rank of a run, from its first look at the run to its end."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

from harness.core import run_files
from harness.core.checkpoints import latest
from harness.core.errors import RankError
from harness.core.events import EventWriter
from harness.core.measuring.environment import environment, start_facts
from harness.core.measuring.protocol import Protocol
from harness.core.rendezvous import from_environment, with_token
from harness.core.seals import sealed
from harness.core.serialization import write_json
from harness.core.spec import CHROME, NSYS, RunSpec, Site
from harness.worker import checkpoint, loop, profiler_ranges
from harness.worker.checks import step_check, verify
from harness.worker.data.pipelines import open_pipeline
from harness.worker.data.readers import open_dataset
from harness.worker.distributed import gpu_sharing
from harness.worker.faults import with_fault
from harness.worker.record import capture, energy, nccl, trace
from harness.worker.record.recorder import Recorder, Recording
from harness.worker.whitening import whiten


def main(spec: RunSpec, site: Site, run_dir: Path, attempt_dir: Path) -> bool:
    """Return True when the run is complete, False if the ranks stopped early on request."""
    startup = loop.Stopwatch(capture.interpreter_seconds())
    leave = LeaveOnSignal()
    # The supervisor of a stalled rank sends SIGUSR1 to get the stacks of all threads in stderr.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rendezvous = with_token(from_environment(os.environ), attempt_dir)
    log = EventWriter(attempt_dir / run_files.events(rendezvous.rank), rendezvous.rank)
    if spec.verify and rendezvous.rank == 0:
        verify.run(run_dir, attempt_dir)
        startup.lap("verify")
    nccl_log = attempt_dir / f"nccl.rank{rendezvous.rank}.log"
    nccl_requested = (
        nccl.enable_log(os.environ, nccl_log) if spec.measure.record and spec.cluster.device == "cuda" else None
    )
    # What a framework makes while it is imported stays. Looking for garbage in it again and again took a fifth of
    # PyTorch's imports, half of which come with the first optimizer.
    gc.disable()
    framework = importlib.import_module(f"harness.worker.{spec.framework}")
    gc.freeze()
    startup.lap("imports")
    saved, ignored = latest(run_dir, site.code_version)
    first_step = saved.step if saved else 0
    train, test = open_dataset(spec.dataset, site.data_root, spec.seed)
    batches = open_pipeline(spec, train, rendezvous.rank, first_step, getattr(framework, "PIPELINES", {}))
    startup.lap("data")
    gpu_sharing.check(spec, site, rendezvous)
    adapter = framework.Adapter(spec, site, rendezvous, batches)
    gc.enable()  # before batches.start(), which may fork
    whiten(spec, train, adapter)
    batches.start()
    assert adapter.joined_at is not None, "an adapter must call self.joined() after the rendezvous"
    startup.lap("rendezvous", adapter.joined_at)
    startup.lap("build")
    attempt = run_files.attempt_number(attempt_dir)
    checkpoints = checkpoint.Checkpoints(run_dir, attempt, site.code_version, spec, rendezvous.rank, log)
    placement = start_facts(spec, rendezvous, os.sched_getaffinity(0), os.environ)
    facts = {**placement, **adapter.facts(), **batches.facts()}
    record = spec.measure.record
    meter = energy.find(facts["device"], facts["device_id"]) if record else energy.Meter()
    recorder = Recording(log, facts, nccl_requested) if record else Recorder()
    metering = {"energy_of": meter.of, "energy_basis": meter.basis}
    startup.lap("facts")
    log.write("start", **facts, train_samples=len(train), startup_seconds=startup.laps, **metering)
    if facts["world_size"] != rendezvous.world_size:
        # For example, MPI ranks started without mpirun: each would train alone and appear to scale perfectly.
        raise WorldSizeError(
            f"{facts['communication']} sees a world of {facts['world_size']}, the run has {rendezvous.world_size} "
            "ranks: the launcher does not match the library; for MPI, and Horovod over MPI, set cluster.mpi"
        )
    checkpoints.resume(adapter, saved, ignored)
    if rendezvous.rank == 0:
        described = environment(
            site.code_version, platform.python_version(), sys.executable, facts["versions"], os.environ
        )
        write_json(attempt_dir / run_files.ENVIRONMENT, sealed(described))
    step = adapter.step
    if spec.verify and first_step == 0:
        step = step_check.checked(step, spec, adapter, log)
    step = with_fault(step, spec, rendezvous, run_dir, attempt_dir, log, first_step)
    if spec.trace == NSYS:
        trace.show_in_nsys(spec, rendezvous.rank, log)
        step = profiler_ranges.around("step", step)
    protocol = Protocol(spec.measure, first_step, saved.ended if saved else None)
    done = loop.run(spec, adapter, step, protocol, test, rendezvous, log, checkpoints, leave, meter, recorder, startup)
    if done and spec.trace == CHROME:
        trace.take(spec, adapter, step, rendezvous.rank, attempt_dir, log)
    adapter.close()
    batches.close()
    log.close()
    if spec.trace == NSYS:
        trace.flush_for_nsys()
    return done


class WorldSizeError(RankError):
    """The framework sees a different world size than the launcher."""


class LeaveOnSignal:
    """A flag that SIGUSR2 sets: save at the end of the current block and exit."""

    def __init__(self) -> None:
        self._requested = False
        signal.signal(signal.SIGUSR2, self._request)

    def _request(self, *_: Any) -> None:
        self._requested = True

    def __call__(self) -> bool:
        return self._requested
