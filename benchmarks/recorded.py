"""The part of recording.py that runs in a framework's environment.

    python -m benchmarks.recorded RUN_DIRECTORY PAIRS STEPS

Prints the seconds of each block of STEPS steps, alternating with all recording and without, and the seconds that
recording alone took per block.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from harness.core.events import EventWriter
from harness.core.rendezvous import Rendezvous
from harness.core.spec import Placement, read_run
from harness.worker import loop
from harness.worker.data.readers import open_dataset
from harness.worker.data.stream import training_batches
from harness.worker.record import capture, energy
from harness.worker.record.recorder import MEASURE, Recorder, Recording


def main(run_dir: Path, pairs: int, steps: int) -> None:
    spec, site = read_run(run_dir)
    alone = {"strategy": "plain", "strategy_options": {}, "gpus": 1, "placement": Placement(1, 1)}
    spec = dataclasses.replace(spec, global_batch=spec.batch_per_gpu, **alone)
    train, _ = open_dataset(spec.dataset, site.data_root, spec.seed)
    batches = training_batches(train, spec.dataset, spec.global_batch, 0, 1, spec.seed, 0)
    framework = importlib.import_module(f"harness.worker.{spec.framework}")
    rendezvous = Rendezvous(0, 1, 0, 1, "127.0.0.1", 0)
    adapter = framework.Adapter(spec, site, rendezvous, batches)
    with tempfile.TemporaryDirectory() as folder:
        log = EventWriter(Path(folder) / "events.rank0.jsonl", 0)
        facts = {**capture.start_facts(spec, rendezvous), **adapter.facts()}
        meter = energy.find(facts["device"], facts["device_id"])
        recording = Recording(log, facts)

        def block(recorder: Recorder, used: energy.Meter) -> float:
            """A block as in harness/worker/loop.py; returns the seconds of all of it."""
            begin = time.perf_counter()
            counters = used.counters()
            recorder.begin()
            seconds = loop.timed(adapter, adapter.step, steps)
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
