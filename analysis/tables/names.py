"""What a framework with a strategy is called, everywhere: 'PyTorch DDP'."""

from __future__ import annotations

from harness.core.spec import EMULATED
from harness.core.strategies import info

# Official spellings; other names appear as configured.
FRAMEWORK_NAMES = {
    "pytorch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "mxnet": "MXNet",
    "jax": "JAX",
    EMULATED: "Emulated",
}


def framework_name(framework: str) -> str:
    return FRAMEWORK_NAMES.get(framework, framework)


def training_name(framework: str, strategy: str, separator: str = " ") -> str:
    """Return 'PyTorch DDP' for pytorch and allreduce."""
    return f"{framework_name(framework)}{separator}{info(strategy).label_in(framework)}"
