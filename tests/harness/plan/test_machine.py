"""The GPUs that this process may use, from nvidia-smi's list and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import MIG, MIG_BEFORE_470, PLAIN, machine_of
from project import Cli

from harness.plan.machine import parse_device_list, select_devices

FIRST, SECOND = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"
DIVIDED, WHOLE = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", "GPU-0e2ba0d6-d33d-2b2c-524d-9e3d8d2b8a78"
PLAN = ("plan_only=true", "dataset=synthetic", "framework.environment=/usr/bin/env", "cluster=local", "gpus=1")


def test_a_divided_gpu_is_listed_as_its_parts() -> None:
    assert [[device.name for device in board] for board in parse_device_list(MIG)] == [[FIRST, SECOND], [WHOLE]]
    assert [device.board for board in parse_device_list(MIG) for device in board] == [DIVIDED, DIVIDED, WHOLE]
    assert len(parse_device_list(PLAIN)) == 2
    old = "MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0"
    assert [device.name for device in parse_device_list(MIG_BEFORE_470)[0]] == [f"{old}/1/0", f"{old}/2/0"]
    assert parse_device_list("No devices found.\n") == []


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (FIRST, [FIRST]),
        (f"{SECOND},{WHOLE}", [SECOND, WHOLE]),
        ("MIG-cba6", [SECOND]),  # a prefix of a UUID suffices
        ("1", [WHOLE]),
        ("0", [FIRST]),  # for a divided GPU CUDA uses the first instance
        (DIVIDED, [FIRST]),
        (f"{WHOLE},MIG-nothing,{FIRST}", [WHOLE]),  # CUDA stops at the first invalid entry
        ("0,-1,1", [FIRST]),
        ("", []),
        ("NoDevFiles", []),
        ("7", []),
    ],
)
def test_cuda_visible_devices_names_whole_gpus_and_parts(visible: str, names: list[str]) -> None:
    assert [device.name for device in select_devices(parse_device_list(MIG), visible)] == names


@pytest.mark.parametrize(("listing", "visible"), [(MIG, FIRST), (MIG, None), (MIG_BEFORE_470, "MIG-GPU-e86cb44c")])
def test_a_mig_device_is_a_gpu_and_not_the_cpu(cli: Cli, tmp_path: Path, listing: str, visible: str | None) -> None:
    here = machine_of(tmp_path, listing, visible)
    for device in ("auto", "cuda"):
        done = cli("harness", *PLAN, f"cluster.device={device}", env=here)
        assert done.returncode == 0, done.stderr
        assert "GPU-hours" in done.stdout, "on the CPU it would be rank-hours"


def test_a_device_that_is_not_listed_is_an_error_and_not_the_cpu(cli: Cli, tmp_path: Path) -> None:
    gone = machine_of(tmp_path, MIG, "MIG-00000000-gone")
    done = cli("harness", *PLAN, env=gone)
    assert done.returncode == 2
    assert "CUDA_VISIBLE_DEVICES=MIG-00000000-gone: 'MIG-00000000-gone' is none of the GPUs" in done.stderr
    for wanted in (("cluster.device=cpu", gone), ("cluster.device=auto", machine_of(tmp_path, MIG, ""))):
        done = cli("harness", *PLAN, wanted[0], env=wanted[1])
        assert done.returncode == 0, done.stderr
        assert "rank-hours" in done.stdout
