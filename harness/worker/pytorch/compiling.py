"""torch.compile: start it, check its gradients, and report what it left to eager PyTorch."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Sequence

import torch
from torch import nn

# Blocks of fsdp that share code and are compiled, each for its own shapes; PyTorch would leave all after the 8th eager.
BLOCKS = 256
# Reasons listed; further ones are only counted.
TOLD = 3
# Without rounding to fewer bits and without random numbers: norm of the difference of one weight's gradients, relative
# to the eager gradient's. Measured on CPUs: at most 2e-6.
DIFFERENCE = 0.1
# Otherwise: ratio of the norms. Measured on CPUs in bf16: up to 1.7 (ResNet-110, 8 images).
RATIO = 8.0
# Gradients below this share of the norm of all are judged as if they had it: some are rounding only, such as those of a
# bias before BatchNorm.
SMALL = 0.01


class CompileError(RuntimeError):
    """The compiled network has other gradients than the network."""


def compiled(network: nn.Module, mode: str, channels_last: bool) -> Any:
    """Compile a network for training.

    Without channels_last, inductor may not convert convolutions to it: channels_last=false asks for the other layout,
    and up to torch 2.13 the conversion loses the gradients of max pooling (github.com/pytorch/pytorch/issues/185509).

    Never with dynamic shapes: batches have one shape, but fsdp splits the network into blocks that share code and
    differ in shape, and inductor of torch 2.13 raises a ValueRangeError for those of ResNets.
    """
    torch._dynamo.config.recompile_limit = max(BLOCKS, torch._dynamo.config.recompile_limit)
    if channels_last:
        return torch.compile(network, mode=mode, dynamic=False)
    # torch.compile takes either a mode or options.
    options = {**torch._inductor.list_mode_options(mode), "layout_optimization": False}
    return torch.compile(network, options=options, dynamic=False)


def is_exact(network: nn.Module, precision: str) -> bool:
    """Return whether compiled and eager gradients differ by the rounding of fp32 only."""
    drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in network.modules())
    whole = all(parameter.dtype == torch.float32 for parameter in network.parameters())
    return precision == "fp32" and whole and not drops


def check_gradients(compiled: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: bool) -> None:
    """Compare the gradients of one batch, weight by weight. Raises CompileError if they differ by more than rounding.

    exact: see `is_exact`; otherwise only norms are compared, which finds gradients that vanish or explode.
    """
    norms = _norms(eager)
    total = math.sqrt(sum(norm**2 for norm in norms))
    if not total or not math.isfinite(total):
        return
    floors = [max(norm, SMALL * total) for norm in norms]
    if exact:
        errors = [norm / floor for norm, floor in zip(_norms([a - b for a, b in zip(compiled, eager)]), floors)]
        wrong = sum(not error <= DIFFERENCE for error in errors)
    else:
        sizes = [max(norm, SMALL * total) for norm in _norms(compiled)]
        wrong = sum(not 1 / RATIO <= size / floor <= RATIO for size, floor in zip(sizes, floors))
    if wrong:
        raise CompileError(
            f"torch.compile of torch {torch.__version__} gives wrong gradients for {wrong} of {len(norms)} weights of "
            "this network (first batch, compared with the network without it): the run would train something else; "
            "use framework.options.compile=false, the other framework.options.channels_last, or another torch"
        )


def _norms(tensors: Sequence[torch.Tensor]) -> List[float]:
    norms = [tensor.float().norm() for tensor in tensors]
    # A sharded gradient has a sharded norm (duck-typed, see `_whole` of the adapter).
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    return [float(norm) for norm in torch.stack(whole).tolist()]


def fallbacks() -> List[str]:
    """Return one sentence per kind of fallback in this process; empty if everything was compiled."""
    # torch.compile has loaded it already; otherwise it takes seconds.
    from torch._dynamo.utils import counters

    return sentences(counters)


def sentences(counters: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """Return the sentences for `counters`, those of torch._dynamo.utils."""
    said = []
    breaks = counters.get("graph_break", {})
    if breaks:
        shown = "; ".join(_line(reason) for reason in list(breaks)[:TOLD])
        more = f"; and {len(breaks) - TOLD} more reasons" if len(breaks) > TOLD else ""
        said.append(
            f"torch.compile broke the graph {sum(breaks.values())} times and ran the rest eagerly: {shown}{more}"
        )
    frames = counters.get("frames", {})
    left = frames.get("total", 0) - frames.get("ok", 0)
    if left > 0:
        said.append(f"torch.compile left {left} of {frames['total']} functions uncompiled, and ran them eagerly")
    skipped = counters.get("inductor", {}).get("cudagraph_skips", 0)
    if skipped:
        said.append(f"torch.compile ran {skipped} compiled functions without CUDA graphs, which its mode asks for")
    return said


def _line(reason: Any) -> str:
    """Return the first line of a reason, which summarises the others."""
    return str(reason).strip().splitlines()[0][:200]
