"""The half of tests/worker/distributed/test_process_group.py that runs in the PyTorch environment."""

from __future__ import annotations

import faulthandler
import itertools
import os
import sys
from pathlib import Path

import numpy as np
from builders import make_site, make_spec

from harness.core.rendezvous import Rendezvous
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter


def leaves_while_gloo_frees() -> None:
    """Two adapters join, take steps and disconnect, one after the other in one process. The second's gloo threads are
    delayed until the main thread waits for them, if it does, holding the GIL. Prints true and exits."""
    faulthandler.dump_traceback_later(200, exit=True)
    options = {"bucket_mb": 0.2, "overlap": False}
    spec = make_spec(strategy_options=options, model="cnn_small", gpus=1, global_batch=4, batch_per_gpu=4)
    batch = np.zeros((4, 32, 32, 3), np.uint8), np.zeros(4, np.int64)

    def joins_and_leaves(held_up: bool) -> None:
        rendezvous = Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port())
        adapter = Adapter(spec, make_site(), rendezvous, itertools.repeat(batch))
        for _ in range(4):
            adapter.step()
        if held_up:
            sys.setswitchinterval(60)
            core = {min(os.sched_getaffinity(0))}
            for task in Path("/proc/self/task").iterdir():
                os.sched_setaffinity(int(task.name), core)
                if (task / "comm").read_text().startswith("pt_gloo_runloop"):
                    os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
        adapter.allreduce_sum([0.0])
        adapter.close()

    joins_and_leaves(held_up=False)
    joins_and_leaves(held_up=True)
    print("true", flush=True)
    os._exit(0)  # see harness/worker/__main__.py
