"""TensorFlow's view of the machine, and the resources it may use."""

from __future__ import annotations

from importlib import metadata
from typing import Dict, List

import numpy as np
import tensorflow as tf

from harness.core.gpu_types import Build
from harness.core.spec import RunSpec
from harness.worker.checks import capability
from harness.worker.record import capture


def versions() -> Dict[str, str]:
    """Return the versions of TensorFlow and of what it was built with; "cuda" does not imply a GPU."""
    build = tf.sysconfig.get_build_info()
    found = {"tensorflow": str(tf.__version__), "keras": metadata.version("keras"), "numpy": np.__version__}
    if build["is_cuda_build"]:
        found["cuda"], found["cudnn"] = str(build["cuda_version"]), str(build["cudnn_version"])
    return found


def build() -> Build:
    """Return what this TensorFlow was built for; works without a GPU."""
    told = tf.sysconfig.get_build_info()
    name = f"tensorflow {tf.__version__}"
    if not told["is_cuda_build"]:
        return Build(name)
    architectures = tuple(map(str, told.get("cuda_compute_capabilities", ())))
    return Build(name, str(told["cuda_version"]), str(told["cudnn_version"]), architectures)


def gpus() -> List[str]:
    """Return the names of the GPUs that TensorFlow can use here."""
    return [_name(device) for device in tf.config.list_physical_devices("GPU")]


def configure(spec: RunSpec) -> None:
    """Configure TensorFlow before its first use. Raises GpuError if the requested GPU is not visible, has no kernels in
    this build or only emulates the precision; there is no fallback."""
    tf.config.threading.set_intra_op_parallelism_threads(spec.cluster.cpus_per_gpu)
    if spec.deterministic:  # irreversible in this process
        tf.keras.utils.set_random_seed(spec.seed)  # without seeds, TensorFlow then refuses random numbers
        tf.config.experimental.enable_op_determinism()
    found = tf.config.list_physical_devices("GPU")
    if spec.cluster.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        # With more, two operations would run concurrently, each with all of the rank's threads. Operations that wait
        # for other ranks (collectives, Horovod) use their own threads, so one suffices.
        tf.config.threading.set_inter_op_parallelism_threads(1)
        return
    if not found:
        raise capability.no_gpu(build(), spec.environment)
    details = tf.config.experimental.get_device_details(found[0])
    capability.check(build(), spec.environment, spec.precision, _name(found[0]), details.get("compute_capability"))
    # The launcher makes one GPU visible to each rank.
    tf.config.set_visible_devices(found[0], "GPU")
    tf.config.experimental.set_memory_growth(found[0], True)
    # fp32 excludes TF32, a precision of its own that V100s lack.
    tf.config.experimental.enable_tensor_float_32_execution(spec.precision == "tf32")


def device_name(spec: RunSpec) -> str:
    if spec.cluster.device == "cpu":
        return capture.cpu_model() or "CPU"
    return _name(tf.config.get_visible_devices("GPU")[0])


def _name(device: tf.config.PhysicalDevice) -> str:
    return str(tf.config.experimental.get_device_details(device).get("device_name", device.name))
