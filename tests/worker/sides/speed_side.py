"""PyTorch half: options that speed up a step."""

from __future__ import annotations

import inspect
import itertools
import os
from typing import Any, Dict, List, Optional

import numpy as np
import torch
from builders import make_site, make_spec
from noise import flat
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from harness.core.determinism import VARIABLES
from harness.core.rendezvous import Rendezvous
from harness.core.spec import ClusterSpec, OptimizerSpec
from harness.worker.checks import capability
from harness.worker.checks.capability import VersionError
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch import device
from harness.worker.pytorch.adapter import Adapter
from harness.worker.pytorch.optimizers import Lookahead
from harness.worker.pytorch.strategies.allreduce import buckets

BATCH = 4
SETTINGS = {
    "sgd": {"nesterov": True},
    "adam": {"name": "adam", "momentum": 0.0},
    "lars": {"name": "lars"},
}


class Waits(TorchDispatchMode):
    """Counts values read from tensors into Python, each of which waits for a GPU; except from tensors that the
    optimiser keeps on the host."""

    def __init__(self, on_host: List[torch.Tensor]) -> None:
        super().__init__()
        self.on_host, self.count, self.fused = {id(tensor) for tensor in on_host}, 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and id(args[0]) not in self.on_host:
            self.count += 1
        self.fused |= "_fused_" in func.name()
        return func(*args, **(kwargs or {}))


def adapter(
    optimizer: str = "sgd",
    precision: str = "fp32",
    options: Optional[Dict[str, Any]] = None,
    device: str = "cpu",
    smoothing: float = 0.0,
    slow: bool = False,
    deterministic: bool = False,
    model: str = "resnet20",
) -> Adapter:
    """slow: with slow weights, and larger steps for some."""
    beside = {"lr_end_samples": 64, "norm_bias_factor": 4.0, "lookahead_steps": 3, "lookahead_decay": 0.5}
    spec = make_spec(
        model=model,
        framework_options={"compile": False, "channels_last": True, **(options or {})},
        strategy="plain",
        strategy_options={},
        gpus=1,
        global_batch=BATCH,
        batch_per_gpu=BATCH,
        precision=precision,
        cluster=ClusterSpec("local", device, 1),
        # Small steps: each amplifies rounding.
        optimizer=OptimizerSpec(
            lr=0.001,
            lr_rule="constant",
            label_smoothing=smoothing,
            **SETTINGS[optimizer],
            **(beside if slow else {}),
        ),
        deterministic=deterministic,
    )
    rng = np.random.default_rng(0)
    batches = [(rng.integers(0, 256, (BATCH, 32, 32, 3), np.uint8), rng.integers(0, 10, BATCH)) for _ in range(4)]
    return Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", 0), itertools.cycle(batches))


def weights_after(steps: int, **changes: Any) -> np.ndarray:
    trained = adapter(**changes)
    for _ in range(steps):
        trained.step()
    return flat(trained.weights())


def waits(optimizer: str, precision: str, fused: bool, slow: bool = False) -> int:
    """Return the reads in a training step other than the first, whose gradients are inspected; with slow weights in the
    third, which updates them."""
    trained = adapter(optimizer, precision, {"fused": fused}, slow=slow)
    for _ in range(2 if slow else 1):
        trained.step()
    # Adam, if not fused, counts its steps on the host.
    counters = [state["step"] for state in trained.optimizer.state.values() if "step" in state]
    with Waits([] if fused else counters) as counted:
        trained.step()
    assert counted.fused == fused
    return counted.count


def on_this_machine() -> Dict[str, Any]:
    start = flat(adapter().weights())
    apart = {}
    for optimizer in ("sgd", "adam"):
        own = weights_after(4, optimizer=optimizer)
        fused = weights_after(4, optimizer=optimizer, options={"fused": True})
        apart[optimizer] = float(np.linalg.norm(fused - own) / np.linalg.norm(own - start))
    return {
        "waits": {
            **{
                f"{name} {precision}{' fused' * fused}": waits(name, precision, fused)
                for name, precision, fused in (
                    *(("sgd", "fp32", False), ("sgd", "fp32", True), ("adam", "fp32", True), ("lars", "fp32", False)),
                    *(("sgd", "bf16", False), ("sgd", "fp16", False), ("sgd", "fp16", True), ("adam", "fp16", True)),
                )
            },
            "slow weights": waits("sgd", "fp32", True, slow=True),
        },
        "fused_apart": apart,
        "smoothed": smoothed(),
        "onednn": torch.backends.mkldnn.is_available(),
        "ddp": {name: ddp(options) for name, options in DDP.items() if name != "small" or first_bucket()},
        "older torch": older_torch(),
        "fallbacks": fallbacks(),
    }


def smoothed() -> List[float]:
    """Return the loss of a step with label smoothing 0.2, and its formula."""
    trained = adapter(smoothing=0.2)
    images, labels = trained.to_device(*next(trained.batches))
    with torch.no_grad():
        logs = torch.log_softmax(trained.network(images), 1)
    expected = -(0.8 * logs[torch.arange(BATCH), labels] + 0.2 * logs.mean(1)).mean()
    trained.train((images, labels), synchronise=True)
    return [trained.loss(), float(expected)]


DDP: Dict[str, Dict[str, Any]] = {
    "default": {"bucket_mb": None},
    "small": {"bucket_mb": 0.2, "first_bucket_mb": 0.01},
    "static": {"bucket_mb": None, "bucket_view": False, "static_graph": True},
}


def first_bucket() -> bool:
    """Return whether this torch has an argument for the first bucket's size."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


def older_torch() -> str:
    """Return the message for first_bucket_mb with a torch that lacks its argument."""
    try:
        buckets({"bucket_mb": None, "first_bucket_mb": 0.2}, known=("bucket_cap_mb", "gradient_as_bucket_view"))
    except VersionError as error:
        return str(error)
    return ""


def ddp(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return DistributedDataParallel's own report after some steps, including unsynchronised ones."""
    one = {"gpus": 1, "global_batch": BATCH, "batch_per_gpu": BATCH}
    spec = make_spec(strategy_options=options, model="resnet20", **one)
    batch = np.zeros((BATCH, 32, 32, 3), np.uint8), np.zeros(BATCH, np.int64)
    trained = Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port()), itertools.repeat(batch))
    for take in (trained.step, trained.step, trained.step_without_sync, trained.step):
        take()
    said = trained.strategy.wrapped._get_ddp_logging_data()
    trained.close()
    return {
        "buckets": [int(size) for size in said["rebuilt_bucket_sizes"].split(",")],
        "view": bool(said["gradient_as_bucket_view"]),
        "static": bool(trained.strategy.wrapped.static_graph),
        "gradient_bytes": trained.facts()["gradient_bytes"],
    }


def fallbacks() -> List[List[str]]:
    """Return the fallbacks before anything was compiled, and after a function that cannot be compiled completely."""
    from harness.worker.pytorch import compiling

    before = compiling.fallbacks()

    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    torch.compile(breaks, backend="eager")(torch.ones(2))
    return [before, compiling.fallbacks()]


def deterministic() -> Dict[str, Any]:
    """Return whether PyTorch is deterministic in three runs of this process, and whether the two deterministic ones
    agree."""
    enabled, weights = [], []
    for asked in (False, True, True):
        trained = adapter(deterministic=asked)
        enabled.append(torch.are_deterministic_algorithms_enabled())
        for _ in range(3):
            trained.step()
        weights.append(flat(trained.weights()))
    return {"enabled": enabled, "equal": bool(np.array_equal(weights[1], weights[2]))}


def loss_scaling(optimizer: str) -> Dict[str, Any]:
    """precision=fp16 with a fused optimiser, from a scale that is too large: steps are skipped until gradients are
    finite. What a CUDA graph of the step would read and write must not move in memory."""
    trained = adapter(optimizer, "fp16", {"fused": True}, model="cnn_small")
    before = flat(trained.weights())
    trained.scaler._init_scale = 2.0**22
    moved, scales, places = [], [], []
    for _ in range(20):
        trained.step()
        after = flat(trained.weights())
        moved.append(not np.array_equal(before, after))
        before = after
        scales.append(trained.scaler.get_scale())
        state = [t for of in trained.optimizer.state.values() for t in of.values()]
        places.append([t.data_ptr() for t in (*trained.parameters, *state, *scaler_state(trained))])
    counters = {float(of["step"]) for of in trained.optimizer.state.values() if "step" in of}
    return {
        "moved": moved,
        "scales": scales,
        "finite": bool(np.isfinite(before).all()),
        "in_place": all(place == places[0] for place in places[1:]),
        "counters": sorted(counters),
    }


def scaler_state(trained: Adapter) -> List[torch.Tensor]:
    scale, tracker = trained.scaler._scale, trained.scaler._growth_tracker
    assert scale is not None
    assert tracker is not None
    return [scale, tracker]


def closing() -> Dict[str, Any]:
    """Return the order in which an adapter with CUDA graphs closes, with stand-ins for what needs a GPU."""
    from harness.worker.pytorch import graphs

    class Graph:
        def reset(self) -> None:
            done.append("reset")

    done: List[str] = []
    trained = adapter()
    trained.step()
    made = object.__new__(graphs.Graphs)  # its constructor makes a CUDA stream
    batch = trained.to_device(*next(trained.batches))
    gradients = [p.grad for p in trained.parameters]
    made.captured = {kind: graphs.Captured(Graph(), batch, torch.zeros(()), gradients) for kind in (True, False)}
    made.last = made.captured[True]
    trained.graphs, trained.strategy.close = made, lambda: done.append("left")
    synchronize, torch.cuda.synchronize = torch.cuda.synchronize, lambda *_: done.append("synchronised")
    try:
        trained.close()
    finally:
        torch.cuda.synchronize = synchronize
    kept = [made.last, trained.last_loss, *(p.grad for p in trained.parameters), *made.captured]
    return {"done": done, "released": all(one is None for one in kept)}


def tuned() -> float:
    """Return the distance of weights after two steps with torch.compile's autotuning from those without it, relative to
    how far they moved."""
    start = flat(adapter().weights())
    own = weights_after(2)
    compiled = weights_after(2, options={"compile": True, "compile_mode": "max-autotune-no-cudagraphs"})
    return float(np.linalg.norm(compiled - own) / np.linalg.norm(own - start))


def modes() -> List[str]:
    """Return the modes of torch.compile."""
    from torch._inductor import list_mode_options

    return list(list_mode_options())


def foreach_lookahead() -> List[bool]:
    """Return, for each share, whether slow weights and the weights that continue from them equal, bit for bit, those
    computed one tensor at a time."""
    generator = torch.Generator().manual_seed(0)

    def arrays() -> List[torch.Tensor]:
        made = [torch.randn(size, generator=generator) for size in ((5,), (8, 3, 3, 3), (129,))]
        made.append(made[1].contiguous(memory_format=torch.channels_last))
        return [*made, *(tensor.half() for tensor in made)]

    fast, same = arrays(), []
    slow, theirs = [tensor.clone() for tensor in fast], [tensor.clone() for tensor in fast]
    lookahead = Lookahead(fast)
    for share in (0.0, 0.3, 0.5, 0.774, 1.0):
        for ours, own, trained in zip(fast, theirs, arrays()):
            ours.copy_(trained)
            own.copy_(trained)
        lookahead.step(share)
        for kept, own in zip(slow, theirs):
            kept.lerp_(own, 1 - share)
            own.copy_(kept)
        same.append(all(map(torch.equal, fast, theirs)) and all(map(torch.equal, lookahead.slow, slow)))
    return same


def deterministic_compile() -> List[Optional[str]]:
    """Return this torch's version, and why it has no deterministic torch.compile."""
    asked = make_spec(framework_options={"compile": True}, deterministic=True)
    try:
        device.of(asked)
    except capability.VersionError as error:
        return [torch.__version__, str(error)]
    return [torch.__version__, None]


def on_a_gpu() -> Dict[str, Any]:
    """Compare deterministic steps of a CUDA graph with the same steps without, and run steps under CUDA's sync debug
    mode; returns nothing without a GPU.

    Else cuDNN may choose other algorithms for the second network: on an H200 up to 2e-3 apart in fp32.
    """
    if not torch.cuda.is_available():
        return {}
    os.environ.update(VARIABLES["pytorch"])
    graph, fused = {"cuda_graph": True, "fused": True}, {"fused": True}
    start = flat(adapter(device="cuda").weights())
    apart = {}
    for optimizer, precision, slow in (
        *(("sgd", "fp32", False), ("sgd", "fp32", True), ("sgd", "fp16", False), ("adam", "fp16", False)),
    ):
        same = {"optimizer": optimizer, "precision": precision, "device": "cuda", "slow": slow, "deterministic": True}
        own = weights_after(16, options=fused, **same)
        captured = weights_after(16, options=graph, **same)
        apart[f"{optimizer} {precision} slow weights {slow}"] = float(
            np.linalg.norm(captured - own) / np.linalg.norm(own - start)
        )
    half = {"optimizer": "sgd", "precision": "fp16", "device": "cuda", "deterministic": True}
    own, captured = (weights_after(16, options={**kind, "half_weights": True}, **half) for kind in (fused, graph))
    apart["half weights"] = float(np.linalg.norm(captured - own) / np.linalg.norm(own - start))
    torch.use_deterministic_algorithms(False)
    trained = adapter(device="cuda")
    trained.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trained.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return apart
