"""PyTorch half: synchronous strategies against one process with the global batch, on a network without BatchNorm, whose
running statistics would depend on a rank's own samples."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
from builders import SYNTHETIC, make_site, make_spec
from noise import flat

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec, Placement, RunSpec
from harness.worker.data.readers import open_dataset
from harness.worker.data.stream import training_batches
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter

BATCH, STEPS = 4, 4
Case = Tuple[str, Dict[str, Any]]


def against_one_process(nodes: int, per_node: int, cases: List[Case], mpirun: bool = False) -> List[Dict[str, Any]]:
    """Return, for each strategy with its options on nodes x per_node ranks, the distance of the weights and of the
    first gradients from those of one process, relative to how far that moved and to the norm of its first gradients."""
    ranks = nodes * per_node
    ports = [own_port() for _ in cases]
    with tempfile.TemporaryDirectory() as folder:
        arguments = (nodes, per_node, cases, ports, folder)
        if mpirun:
            _by_mpirun(ranks, arguments)
        else:
            _forked(ranks, arguments)
        # After forking, since this starts threads.
        start, reference, gradients = trained(
            "plain", {}, Placement(1, 1), Rendezvous(0, 1, 0, 1, "127.0.0.1", 1), ranks
        )
        moved = np.linalg.norm(reference - start)
        said = []
        for number in range(len(cases)):
            found = [np.load(Path(folder) / f"case{number}.rank{rank}.npz") for rank in range(ranks)]
            said.append(
                {
                    "started_equal": all(np.array_equal(one["start"], start) for one in found),
                    "apart": max(float(np.linalg.norm(one["weights"] - reference) / moved) for one in found),
                    "gradients_apart": max(
                        float(np.linalg.norm(one["gradients"] - gradients) / np.linalg.norm(gradients)) for one in found
                    ),
                }
            )
    return said


def one_rank(nodes: int, per_node: int, cases: List[Case], ports: List[int], folder: str, rank: int) -> None:
    """Run all cases in one process, to load torch only once."""
    for number, (strategy, options) in enumerate(cases):
        place = Rendezvous(rank, nodes * per_node, rank % per_node, per_node, "127.0.0.1", ports[number])
        start, weights, gradients = trained(strategy, options, Placement(nodes, per_node), place, nodes * per_node)
        file = Path(folder) / f"case{number}.rank{rank}.npz"
        np.savez(file, start=start, weights=weights, gradients=gradients)


def trained(
    strategy: str, options: Dict[str, Any], placement: Placement, rendezvous: Rendezvous, share: int
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (weights before, weights after STEPS steps, gradients of the first step), each flattened. share: a step
    has BATCH samples for each of so many ranks, whoever processes them."""
    spec = _spec(strategy, options, placement, BATCH * share)
    train, _ = open_dataset(spec.dataset, None, spec.seed)
    share_of = (spec.global_batch, rendezvous.rank, rendezvous.world_size)
    batches = training_batches(train, spec.dataset, *share_of, spec.seed)
    adapter = Adapter(spec, make_site(), rendezvous, batches)
    start = flat(adapter.weights())
    adapter.step()
    gradients = flat(adapter.gradients()) if strategy != "local_sgd" else _mean_of_ranks(adapter)
    for _ in range(STEPS - 1):
        adapter.step()
    weights = flat(adapter.weights())
    adapter.allreduce_sum([0.0])
    adapter.close()
    batches.close()
    return start, weights, gradients


def _mean_of_ranks(adapter: Adapter) -> np.ndarray:
    """Average the weights after steps with each rank's own gradients."""
    import torch

    own = torch.from_numpy(flat(adapter.gradients()).copy())
    adapter.strategy.sum(own)
    return (own / adapter.strategy.world_size).numpy()


def _spec(strategy: str, options: Dict[str, Any], placement: Placement, global_batch: int) -> RunSpec:
    return make_spec(
        model="cnn_small",
        dataset=SYNTHETIC,
        strategy=strategy,
        strategy_options=options,
        gpus=placement.world_size,
        placement=placement,
        global_batch=global_batch,
        batch_per_gpu=global_batch // placement.world_size,
        # Momentum, weight decay and learning rate rule as in a study, so that omitting one would show.
        optimizer=OptimizerSpec(lr=0.01, momentum=0.9, weight_decay=0.01, lr_rule="linear", lr_batch=BATCH),
    )


def _forked(ranks: int, arguments: Tuple[Any, ...]) -> None:
    """Fork ranks, which need not load torch again."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                one_rank(*arguments, rank)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert not any(codes), codes


def _by_mpirun(ranks: int, arguments: Tuple[Any, ...]) -> None:
    program = (
        "import ast, os, sys, traceback, global_batch_side as side\n"
        "try:\n"
        "    side.one_rank(*ast.literal_eval(sys.argv[1]), int(os.environ['OMPI_COMM_WORLD_RANK']))\n"
        "except BaseException:\n"
        "    traceback.print_exc()\n"
        "    os._exit(1)\n"
    )
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    options = ["--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    command = [mpirun, *options, "-n", str(ranks), sys.executable, "-c", program, repr(arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=500)
