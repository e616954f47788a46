"""Framework half: operands of the roofline probe, and resets of peak memory."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
from builders import make_site, make_spec

from harness.core.events import EventWriter
from harness.core.measuring.protocol import Protocol
from harness.core.rendezvous import Rendezvous
from harness.core.spec import MeasureSpec
from harness.worker import loop
from harness.worker.adapter import Adapter
from harness.worker.checkpoint import Checkpoints
from harness.worker.distributed.exchange import own_port
from harness.worker.record.energy import Meter
from harness.worker.record.recorder import Recorder

OPTIONS = {
    "pytorch": {"compile": False, "channels_last": True},
    "tensorflow": {"jit_compile": False},
    "keras": {"jit_compile": False},
}
ALONE = {"gpus": 1, "global_batch": 2, "batch_per_gpu": 2, "strategy": "plain", "strategy_options": {}}


def adapter(framework: str, batches: Any = (), **changes: Any) -> Adapter:
    package = importlib.import_module(f"harness.worker.{framework}")
    options = OPTIONS.get(framework, {})
    spec = make_spec(framework=framework, environment=framework, framework_options=options, **{**ALONE, **changes})
    made: Adapter = package.Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port()), iter(batches))
    return made


def results(framework: str, precisions: List[str]) -> Dict[str, Dict[str, Any]]:
    """Return, for a product of 64 x 64 matrices and a copy of 4096 numbers, standard deviation, share of distinct
    values, and whether a second call gives the same."""
    found = {}
    for precision in precisions:
        ours = adapter(framework, precision=precision)
        for what, call in (("product", lambda: ours.product(64)), ("copy", lambda: ours.copy(4 * 4096))):  # noqa: B023
            first, again = (_numbers(call()(1)) for _ in range(2))
            found[f"{precision} {what}"] = {
                "shape": list(first.shape),
                "deviation": float(first.std()),
                "distinct": len(np.unique(first)) / first.size,
                "repeatable": bool(np.array_equal(first, again)),
            }
        ours.close()
    return found


def resets(framework: str) -> List[int]:
    """Return after how many of 6 steps, in blocks of 2, the loop resets the peak."""
    measure = MeasureSpec(warmup_steps=2, steps=4, block_steps=2, probe_steps=0, evaluate_samples=0)
    images, labels = np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64)
    ours = adapter(framework, [(images, labels)] * 6, measure=measure)
    seen: List[int] = []
    asked = ours.reset_peak_memory

    def reset() -> None:
        seen.append(ours.samples // 2)
        asked()

    ours.reset_peak_memory = reset  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        log = EventWriter(Path(folder) / "events.rank0.jsonl", 0)
        spec, rendezvous = ours.spec, Rendezvous(0, 1, 0, 1, "127.0.0.1", 0)  # type: ignore[attr-defined]
        saves = Checkpoints(Path(folder), 0, "", spec, 0, log)
        rest = (rendezvous, log, saves, lambda: False, Meter(), Recorder(), loop.Stopwatch())
        assert loop.run(spec, ours, ours.step, Protocol(measure, 0), (), *rest)
        log.close()
    return seen


def _numbers(result: Any) -> np.ndarray:
    if hasattr(result, "asnumpy"):
        return np.asarray(result.asnumpy())
    return np.asarray(result.float() if hasattr(result, "is_cuda") else result, dtype=np.float32)
