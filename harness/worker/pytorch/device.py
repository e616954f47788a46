"""The device of a rank in PyTorch, and in which precision it computes."""

from __future__ import annotations

from typing import Optional

import torch

from harness.core.gpu_types import Build
from harness.core.spec import RunSpec
from harness.worker.checks import capability


def build() -> Build:
    """What this torch was built for. Needs no GPU."""
    name, cuda = f"torch {torch.__version__}", torch.version.cuda
    if cuda is None:
        return Build(name)
    # Not torch.cuda.get_arch_list(): in older releases it is empty where there is no GPU.
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return Build(name, cuda, cudnn_version(number), tuple((flags or "").split()))


def cudnn_version(number: Optional[int]) -> Optional[str]:
    """As cuDNN counts: 91002 -> '9.10.2', and before version 9: 8907 -> '8.9.7'."""
    if number is None:
        return None
    major, rest = divmod(number, 10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def of(spec: RunSpec) -> torch.device:
    """Raises GpuError where the run asks for a GPU that torch does not see or has no kernels for, for a precision
    that the GPU only emulates, and VersionError for what this torch cannot do
    deterministically: never falls back."""
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
    # cuDNN times its algorithms at the first step of each shape, and keeps the fastest: another one in each process,
    # it may be, whose sums differ in the last bits.
    torch.backends.cudnn.benchmark = not spec.deterministic
    torch.backends.cudnn.deterministic = spec.deterministic
    # fp32 means fp32: TF32 is another precision, and V100s do not have it.
    tf32 = spec.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    return torch.device("cuda", 0)


def _hold_to_deterministic_algorithms(compiles: bool) -> None:
    """An operation that has no deterministic algorithm raises from here on."""
    torch.use_deterministic_algorithms(True)
    if not compiles:
        return
    # Loaded only here, since it takes a while.
    from torch._inductor import config

    if not hasattr(config, "deterministic"):
        raise capability.VersionError(
            f"deterministic=true with framework.options.compile=true needs torch 2.10 or newer, and this "
            f"environment has {torch.__version__}, which chooses compiled kernels by their time; take "
            "framework.options.compile=false, or a newer torch"
        )
