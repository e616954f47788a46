"""The device of a rank in PyTorch, and in which precision it computes."""

from __future__ import annotations

import torch

from harness.spec import RunSpec

# Compute capability of the first GPUs whose tensor cores know them (Ampere). Older ones emulate bf16, and ignore TF32.
TENSOR_CORES_FROM = {"bf16": 8, "tf32": 8}


def of(spec: RunSpec) -> torch.device:
    """Raises RuntimeError where the run asks for a GPU that torch does not see, or for a precision that the GPU only
    emulates: never falls back."""
    if spec.deterministic != torch.are_deterministic_algorithms_enabled():
        # An operation that has no deterministic algorithm raises; torch.compile chooses no kernel by its time.
        torch.use_deterministic_algorithms(spec.deterministic)
    if spec.cluster.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"the run asks for device cuda, but torch {torch.__version__} sees no GPU here; "
            "use a CUDA build of torch on a GPU node, or set cluster.device=cpu"
        )
    # The launcher makes one GPU visible to each rank.
    torch.cuda.set_device(0)
    major, minor = torch.cuda.get_device_capability(0)
    if major < TENSOR_CORES_FROM.get(spec.precision, 0):
        raise RuntimeError(
            f"precision={spec.precision}: {torch.cuda.get_device_name(0)} (compute capability {major}.{minor}) has no "
            f"tensor cores for it, and would be slower with it than without; take fp16, or fp32"
        )
    # cuDNN times its algorithms at the first step of each shape, and keeps the fastest: another one in each process,
    # it may be, whose sums differ in the last bits.
    torch.backends.cudnn.benchmark = not spec.deterministic
    torch.backends.cudnn.deterministic = spec.deterministic
    # fp32 means fp32: TF32 is another precision, and V100s do not have it.
    tf32 = spec.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    return torch.device("cuda", 0)
