"""What the rank runs on, as the script's framework sees it."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from _scaling_probe import tensorflow_hooks

# Modules whose version is recorded if the script has imported them.
VERSIONED = (
    *("torch", "tensorflow", "keras", "jax", "mxnet", "numpy", "horovod", "lightning", "pytorch_lightning"),
    *("transformers", "accelerate", "deepspeed", "megatron"),
)
HOROVODS = ("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras", "horovod.mxnet")


def interpreter_seconds() -> dict[str, float]:
    """Return {"interpreter": seconds since this process started}, to 10 ms; empty if Linux does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # Field 22 of proc(5), in clock ticks since boot; counted after the name, which may contain anything.
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return {}
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return {"interpreter": round(passed, 6)} if passed >= 0 else {}


def start(parameters: Iterable[Any] | None, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the `start` event that only the script's process knows.

    Args:
        parameters: Tensors that the optimiser updates; None: unknown.
        told: What the supervisor knows.
    """
    world, library = world_size()
    tensors = None if parameters is None else [p for p in parameters if p.requires_grad]
    torch = sys.modules.get("torch")
    known: dict[str, Any] = {
        "world_size": world,
        "communication": library,
        "threads": torch.get_num_threads() if torch else None,
        **_hardware(tensors, told.get("device")),
        "parameters": None if tensors is None else sum(p.numel() for p in tensors),
        "gradient_bytes": None if tensors is None else sum(p.numel() * p.element_size() for p in tensors),
        "versions": _versions(),
    }
    return known


def world_size() -> tuple[int | None, str | None]:
    """Return (number of processes that train together, library that connects them).

    A world of 1 if a library could connect them but none is initialised; None if this cannot be known.
    """
    known = False
    torch = sys.modules.get("torch")
    if torch is not None:
        known = True
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_world_size(), str(distributed.get_backend())
    for name in HOROVODS:
        horovod = sys.modules.get(name)
        if horovod is not None and horovod.is_initialized():
            return horovod.size(), "horovod"
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
        return mpi.COMM_WORLD.Get_size(), "mpi"
    replicas = tensorflow_hooks.replicas()
    if replicas is not None:
        return replicas[0] // replicas[1], "tensorflow"
    jax = sys.modules.get("jax")
    if jax is not None:
        return jax.process_count(), "jax"
    known = known or "tensorflow" in sys.modules
    return (1 if known else None), None


def capturing() -> bool:
    """Return whether a CUDA graph is being captured on the current stream, where synchronising is an error."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def fence(parameters: Iterable[Any] | None) -> Callable[[], bool]:
    """Return a function that waits for the device and returns whether there is anything to wait for."""
    device = _device(parameters)
    torch = sys.modules.get("torch")
    if torch is not None and device is not None and device.type == "cuda":

        def synchronize() -> bool:
            torch.cuda.synchronize(device)
            return True

        return synchronize
    jax = sys.modules.get("jax")
    if jax is not None and torch is None:

        def wait_for_arrays() -> bool:
            jax.block_until_ready(jax.live_arrays())
            return True

        return wait_for_arrays
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and torch is None and tensorflow.config.list_logical_devices("GPU"):

        def sync_devices() -> bool:
            tensorflow.test.experimental.sync_devices()
            return True

        return sync_devices
    mxnet = sys.modules.get("mxnet")
    if mxnet is not None and torch is None:

        def waitall() -> bool:
            mxnet.nd.waitall()
            return True

        return waitall
    return lambda: False


def _device(parameters: Iterable[Any] | None) -> Any:
    """The torch.device of the first tensor; without tensors, as where a step is named, the GPU in use, if any."""
    for tensor in parameters or ():
        return tensor.device
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return None


def _hardware(tensors: Iterable[Any] | None, told: str | None) -> dict[str, str | None]:
    """Return device, device_name and device_id of the `start` event.

    Args:
        tensors: As of `start`.
        told: The device that the run asks for, which holds where the script's framework does not say.
    """
    device, torch = _device(tensors), sys.modules.get("torch")
    if torch is not None and device is not None and device.type == "cuda":
        return {
            "device": "cuda",
            "device_name": torch.cuda.get_device_name(device),
            "device_id": _gpu_uuid(torch, device),
        }
    jax = sys.modules.get("jax")
    if jax is not None and torch is None and jax.default_backend() == "gpu":
        return {"device": "cuda", "device_name": jax.local_devices()[0].device_kind, "device_id": None}
    return {
        "device": told if device is None else "cpu",
        "device_name": None if device is None and told == "cuda" else _processor(),
        "device_id": None,
    }


def _gpu_uuid(torch: Any, device: Any) -> str | None:
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            match = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else "CPU"


def tensors_of(optimizer: Any) -> list[Any]:
    """The tensors that an optimiser of PyTorch updates."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]
