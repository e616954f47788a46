"""The parts of traced steps, from small traces in Chrome's format whose parts follow from their times by hand."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest

TRAINING, WORKER, STREAM, OTHER_STREAM = 100, 200, 7, 20
Event = dict[str, Any]


def event(name: str, begin: float, end: float, cat: str, tid: int = TRAINING) -> Event:
    """Times in milliseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": 1000 * begin, "dur": 1000 * (end - begin)}


def kernel(name: str, begin: float, end: float, tid: int = STREAM, cat: str = "kernel") -> Event:
    return {**event(name, begin, end, cat, tid), "pid": 0}


MARK = event("steps", 10, 60, "user_annotation")
LOADER = event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 10, 14, "user_annotation")
GPU = [
    {"ph": "M", "name": "process_name", "pid": 0, "ts": 0, "args": {"name": "python"}},
    {**MARK, **kernel("steps", 13, 70, cat="gpu_user_annotation")},
    MARK,
    LOADER,
    kernel("before the steps", 0, 9),
    kernel("gemm", 13, 30),
    kernel("gemm", 20, 34, OTHER_STREAM),  # 13 to 34 in all
    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 44, OTHER_STREAM),  # 34 to 44 not covered
    kernel("Memcpy HtoD (Pinned -> Device)", 42, 46, cat="gpu_memcpy"),  # 44 to 46 covered by neither
    kernel("sgd", 48, 70),  # until 60
]
CPU = [
    MARK,
    LOADER,
    event("aten::stack", 11, 13, "cpu_op"),  # part of loading
    event("aten::linear", 15, 25, "cpu_op"),
    event("aten::addmm", 16, 24, "cpu_op"),
    event("aten::linear", 15, 60, "cpu_op", WORKER),  # not the thread that trains
    event("autograd::engine::evaluate_function: AddmmBackward0", 26, 36, "cpu_op"),
    event("c10d::allreduce_", 35, 36, "cpu_op"),
    event("gloo:all_reduce", 30, 50, "user_annotation", WORKER),  # 35 to 50 not covered
    event("Optimizer.step#SGD.step", 51, 59, "user_annotation"),
    event("aten::add_", 52, 58, "cpu_op"),
]


def parts(found: dict[str, float]) -> dict[str, float]:
    return {name: pytest.approx(1000 * seconds) for name, seconds in found.items()}


@pytest.mark.parametrize(
    ("events", "milliseconds"),
    [
        (GPU, {"window": 50, "compute": 33, "exposed_communication": 10, "communication": 14, "copies": 2,
               "data_wait": 3, "idle": 2}),
        (CPU, {"window": 50, "compute": 25, "exposed_communication": 15, "communication": 20, "copies": 0,
               "data_wait": 4, "idle": 6}),
    ],
    ids=["gpu", "cpu"],
)  # fmt: skip
def test_parts_are_those_of_the_times(trace_parts: Any, events: list[Event], milliseconds: dict[str, float]) -> None:
    shuffled = random.Random(0).sample(events, len(events))
    assert parts(trace_parts.parts_of(shuffled, "steps")) == milliseconds


def test_an_operator_that_waits_for_its_message_does_not_compute(trace_parts: Any) -> None:
    """As those of tensor parallelism, and of buckets that are sent after backward."""
    sender = event("_Summed", 26, 50, "cpu_op")
    parts_of_it = [event("aten::div_", 27, 29, "cpu_op"), event("c10d::allreduce_", 29, 30, "cpu_op")]
    message = event("gloo:all_reduce", 29, 48, "user_annotation", WORKER)
    after = event("aten::add_", 48, 49, "cpu_op")
    found = trace_parts.parts_of([MARK, sender, *parts_of_it, message, after], "steps")
    # 26 to 29 and 48 to 50 compute, whether in an operator of its own or not; 29 to 48 is waited for.
    assert found["compute"] == pytest.approx(0.005)
    assert found["exposed_communication"] == found["communication"] == pytest.approx(0.019)
    # What it does before it sends hides an earlier message, as does an operator that it calls afterwards.
    earlier = event("gloo:all_reduce", 20, 48, "user_annotation", WORKER)
    between = event("aten::bmm", 35, 39, "cpu_op")
    found = trace_parts.parts_of([MARK, sender, *parts_of_it, between, earlier, after], "steps")
    assert found["exposed_communication"] == pytest.approx(0.028 - 0.003 - 0.004)
    # One that sends nothing computes all the time, and hides messages.
    found = trace_parts.parts_of([MARK, sender, parts_of_it[0], message, after], "steps")
    assert (found["compute"], found["exposed_communication"]) == (pytest.approx(0.024), 0)


def test_waiting_is_known_by_the_name_of_its_range(trace_parts: Any) -> None:
    renamed = [{**each, "name": "data"} if each is LOADER else each for each in CPU]
    assert trace_parts.parts_of(renamed, "steps")["data_wait"] == 0
    assert trace_parts.parts_of(renamed, "steps", waits="data") == trace_parts.parts_of(CPU, "steps")


def test_a_large_trace_is_refused_and_a_damaged_name_is_not(trace_parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps({"traceEvents": CPU}).encode().replace(b"aten::stack", b"aten::\xff")
    per_step = {name: seconds / 2 for name, seconds in trace_parts.parts_of(CPU, "steps").items()}
    assert trace_parts.read_parts(io.BytesIO(content), "steps", 2) == per_step
    monkeypatch.setattr(trace_parts, "MOST_BYTES", len(content) - 1)
    with pytest.raises(ValueError, match="the trace has more than 0 MiB"):
        trace_parts.read_parts(io.BytesIO(content), "steps", 2)


def test_without_a_range_the_kernels_are_the_window(trace_parts: Any) -> None:
    found = trace_parts.parts_of(GPU)
    assert found["window"] == pytest.approx(0.07)
    assert (found["idle"], found["data_wait"]) == (pytest.approx(0.006), 0)


@pytest.mark.parametrize(("events", "marker"), [(GPU, "other"), (CPU, None), ([], None)])
def test_a_trace_without_the_steps_is_refused(trace_parts: Any, events: list[Event], marker: str | None) -> None:
    with pytest.raises(ValueError, match="the trace has no"):
        trace_parts.parts_of(events, marker)


def test_times_are_counted_as_on_a_clock_of_ticks(trace_parts: Any) -> None:
    """Against counting ticks one by one."""
    chance = random.Random(1)
    for _ in range(200):
        one, other = (
            [(begin, begin + chance.randrange(8)) for begin in chance.choices(range(40), k=chance.randrange(9))]
            for _ in range(2)
        )
        ticks, taken = ({tick for begin, end in spans for tick in range(begin, end)} for spans in (one, other))
        first, second = trace_parts.union(one), trace_parts.union(other)
        assert trace_parts.total(first) == len(ticks)
        assert trace_parts.total(trace_parts.minus(first, second)) == len(ticks - taken)
        assert trace_parts.total(trace_parts.within(first, second)) == len(ticks & taken)
