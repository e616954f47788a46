"""Where the time of traced steps went, from the events of PyTorch's profiler (Chrome's trace format).

With kernels of a GPU, as Holistic Trace Analysis defines it (`get_temporal_breakdown`, `get_comm_comp_overlap`):
computation is the time in which a kernel computes; communication counts where none computes; idle is what no kernel and
no copy fills. Without kernels, the same of operators on the thread that trains, and of gloo's messages. An
operator that has sent one waits while messages are on their way, unless it calls an operator that does not.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

Span = "tuple[float, float]"
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
RANGE_ON_GPU = "gpu_user_annotation"
COMMUNICATION = ("nccl", "rccl", "hccl", "gloo:", "mpi:", "c10d::", "ucc:")
COPY = ("Memcpy", "Memset", "hipMemcpy", "hipMemset", "CopyDeviceToDevice", "CopyHostToDevice")
LOADER = "enumerate(DataLoader)"
MICROSECOND = 1e-6
# Of a trace: 100,000 operators take about 30 MB.
MOST_BYTES = 400 * 2**20


def read_parts(file: BinaryIO, marker: str, steps: int, waits: str = LOADER) -> dict[str, float]:
    """Return `parts_of` a trace's file, not compressed, per step. Raises ValueError also for one above MOST_BYTES."""
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"the trace has more than {MOST_BYTES >> 20} MiB")
    seconds = parts_of(json.loads(content.decode("utf-8", "replace"))["traceEvents"], marker, waits)
    return {name: value / steps for name, value in seconds.items()}


def parts_of(events: Iterable[Mapping[str, Any]], marker: str | None = None, waits: str = LOADER) -> dict[str, float]:
    """Return seconds: `window`, and the parts that add up to it.

    compute; exposed_communication, not covered by compute; copies, covered by neither; data_wait, for a batch: on a GPU
    only where it is idle otherwise; idle: the rest, and on a CPU also what happens outside of PyTorch's operators.
    `communication` is all of it, covered or not.

    Args:
        events: those of a trace.
        marker: name of the range around the traced steps; None: from the first kernel to the end of the last.
        waits: with what the names of ranges begin in which the thread that trains waits for a batch.

    Raises:
        ValueError: The trace has no such range, or no kernel.
    """
    # The profiler repeats the ranges of the host on the GPU's time line, from their first kernel to their last.
    spans = [e for e in events if e.get("ph") == "X" and e.get("dur") is not None and e.get("cat") != RANGE_ON_GPU]
    around = next((event for event in spans if marker is not None and event.get("name") == marker), None)
    kernels = [event for event in spans if event.get("cat") in ON_GPU]
    if around is None and (marker is not None or not kernels):
        raise ValueError("the trace has no kernels" if marker is None else f"the trace has no range {marker!r}")
    window = union(_times([around] if around is not None else kernels))
    window = [(window[0][0], window[-1][1])]
    thread = None if around is None else (around.get("pid"), around.get("tid"))
    waiting = within(union(_times(e for e in spans if _name(e).startswith(waits) and _thread(e) == thread)), window)
    if kernels:
        return _of_kernels(kernels, window, waiting)
    return _of_operators(spans, window, waiting, thread)


def _of_kernels(kernels: Sequence[Mapping[str, Any]], window: list[Any], waits: list[Any]) -> dict[str, float]:
    kinds: dict[str, list[Any]] = {"compute": [], "communication": [], "copies": []}
    for kernel in kernels:
        kinds[_kind(_name(kernel))].append(kernel)
    compute, messages, copies = (within(union(_times(kinds[kind])), window) for kind in kinds)
    exposed, alone = minus(messages, compute), minus(copies, union([*compute, *messages]))
    idle = minus(window, union([*compute, *messages, *copies]))
    return _seconds(window, compute, exposed, messages, alone, within(waits, idle), minus(idle, waits))


def _of_operators(
    spans: Sequence[Mapping[str, Any]], window: list[Any], waits: list[Any], thread: Any
) -> dict[str, float]:
    own = [event for event in spans if event.get("cat") == "cpu_op" and _thread(event) == thread]
    messages = within(union(_times(event for event in spans if _name(event).startswith(COMMUNICATION))), window)
    calls = union(_times(event for event in own if _name(event).startswith(COMMUNICATION)))
    operators = _times(event for event in own if not _name(event).startswith(COMMUNICATION))
    senders = [each for each in operators if _sent(each, calls) is not None]
    waiting = within(union((_sent(each, calls), each[1]) for each in senders), messages)
    waiting = minus(waiting, union(set(operators).difference(senders)))
    compute = minus(minus(minus(within(union(_times(own)), window), calls), waiting), waits)
    exposed = minus(minus(messages, compute), waits)
    rest = minus(window, union([*compute, *exposed, *waits]))
    return _seconds(window, compute, exposed, messages, [], waits, rest)


def _seconds(*spans: list[Any]) -> dict[str, float]:
    names = ("window", "compute", "exposed_communication", "communication", "copies", "data_wait", "idle")
    return {name: round(total(each) * MICROSECOND, 9) for name, each in zip(names, spans)}


def _sent(span: Any, calls: list[Any]) -> float | None:
    """Return the end of the first of `calls`, as of `union`, that lies within the span; None if none does."""
    first = bisect_left(calls, (span[0], 0.0))
    return calls[first][1] if first < len(calls) and calls[first][1] <= span[1] else None


def _kind(name: str) -> str:
    if name.startswith(COMMUNICATION) or "ncclKernel" in name or "ncclDevKernel" in name:
        return "communication"
    return "copies" if name.startswith(COPY) else "compute"


def _name(event: Mapping[str, Any]) -> str:
    return str(event.get("name", ""))


def _thread(event: Mapping[str, Any]) -> Any:
    return event.get("pid"), event.get("tid")


def _times(events: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [(float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in events]


def union(spans: Iterable[Any]) -> list[Any]:
    """Return the same time as spans in order that do not overlap."""
    merged: list[Any] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def minus(spans: list[Any], taken: list[Any]) -> list[Any]:
    """Return the time of `spans` that is not in `taken`; both as of `union`."""
    left, at = [], 0
    for begin, end in spans:
        while at < len(taken) and taken[at][1] <= begin:
            at += 1
        number = at
        while number < len(taken) and taken[number][0] < end:
            if taken[number][0] > begin:
                left.append((begin, taken[number][0]))
            begin = taken[number][1]
            number += 1
        if begin < end:
            left.append((begin, end))
    return left


def within(spans: list[Any], limits: list[Any]) -> list[Any]:
    """Return the time that is in both."""
    return minus(spans, minus(spans, limits))


def total(spans: Iterable[Any]) -> float:
    return sum(end - begin for begin, end in spans)
