"""Framework half: ranks of any framework that train together on virtual nodes."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import forks
import numpy as np
from builders import make_site, make_spec
from noise import batches, flat

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec, Placement
from harness.worker.distributed.exchange import own_port

BATCH = 8
ENVIRONMENTS = {"keras": "tensorflow"}
FRAMEWORK_OPTIONS: Dict[str, Dict[str, Any]] = {
    "pytorch": {"compile": False, "channels_last": True},
    "tensorflow": {"jit_compile": False},
    "keras": {"jit_compile": False},
}
Case = Tuple[str, Dict[str, Any]]


def trained(framework: str, nodes: int, per_node: int, case: Case, steps: int) -> Dict[str, Any]:
    """Return the state of nodes x per_node ranks after so many steps with (strategy, options). "cut" in the options:
    after so many steps they save and exit, and new processes resume."""
    strategy, options = case
    cut = options.get("cut", 0)
    case = strategy, {name: value for name, value in options.items() if name != "cut"}
    with tempfile.TemporaryDirectory() as folder:
        if cut:
            _processes(framework, nodes, per_node, case, folder, 0, cut)
        _processes(framework, nodes, per_node, case, folder, cut, steps)
        ranks = nodes * per_node
        arrays = [dict(np.load(Path(folder) / f"rank{rank}.npz")) for rank in range(ranks)]
        facts = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return {"arrays": arrays, "facts": facts}


def compare(framework: str, nodes: int, per_node: int, cases: Sequence[Case], steps: int) -> List[Dict[str, Any]]:
    """Compare each case with the first: distance of the weights and of the last step's gradients, relative to how far
    the first one's weights moved and to the norm of its gradient."""
    found = [trained(framework, nodes, per_node, case, steps) for case in cases]
    reference = found[0]["arrays"][0]
    moved = float(np.linalg.norm(reference["weights"] - reference["start"]))
    said = []
    for one in found:
        arrays = one["arrays"]
        said.append(
            {
                "apart": max(float(np.linalg.norm(a["weights"] - reference["weights"])) / moved for a in arrays),
                "gradients": max(_relative(a["gradients"], reference["gradients"]) for a in arrays),
                "moved": moved,
                **agreement(arrays),
                "facts": one["facts"],
            }
        )
    return said


def agreement(arrays: Sequence[Dict[str, np.ndarray]]) -> Dict[str, Any]:
    first = arrays[0]
    return {
        "same_weights": [bool(np.array_equal(a["weights"], first["weights"])) for a in arrays],
        "same_scored": all(np.array_equal(a["scored"], first["scored"]) for a in arrays),
        "same_gradients": all(np.array_equal(a["gradients"], first["gradients"]) for a in arrays),
        "kept": all(np.array_equal(a["weights"], a["after"]) for a in arrays),
        "apart_without_exchange": not np.array_equal(arrays[-1]["alone"], first["alone"]),
    }


def one_rank(
    framework: str, nodes: int, per_node: int, case: Case, folder: str, first: int, end: int, rank: int, port: int
) -> None:
    ranks, (strategy, options) = nodes * per_node, case
    spec = make_spec(
        framework=framework,
        framework_options=FRAMEWORK_OPTIONS.get(framework, {}),
        environment=ENVIRONMENTS.get(framework, framework),
        # The cheapest to compile.
        model="cnn_small",
        strategy=strategy,
        strategy_options=options,
        gpus=ranks,
        placement=Placement(nodes, per_node),
        global_batch=BATCH * ranks,
        batch_per_gpu=BATCH,
        # Small steps: on noise, large ones amplify rounding. With a ramp and a weight decay whose absence would show.
        optimizer=OptimizerSpec(lr=0.002, weight_decay=0.01, lr_batch=BATCH, warmup_steps=3),
    )
    place = Rendezvous(rank, ranks, rank % per_node, per_node, "127.0.0.1", port)
    adapter = importlib.import_module(f"harness.worker.{framework}").Adapter(
        spec, make_site(timeout_seconds=120.0), place, batches(rank, BATCH, first)
    )
    adapter.wants_gradients = True
    answer = {"start": flat(adapter.weights())}
    # As in a resumed run.
    adapter.allreduce_sum([0.0])
    if first:
        adapter.load(Path(folder))
    for _ in range(first, end):
        adapter.step()
    answer["gradients"] = flat(adapter.gradients())
    adapter.allreduce_sum([0.0])
    adapter.save(Path(folder))
    adapter.allreduce_sum([0.0])
    answer["weights"] = flat(adapter.weights())
    facts = {
        "updates": adapter.updates(),
        "world_size": adapter.facts()["world_size"],
        "communication": adapter.facts()["communication"],
        # Whole numbers up to 2^24 are exact.
        "totals": adapter.allreduce_sum([1.0, 2.0**24 - ranks + 1 if rank == ranks - 1 else 1.0])
        + adapter.allreduce_sum([float(rank)]),
    }
    with adapter.evaluation():
        answer["scored"] = flat(adapter.weights())
    answer["after"] = flat(adapter.weights())
    adapter.allreduce(4096)
    adapter.allreduce(4)
    adapter.step_without_sync()
    answer["alone"] = flat(adapter.weights())
    adapter.allreduce_sum([0.0])
    adapter.fence()
    adapter.close()
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(facts))
    sys.stdout.flush()
    os._exit(0)


def _processes(framework: str, nodes: int, per_node: int, case: Case, folder: str, first: int, end: int) -> None:
    port = own_port()
    os.environ["MXNET_KVSTORE_BIGARRAY_BOUND"] = "20000"  # MXNet splits larger arrays over all servers
    same = (framework, nodes, per_node, case, folder, first, end)
    codes = forks.run(one_rank, [(*same, rank, port) for rank in range(nodes * per_node)], 500)
    assert not any(codes), codes


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
