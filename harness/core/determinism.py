"""What deterministic=true asks of the environment of a rank."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.spec import RunSpec

# Environment variables that each rank's process needs before the framework starts, for every framework that offers
# deterministic=true; what else it takes is set by the framework's own code under harness/worker/.
VARIABLES: dict[str, dict[str, str]] = {
    # cuBLAS: fixed workspaces, so that kernels on several streams give the same sums (docs.nvidia.com/cuda/cublas,
    # "Results Reproducibility").
    "pytorch": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "tensorflow": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "keras": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    # cuDNN: deterministic algorithms of convolution and max pooling, chosen without timing them (mxnet.apache.org,
    # "Environment Variables").
    "mxnet": {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        "MXNET_ENFORCE_DETERMINISM": "1",
    },
    # XLA: kernels that add in a fixed order, and no choice by time (openxla.org, "Determinism (GPU)").
    "jax": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
}


def variables(spec: RunSpec) -> Mapping[str, str]:
    """Environment variables of each rank; none unless the run is to be deterministic."""
    return VARIABLES[spec.framework] if spec.deterministic else {}
