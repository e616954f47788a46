"""Environment variables for deterministic=true."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.spec import RunSpec

# Needed in each rank's environment before the framework starts, per framework that supports deterministic=true. The
# rest is set by the framework's own code under harness/worker/.
VARIABLES: dict[str, dict[str, str]] = {
    # cuBLAS: fixed workspaces, so that kernels on several streams produce the same sums (docs.nvidia.com/cuda/cublas,
    # "Results Reproducibility").
    "pytorch": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "tensorflow": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "keras": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    # cuDNN: deterministic convolution and max-pooling algorithms, chosen without benchmarking (mxnet.apache.org,
    # "Environment Variables").
    "mxnet": {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        "MXNET_ENFORCE_DETERMINISM": "1",
    },
    # XLA: kernels with a fixed order of summation, and no autotuning (openxla.org, "Determinism (GPU)").
    "jax": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
}


def variables(spec: RunSpec) -> Mapping[str, str]:
    """Environment variables of each rank; empty unless the run is deterministic."""
    return VARIABLES[spec.framework] if spec.deterministic else {}
