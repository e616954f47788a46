"""The device of a rank in PyTorch, and the precision of its computations."""

from __future__ import annotations

from typing import Optional

import torch

from harness.core.gpu_types import Build
from harness.core.spec import RunSpec
from harness.worker.checks import capability


def build() -> Build:
    """Return what this torch was built for; works without a GPU."""
    name, cuda = f"torch {torch.__version__}", torch.version.cuda
    if cuda is None:
        return Build(name)
    # torch.cuda.get_arch_list() is empty in older releases if there is no GPU.
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return Build(name, cuda, cudnn_version(cudnn_number()), tuple((flags or "").split()))


def cudnn_number() -> Optional[int]:
    """Return the number of cuDNN's version; None without cuDNN.

    Beside a GPU that its cuDNN does not support, torch raises instead of telling the version, which is what the
    sentence about that GPU names.
    """
    if not torch.backends.cudnn.is_available():
        return None
    try:
        return torch.backends.cudnn.version()
    except RuntimeError:
        return int(torch._C._cudnn.getVersionInt())


def cudnn_version(number: Optional[int]) -> Optional[str]:
    """Decode cuDNN's version number: 91002 -> '9.10.2', and before version 9: 8907 -> '8.9.7'."""
    if number is None:
        return None
    major, rest = divmod(number, 10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def of(spec: RunSpec) -> torch.device:
    """Configure and return the run's device; there is no fallback.

    Raises GpuError if the requested GPU is not visible, has no kernels in this build or only emulates the precision,
    and VersionError if this torch cannot run it deterministically.
    """
    if spec.deterministic:
        _hold_to_deterministic_algorithms(bool(spec.framework_options.get("compile")))
    if spec.cluster.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise capability.no_gpu(build(), spec.environment)
    # The launcher makes one GPU visible to each rank.
    torch.cuda.set_device(0)
    found = torch.cuda.get_device_capability(0)
    capability.check(build(), spec.environment, spec.precision, torch.cuda.get_device_name(0), found)
    # cuDNN benchmarks its algorithms at the first step of each shape. The fastest may differ between processes, and
    # with it the last bits of sums.
    torch.backends.cudnn.benchmark = not spec.deterministic
    torch.backends.cudnn.deterministic = spec.deterministic
    # fp32 excludes TF32, a precision of its own that V100s lack.
    tf32 = spec.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    return torch.device("cuda", 0)


def _hold_to_deterministic_algorithms(compiles: bool) -> None:
    """Make operations without a deterministic algorithm raise from now on."""
    torch.use_deterministic_algorithms(True)
    if not compiles:
        return
    # Loaded only if needed, since it takes a while.
    from torch._inductor import config

    if not hasattr(config, "deterministic"):
        raise capability.VersionError(
            f"deterministic=true with framework.options.compile=true needs torch 2.10 or newer, and this "
            f"environment has {torch.__version__}, which chooses compiled kernels by their time; take "
            "framework.options.compile=false, or a newer torch"
        )
