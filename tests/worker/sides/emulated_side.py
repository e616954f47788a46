"""PyTorch half: ranks of framework=emulated that execute one run after another.

Each run is the worker's own `main` with the real loop, probes and event log. Only the processes are reused, which saves
the time of importing torch.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Sequence

from builders import make_site, make_spec
from hosts import INTERFACE, SHAPED

from harness.core.rendezvous import Rendezvous
from harness.core.spec import Placement, read_run
from harness.worker.data.readers import open_dataset
from harness.worker.data.stream import training_batches

# Torch too is loaded before raising the priority, which is for the measurement only.
from harness.worker.distributed import process_group  # noqa: F401
from harness.worker.emulated import Adapter
from harness.worker.rank import main

SENT, STOLEN = "sent.rank{}", "stolen.rank{}"
# As in conf/framework/emulated.yaml.
OPTIONS: Dict[str, Any] = {
    "compute_ms": 20.0,
    "batch_ref": None,
    "backward_fraction": 0.5,
    "stall_ms": 0.0,
    "straggler_rank": 0,
    "straggler_ms": 0.0,
    "jitter": 0.0,
    "message_mb": None,
    "latency_ms": 0.0,
    "bandwidth_mb": None,
}


def one_rank(turns: Sequence[Sequence[str]]) -> None:
    """turns: for each run its folder, the ranks' port, this rank, the world size, and the Mbit/s of its host's link; 0
    leaves it unlimited.

    Uses real-time priority if permitted: ranks wait most of the time, and a busy neighbour would delay each message by
    a time slice, a cost that is not configured.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for folder, port, rank, ranks, mbit in turns:
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, MASTER_PORT=port)
        attempt = Path(folder) / "attempt-1"
        if int(mbit):
            tbf = ("root", "tbf", "rate", f"{mbit}mbit", *SHAPED.split())
            subprocess.run(["tc", "qdisc", "replace", "dev", INTERFACE, *tbf], check=True)
        sent, stolen = sent_bytes(), stolen_seconds()
        assert main(*read_run(Path(folder)), Path(folder), attempt)
        (attempt / SENT.format(rank)).write_text(str(sent_bytes() - sent))
        (attempt / STOLEN.format(rank)).write_text(str(stolen_seconds() - stolen))
    sys.stdout.flush()
    os._exit(0)


def sent_bytes() -> int:
    """Return the bytes that this host has sent on its link, including frames; 0 without a link of its own."""
    counter = Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes")
    return int(counter.read_text()) if counter.exists() else 0


def stolen_seconds() -> float:
    """Return the processor seconds that the hypervisor has taken from this machine since boot (`steal`)."""
    of_all = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(of_all[8]) / os.sysconf("SC_CLK_TCK")


def weights_of(folder: str, saved: int) -> Dict[str, Any]:
    """Return the weights after 6 steps of one rank; saved: save after so many steps, and let another adapter
    continue."""
    Path(folder).mkdir()
    options = {"compute_ms": 1.0, "jitter": 0.1, "message_mb": 0.01}
    spec = make_spec(
        framework="emulated",
        framework_options={**OPTIONS, **options},
        strategy="plain",
        strategy_options={},
        gpus=1,
        placement=Placement(1, 1),
        global_batch=8,
    )

    def adapter(first: int) -> Adapter:
        train, _ = open_dataset(spec.dataset, None, spec.seed)
        batches = training_batches(train, spec.dataset, 8, 0, 1, spec.seed, first)
        return Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "", 0), batches)

    jitter, one = [], adapter(0)
    for step in range(6):
        if saved and step == saved:
            one.save(Path(folder))
            one = adapter(saved)
            one.load(Path(folder))
        jitter.append(one.compute_seconds())
        one.step()
    return {"weights": one.weights()[0].tolist(), "steps": one.steps, "jitter": jitter}


if __name__ == "__main__":
    one_rank([turn.split(",") for turn in sys.argv[1:]])
