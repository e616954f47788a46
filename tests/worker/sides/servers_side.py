"""Ranks with parameter servers, as real processes in the PyTorch environment (see environments.in_environment)."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
from builders import make_site, make_spec
from noise import batches, flat

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec, Placement, RunSpec
from harness.worker.adapter import checksum
from harness.worker.distributed.exchange import own_port

BATCH = 8
OPTIONS: Dict[str, Dict[str, Any]] = {
    "allreduce": {"bucket_mb": None, "overlap": True, "compress": "none", "powersgd_rank": 4},
    "ps_sync": {"servers": None},
    "ps_async": {"servers": None},
    "ps_mixed": {"servers": None},
    "ssp": {"servers": None, "staleness": 1},
}


def trained(strategy: str, nodes: int, per_node: int, job: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return what each of nodes x per_node ranks reports after a job (keys of `rank`), on virtual nodes of this
    machine. A failed rank reports {"code", "stderr", "seconds"}, counted from the end of the first rank."""
    with tempfile.TemporaryDirectory() as folder:
        return _trained(strategy, nodes, per_node, {"folder": folder, **job}, Path(folder))


def resumed(strategy: str, steps: int, cut: int) -> Dict[str, Any]:
    """Return whether two ranks on two nodes end with the same state, bit for bit, uninterrupted and resumed by new
    processes."""
    whole = trained(strategy, 2, 1, {"steps": steps})
    with tempfile.TemporaryDirectory() as folder:
        first = _trained(strategy, 2, 1, {"folder": folder, "steps": cut, "save": True}, Path(folder))
        second = _trained(
            strategy, 2, 1, {"folder": folder, "steps": steps - cut, "first": cut, "load": True}, Path(folder)
        )
    losses = [one["losses"] + other["losses"] for one, other in zip(first, second)]
    keys = ("weights", "scored", "updates", "momenta")
    return {
        "losses": losses == [one["losses"] for one in whole],
        **{key: [one[key] for one in second] == [one[key] for one in whole] for key in keys},
        "updates_of_all": whole[0]["updates"],
    }


def rank(strategy: str, nodes: int, per_node: int, job: Dict[str, Any], number: int, port: int) -> None:
    """Run one rank. job: folder; steps; first: steps done before; slow: seconds by which the last rank delays each
    step; save, load; kill: "server" or "rank", of rank 0, after half of the steps; no_sync: so many more steps at the
    end; servers: the option."""
    from harness.worker.pytorch.adapter import Adapter

    spec = _spec(strategy, nodes, per_node, job)
    place = Rendezvous(number, nodes * per_node, number % per_node, per_node, "127.0.0.1", port)
    adapter = Adapter(spec, make_site(timeout_seconds=60.0), place, batches(number, BATCH, job.get("first", 0)))
    start = flat(adapter.weights())
    if job.get("load"):
        adapter.load(Path(job["folder"]))
    losses, moments = [], []
    for step in range(job["steps"]):
        if job.get("kill") and step == job["steps"] // 2 and number == 0:
            os.kill(adapter.strategy.server.process.pid if job["kill"] == "server" else os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        if number == place.world_size - 1:
            time.sleep(job.get("slow", 0.0))
        adapter.step()
        losses.append(adapter.loss())
        moments.append([begun, time.monotonic()])
    adapter.allreduce_sum([0.0])
    if job.get("save"):
        adapter.save(Path(job["folder"]))
        adapter.allreduce_sum([0.0])
    own = flat(adapter.weights())
    with adapter.evaluation():
        scored = flat(adapter.weights())
    answer = {
        "losses": losses,
        "moments": moments,
        "weights": checksum(adapter.weights()),
        "kept": bool(np.array_equal(own, flat(adapter.weights()))),
        "scored": checksum([scored]),
        "moved": float(np.linalg.norm(own - start)),
        "first_gradients": adapter.first_gradients,
        "updates": adapter.updates(),
        "communication": adapter.facts()["communication"],
        "world_size": adapter.facts()["world_size"],
        "momenta": _momenta(adapter),
        "back": adapter.servers_back(),
        "totals": adapter.allreduce_sum([1.0, float(number)]),
    }
    adapter.allreduce(4096)
    adapter.allreduce(4)
    for _ in range(job.get("no_sync", 0)):
        adapter.step_without_sync()
    answer["after_no_sync"] = adapter.updates()
    answer["apart"] = checksum(adapter.weights())
    adapter.allreduce_sum([0.0])
    np.save(Path(job["folder"]) / f"weights.rank{number}.npy", own)
    adapter.close()
    server = getattr(adapter.strategy, "server", None)
    answer["server_left"] = server is not None and server.process.poll() is None
    print("ANSWER " + json.dumps(answer), flush=True)
    os._exit(0)


def same_as_allreduce(nodes: int, per_node: int, servers: Any, nesterov: bool) -> Dict[str, Any]:
    """After three steps, return the relative distance of the weights, and the difference of the first gradients' sums
    relative to their magnitude."""
    found = {}
    for strategy in ("allreduce", "ps_sync"):
        with tempfile.TemporaryDirectory() as folder:
            job = {"folder": folder, "steps": 3, "servers": servers, "nesterov": nesterov}
            said = _trained(strategy, nodes, per_node, job, Path(folder))
            assert all("losses" in one for one in said), said
            found[strategy] = said, [np.load(Path(folder) / f"weights.rank{n}.npy") for n in range(nodes * per_node)]
    (reference, expected), (said, ours) = found["allreduce"], found["ps_sync"]
    return {
        "weights": max(float(np.linalg.norm(one - expected[0])) for one in ours) / reference[0]["moved"],
        "ranks_agree": all(np.array_equal(one, ours[0]) for one in ours),
        "gradients": abs(said[0]["first_gradients"][0] - reference[0]["first_gradients"][0])
        / reference[0]["first_gradients"][1],
        "gradients_agree": all(one["first_gradients"] == said[0]["first_gradients"] for one in said),
        "communication": said[0]["communication"],
        "updates": said[0]["updates"],
    }


def _trained(strategy: str, nodes: int, per_node: int, job: Dict[str, Any], folder: Path) -> List[Dict[str, Any]]:
    port, context = own_port(), multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_separate, args=(folder, strategy, nodes, per_node, job, number, port))
        for number in range(nodes * per_node)
    ]
    for process in processes:
        process.start()
    ended: Dict[int, float] = {}
    deadline = time.monotonic() + 150
    while len(ended) < len(processes) and time.monotonic() < deadline:
        for number, process in enumerate(processes):
            if number not in ended and process.exitcode is not None:
                ended[number] = time.monotonic()
        time.sleep(0.02)
    answers = []
    for number, process in enumerate(processes):
        process.kill()
        process.join()
        said = [line for line in (folder / f"out.{number}").read_text().splitlines() if line.startswith("ANSWER ")]
        if said:
            answers.append(json.loads(said[0][7:]))
        else:
            seconds = ended[number] - min(ended.values()) if number in ended else None
            stderr = (folder / f"err.{number}").read_text()
            answers.append({"code": process.exitcode, "stderr": stderr, "seconds": seconds})
    return answers


def _separate(
    folder: Path, strategy: str, nodes: int, per_node: int, job: Dict[str, Any], number: int, port: int
) -> None:
    """Run one rank with outputs of its own. It exits as harness/worker/__main__.py does after an error."""
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}.{number}", os.O_WRONLY | os.O_CREAT), stream)
    try:
        rank(strategy, nodes, per_node, job, number, port)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _spec(strategy: str, nodes: int, per_node: int, job: Dict[str, Any]) -> RunSpec:
    options = dict(OPTIONS[strategy])
    options.update({name: job[name] for name in ("servers", "staleness") if name in job and name in options})
    ranks = nodes * per_node
    return make_spec(
        strategy=strategy,
        strategy_options=options,
        gpus=ranks,
        placement=Placement(nodes, per_node),
        global_batch=ranks * BATCH,
        batch_per_gpu=BATCH,
        # Small steps: on noise, large ones amplify rounding. With a weight decay whose absence would show.
        optimizer=OptimizerSpec(
            lr=0.002, momentum=0.9, weight_decay=0.01, nesterov=job.get("nesterov", False), lr_batch=BATCH
        ),
    )


def _momenta(adapter: Any) -> Any:
    client = getattr(adapter.strategy, "client", None)
    return None if client is None else checksum([client.load()[1]])
