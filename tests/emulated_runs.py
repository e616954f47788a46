"""Runs of framework=emulated with given costs, and what the analysis should find in them."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from builders import SYNTHETIC, make_site, make_spec
from project import PROJECT, SIDES, TEST_PATH
from studies import logged

from analysis.measures.breakdown import COMPUTE, DATA, IMBALANCE, PART_NAMES, SYNCHRONISATION, Parts, parts_of_runs
from analysis.read.row import Run
from analysis.read.run import read_run_row
from harness.core.events import write_result
from harness.core.rendezvous import make_token
from harness.core.spec import MeasureSpec, Placement, RunSpec, write_run
from harness.worker.distributed.exchange import own_port

PYTHON = PROJECT / ".envs" / "pytorch" / "bin" / "python"
# Error of each part relative to the given step time, as promised by docs/validation.md.
BOUND = 0.05
# Figures are medians of this many rounds, each with a block of PROBE_STEPS steps per probe.
ROUNDS, PROBE_STEPS = 5, 2
MB = 2**20
# The settings' links are slower than gloo while gloo takes at most this long per bucket.
CARRIER_MS = 0.9


def _has_priority() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


# Whether ranks may have real-time priority (tests/worker/sides/emulated_side.py), which keeps other programs out.
HAS_PRIORITY = _has_priority()


def needs_priority_where_busy() -> None:
    """Skip the test if other programs would disturb the ranks."""
    if not HAS_PRIORITY and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        pytest.skip("other programs compute here, and real-time priority, which keeps them out, needs root")


# Limit on repeating a run that lost processor time to the hypervisor, which no priority prevents.
TRIES = 8
T = TypeVar("T")


class Wrong(NamedTuple):
    """A result that contradicts the given costs, and whether its run was disturbed."""

    text: str
    is_disturbed: bool


def is_disturbed(run_dir: Path) -> bool:
    """Return whether the hypervisor took processor time from the machine during the run."""
    return any(float(file.read_text()) > 0 for file in (run_dir / "attempt-1").glob("stolen.rank*"))


def assert_right(
    measured_wrongly: Callable[[Path, Sequence[T]], dict[T, Wrong]], folder: Path, what: Sequence[T], most_held_up: int
) -> None:
    """Assert that every result is right, if necessary once it has been measured again: an analysis error would recur.

    A busy machine sometimes delays a rank for longer than a run lasts: 1 of 36 results in one of five test runs.

    Args:
        measured_wrongly: measures the given items in a folder and returns the wrong results.
        most_held_up: how many undisturbed results may be wrong at first.
    """
    off = measured_wrongly(folder / "first", what)
    undisturbed = [found.text for found in off.values() if not found.is_disturbed]
    assert len(undisturbed) <= most_held_up, "\n".join(undisturbed)
    for number in range(TRIES):
        if off:
            off = measured_wrongly(folder / f"again-{number}", list(off))
            assert all(found.is_disturbed for found in off.values()), off
    assert not off, off


@dataclass(frozen=True)
class Setting:
    """Costs of an emulated run: options of conf/framework/emulated.yaml. overlap: of strategy=allreduce. buckets: how
    many its bucket_mb makes of the message. steps: timed, in blocks of four."""

    ranks: int
    compute_ms: float = 20.0
    stall_ms: float = 0.0
    straggler_ms: float = 0.0
    straggler_rank: int = 0
    backward_fraction: float = 0.5
    message_mb: float = 0.25
    latency_ms: float = 0.0
    bandwidth_mb: float | None = 10_000.0
    overlap: bool = True
    buckets: int = 4
    steps: int = 4

    def stretched(self, factor: float) -> Setting:
        """Return the same with all costs multiplied by the factor."""
        bandwidth_mb = None if self.bandwidth_mb is None else self.bandwidth_mb / factor
        costs = {
            name: getattr(self, name) * factor for name in ("compute_ms", "stall_ms", "straggler_ms", "latency_ms")
        }
        return replace(self, bandwidth_mb=bandwidth_mb, **costs)

    @property
    def spec(self) -> RunSpec:
        other = ("ranks", "overlap", "buckets", "steps")
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in other}
        return make_spec(
            framework="emulated",
            framework_options={"batch_ref": None, "jitter": 0.0, **options},
            strategy_options={"bucket_mb": self.message_mb / self.buckets, "overlap": self.overlap},
            dataset=SYNTHETIC,
            gpus=self.ranks,
            placement=Placement(1, self.ranks),
            global_batch=2 * self.ranks,
            batch_per_gpu=2,
            measure=MeasureSpec(
                warmup_steps=1,
                steps=self.steps,
                block_steps=4,
                evaluate_samples=0,
                probe_steps=PROBE_STEPS,
                probe_rounds=ROUNDS,
                probe_limit=1000.0,
            ),
        )

    @property
    def expected(self) -> dict[str, float]:
        """Seconds per step of each part, from the given costs alone. A bucket of b bytes takes the latency plus
        2 (n - 1) / n b / bandwidth."""
        if self.ranks == 1:
            return self.expected_with(0.0)
        assert self.bandwidth_mb is not None
        sent_mb = 2 * (self.ranks - 1) / self.ranks * self.message_mb / self.buckets
        return self.expected_with(self.latency_ms + 1000 * sent_mb / self.bandwidth_mb)

    def expected_with(self, bucket_ms: float, burst_ms: float = 0.0) -> dict[str, float]:
        """Return the same if each bucket takes bucket_ms, or burst_ms less after the link was idle."""
        mean_straggler = self.straggler_ms / self.ranks
        milliseconds = {
            DATA: self.stall_ms,
            SYNCHRONISATION: self._exposed_ms(bucket_ms, burst_ms),
            IMBALANCE: self.straggler_ms - mean_straggler,
            COMPUTE: self.compute_ms + mean_straggler,
        }
        return {name: value / 1000 for name, value in milliseconds.items()}

    def _exposed_ms(self, bucket_ms: float, burst_ms: float) -> float:
        """Return how long the buckets, one after another, outlast the backward pass of the slowest rank."""
        compute_ms = self.compute_ms + self.straggler_ms
        backward_ms = self.backward_fraction * compute_ms if self.overlap else 0.0
        done_ms = 0.0
        for number in range(1, self.buckets + 1):
            ready_ms = compute_ms - backward_ms * (1 - number / self.buckets)
            done_ms = max(done_ms, ready_ms) + bucket_ms - (burst_ms if ready_ms > done_ms else 0.0)
        return done_ms - compute_ms

    @property
    def messages(self) -> int:
        """Number of times a rank sums all gradients: in training steps, and in the probes of the full step, the cached
        batch and the allreduce, each of which is called once beforehand and has one untimed step per round."""
        measure = self.spec.measure
        return measure.warmup_steps + measure.steps + 3 * (1 + ROUNDS * (1 + PROBE_STEPS))


def prepared(folder: Path, settings: Sequence[Setting]) -> list[Path]:
    """Prepare the folder of each setting's run for its ranks."""
    site = make_site(python=str(PYTHON), data_root=None, project=str(PROJECT), timeout_seconds=60.0)
    run_dirs = []
    for number, setting in enumerate(settings):
        run_dir = folder / f"{setting.ranks}-{number}"
        (run_dir / "attempt-1").mkdir(parents=True)
        make_token(run_dir / "attempt-1")
        write_run(run_dir, setting.spec, site)
        run_dirs.append(run_dir)
    return run_dirs


Turn = tuple[Path, int, int, int, int]


def turns_of(run_dir: Path, ranks: int, mbit: int = 0) -> list[Turn]:
    """Return the arguments of each rank of a run (tests/worker/sides/emulated_side.py)."""
    port = own_port()
    return [(run_dir, port, rank, ranks, mbit) for rank in range(ranks)]


@contextlib.contextmanager
def started(
    turns: Sequence[Sequence[Turn]],
    address: str = "127.0.0.1",
    interface: str = "lo",
    prefixes: Sequence[Sequence[str]] = (),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process for each sequence of turns. address: of the process with rank 0. prefixes: command prefixes that
    start each process elsewhere."""
    env = {
        **os.environ,
        "PYTHONPATH": TEST_PATH,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": interface,
        "MASTER_ADDR": address,
    }
    processes = []
    try:
        for number, own in enumerate(turns):
            command = [
                *(prefixes[number] if prefixes else ()),
                str(PYTHON),
                str(SIDES / "emulated_side.py"),
            ]
            command += [",".join(map(str, turn)) for turn in own]
            processes.append(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wrong(setting: Setting, expected: Mapping[str, float], parts: Parts) -> Iterator[str]:
    """Yield the parts that deviate from the given costs by more than BOUND."""
    step = sum(expected.values())
    for name, seconds in expected.items():
        found = parts.seconds[name].estimate
        if abs(found - seconds) > BOUND * step:
            yield (
                f"{PART_NAMES[name]} {1000 * found:.2f} ms instead of {1000 * seconds:.2f} ms, of a step of "
                f"{1000 * step:.1f} ms: {setting}"
            )


def finished(processes: Sequence[subprocess.Popen[str]], seconds: float) -> None:
    said = [process.communicate(timeout=seconds)[0] for process in processes]
    assert not any(process.returncode for process in processes), "\n".join(said)[-3000:]


def stretch(folder: Path, ranks: int) -> float:
    """Return the factor, at least 1, by which to multiply costs here: no link faster than gloo can be emulated.

    It is gloo's own time per bucket of 256 KiB, the median over the probe rounds, divided by CARRIER_MS.
    """
    setting = Setting(ranks, message_mb=1.0, bandwidth_mb=None)
    [run_dir] = prepared(folder, [setting])
    with started([[turn] for turn in turns_of(run_dir, ranks)]) as processes:
        finished(processes, 120)
    size = setting.message_mb * MB
    rounds = [e for e in logged(run_dir, "probe") if e["probe"] == "allreduce" and e["bytes"] == size]
    bucket_ms = 1000 * statistics.median(e["seconds"] / e["n"] for e in rounds) / setting.buckets
    return max(1.0, bucket_ms / CARRIER_MS)


def analysed(run_dir: Path) -> Parts:
    """Return the breakdown that the analysis computes from a run's logs."""
    write_result(
        run_dir,
        {
            "v": 1,
            "status": "completed",
            "attempt": 1,
            "reason": None,
            "failed_rank": None,
            "exit_code": 0,
            "stderr_tail": [],
            "started": 0.0,
            "ended": 1.0,
            "job_id": None,
            "written_by": "test",
            "oversubscribed": None,
        },
    )
    row = read_run_row(run_dir)
    assert row["status"] == "completed", row.get("reason")
    run = Run.of(row)
    parts = parts_of_runs([run], run.step_seconds)
    assert parts is not None
    return parts
