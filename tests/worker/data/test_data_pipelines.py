"""Every input pipeline yields the same batches, byte for byte (other halves: tests/worker/sides/pipelines_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment

# Compared parts of batches: two ranks, two first steps, six batches, images and labels, shape and bytes.
COMPARED = 2 * 2 * 6 * 2 * 2


def in_framework(environment: str, function: str, *arguments: Any) -> Any:
    return in_environment(environment, "pipelines_side", function, *arguments)


@pytest.mark.parametrize(
    ("environment", "framework", "kinds"),
    [
        (
            "pytorch",
            "pytorch",
            [
                ("framework", 2, "images"),
                ("framework", 0, "plain"),
                ("framework", 1, "reflected"),
                ("framework", 1, "text"),
                ("device", 0, "images"),
                ("device", 0, "plain"),
                ("device", 0, "reflected"),
                ("device", 0, "text"),
                ("harness", 0, "images"),
            ],
        ),
        (
            "tensorflow",
            "tensorflow",
            [
                *(("framework", 2, "images"), ("framework", 0, "images"), ("framework", 1, "plain")),
                ("framework", 1, "reflected"),
            ],
        ),
        ("mxnet", "mxnet", [("framework", 2, "images"), ("framework", 0, "plain"), ("framework", 0, "reflected")]),
    ],
    ids=["pytorch", "tensorflow", "mxnet"],
)
def test_batches_are_those_in_numpy_byte_for_byte(
    environment: str, framework: str, kinds: list[tuple[str, int, str]]
) -> None:
    found = in_framework(environment, "same_batches", framework, kinds)
    # The harness's own message, although a worker, or TensorFlow, found the error.
    assert found.pop("unreadable") == "image 3 cannot be read; put it back"
    assert found == {f"{pipeline} {workers} {kind}": [COMPARED, True] for pipeline, workers, kind in kinds}


def test_workers_ignore_what_tells_the_rank_to_leave_and_one_that_is_killed_is_said() -> None:
    found = in_framework("pytorch", "killed_worker")
    assert (found["workers"], found["after_signals"]) == (2, 2)
    assert found["said"].startswith("the input pipeline has lost a worker process: ")
    assert "(exit code -9)" in found["said"]
    assert "\n" not in found["said"]
    # torch looks every 5 s.
    assert found["s"] < 20


def test_workers_of_a_killed_rank_end_with_it() -> None:
    assert in_framework("pytorch", "orphans") == ["2 workers"]
