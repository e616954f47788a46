"""The part of recording.py that runs in a framework's environment.

    python -m benchmarks.sides.recorded RUN_DIRECTORY PAIRS STEPS

Prints the seconds of each block of STEPS steps, alternating with all recording and without, and the seconds that
recording alone took per block.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.sides.beside import plain_adapter
from harness.core.events import EventWriter
from harness.core.measuring.environment import start_facts
from harness.core.rendezvous import Rendezvous
from harness.core.spec import read_run
from harness.worker.record import energy
from harness.worker.record.recorder import MEASURE, Recorder, Recording
from harness.worker.timing import timed


def main(run_dir: Path, pairs: int, steps: int) -> None:
    spec, site = read_run(run_dir)
    adapter, _ = plain_adapter(spec, site)
    with tempfile.TemporaryDirectory() as folder:
        log = EventWriter(Path(folder) / "events.rank0.jsonl", 0)
        placement = start_facts(spec, Rendezvous(0, 1, 0, 1, "127.0.0.1", 0), os.sched_getaffinity(0), os.environ)
        facts = {**placement, **adapter.facts()}
        meter = energy.find(facts["device"], facts["device_id"])
        recording = Recording(log, facts)

        def block(recorder: Recorder, used: energy.Meter) -> float:
            """A block as in harness/worker/loop.py; returns its total seconds."""
            begin = time.perf_counter()
            counters = used.counters()
            recorder.begin()
            seconds = timed(adapter, adapter.step, steps).seconds
            joules = used.joules_since(counters)
            recorder.end(MEASURE, steps, steps, seconds)
            log.write("steps", phase=MEASURE, step=0, n=steps, seconds=seconds, joules=joules, loss=adapter.loss())
            return time.perf_counter() - begin

        on, off = [], []
        for pair in range(-2, pairs):  # the first steps choose their algorithms
            # The order alternates, which cancels drift and periodic effects.
            if pair % 2:
                with_, without = block(recording, meter), block(Recorder(), energy.Meter())
            else:
                without, with_ = block(Recorder(), energy.Meter()), block(recording, meter)
            if pair >= 0:
                on.append(with_)
                off.append(without)
        alone_seconds = []
        for _ in range(pairs):
            begin = time.perf_counter()
            counters = meter.counters()
            recording.begin()
            meter.joules_since(counters)
            recording.end(MEASURE, steps, steps, 0.0)
            alone_seconds.append(time.perf_counter() - begin)
        log.close()
    print(json.dumps({"on": on, "off": off, "alone": alone_seconds}))
    sys.stdout.flush()
    os._exit(0)  # see harness/worker/__main__.py


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
