"""Framework halves of tests/worker/checks/test_capability.py. There is no GPU: what framework and driver would report
about one, and about a CUDA build, is replaced; everything else is the real code."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest.mock import patch

from builders import make_spec

from harness.core.spec import ClusterSpec
from harness.worker.checks.capability import GpuError

V100 = "Tesla V100-SXM2-16GB"


def told(framework: str, capability: List[int], build: Optional[Dict[str, Any]], precision: str) -> str:
    """Return the message with which a rank on a GPU of this capability fails, or 'accepted'. build: cuda, cudnn and
    architectures of the framework's build; None if there is no GPU."""
    spec = make_spec(
        framework=framework,
        environment="tensorflow" if framework == "keras" else framework,
        precision=precision,
        cluster=ClusterSpec(name="local", device="cuda", cpus_per_gpu=1),
    )
    begins = {"pytorch": _torch, "tensorflow": _tensorflow, "keras": _tensorflow, "jax": _jax, "mxnet": _mxnet}
    importlib.import_module(f"harness.worker.{framework}")
    try:
        begins[framework](spec, tuple(capability), build)
    except GpuError as error:
        return str(error)
    return "accepted"


def build_of(framework: str) -> Dict[str, Any]:
    """Return what the environment's framework reports about its build."""
    return dict(vars(importlib.import_module(f"harness.worker.{framework}").build()))


def _torch(spec: Any, capability: Any, build: Any) -> None:
    import torch

    from harness.worker.pytorch import device

    if build is None:
        device.of(spec)
        return
    with (
        patch.multiple(
            torch.cuda,
            is_available=lambda: True,
            set_device=lambda _: None,
            get_device_capability=lambda _: capability,
            get_device_name=lambda _: V100,
        ),
        patch.object(torch.version, "cuda", build["cuda"]),
        patch.object(torch._C, "_cuda_getArchFlags", lambda: " ".join(build["architectures"]), create=True),
        patch.multiple(torch.backends.cudnn, is_available=lambda: True, version=lambda: build["cudnn"]),
    ):
        device.of(spec)


def _tensorflow(spec: Any, capability: Any, build: Any) -> None:
    import tensorflow as tf

    from harness.worker.tensorflow import machine

    if build is None:
        machine.configure(spec)
        return
    info = {"is_cuda_build": True, "cuda_version": build["cuda"], "cudnn_version": build["cudnn"]}
    info["cuda_compute_capabilities"] = build["architectures"]
    with patch.object(tf.config, "list_physical_devices", lambda _: [SimpleNamespace(name="/physical_device:GPU:0")]):
        details = {"device_name": V100, "compute_capability": capability}
        with (
            patch.object(tf.config.experimental, "get_device_details", lambda _: details),
            patch.object(tf.sysconfig, "get_build_info", lambda: info),
            patch.object(tf.config, "set_visible_devices", lambda *_: None),
            patch.object(tf.config.experimental, "set_memory_growth", lambda *_: None),
        ):
            machine.configure(spec)


def _jax(spec: Any, capability: Any, build: Any) -> None:
    import jax

    from harness.worker.jax import adapter

    if build is None:
        adapter._device(spec)
        return
    found = SimpleNamespace(device_kind=V100, compute_capability="{}.{}".format(*capability))
    plugin = f"jax-cuda{build['cuda']}-plugin"
    with (
        patch.object(jax, "local_devices", lambda backend: [found]),
        patch.object(adapter, "_installed", lambda package: package == plugin),
        patch.object(adapter, "versions", lambda: {"cudnn": build["cudnn"]}),
    ):
        adapter._device(spec)


def _mxnet(spec: Any, capability: Any, build: Any) -> None:
    import mxnet as mx

    from harness.worker.mxnet import machine

    if build is None:
        machine.context(spec)
        return
    features = SimpleNamespace(is_enabled=lambda name: name == "CUDA")
    with (
        patch.multiple(machine, _count=lambda: 1, gpu_name=lambda: V100, _cuda_version=lambda: build["cuda"]),
        patch.object(machine.nvml, "find", lambda _: SimpleNamespace(capability=capability)),
        patch.object(mx.runtime, "Features", lambda: features),
    ):
        machine.context(spec)
