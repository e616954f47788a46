"""One rank: `python -m harness.worker <run directory> <attempt directory>`, inside the framework's environment."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from harness.events import EventWriter
from harness.spec import read_run, write_json
from harness.worker import capture, loop
from harness.worker.data.batches import Batches
from harness.worker.data.errors import DataError
from harness.worker.data.readers import open_dataset
from harness.worker.data.sharding import SampleOrder
from harness.worker.rendezvous import from_environment


def main(run_dir: Path, attempt_dir: Path) -> None:
    startup = loop.Stopwatch()
    spec, site = read_run(run_dir)
    rendezvous = from_environment(os.environ)
    log = EventWriter(attempt_dir / f"events.rank{rendezvous.rank}.jsonl", rendezvous.rank)
    framework = importlib.import_module(f"harness.worker.{spec.framework}")
    startup.lap("imports")
    train, test = open_dataset(spec.dataset, site.data_root, spec.seed)
    order = SampleOrder(len(train), spec.seed)
    batches = Batches(train, order, spec.dataset, spec.global_batch, rendezvous.rank, rendezvous.world_size, spec.seed)
    startup.lap("data")
    adapter = framework.Adapter(spec, site, rendezvous, batches)
    startup.lap("rendezvous_and_build")
    facts = {**capture.start_facts(spec, rendezvous), **adapter.facts()}
    log.write("start", **facts, train_samples=len(train), startup_seconds=startup.laps)
    if rendezvous.rank == 0:
        write_json(attempt_dir / "env.json", capture.environment(site, facts["versions"]))
    loop.run(spec, adapter, test, rendezvous, log)
    adapter.close()
    batches.close()
    log.close()


def exit_code() -> int:
    """Of the rank: 0 when all of its work is done and logged."""
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = exit_code()
    sys.stdout.flush()
    sys.stderr.flush()
    # At once, without the interpreter's clean-up. After an error that can wait for a collective which the peers will
    # never join, and nobody would learn that this rank has failed. After success, gloo's threads can abort the process
    # in it (github.com/pytorch/pytorch/pull/179291), and a run whose work is done would count as failed.
    os._exit(code)
