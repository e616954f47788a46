"""The halves of tests that run inside the PyTorch environment (see conftest.in_torch)."""

from __future__ import annotations


def describe(name: str, size: int) -> dict:
    """Parameters, shape of the logits, and multiply-adds of the forward pass of one sample, as torch counts them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from models import pytorch

    network = pytorch.build(name, 3, 10)
    with FlopCounterMode(display=False) as counter:
        logits = network(torch.randn(2, 3, size, size))
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "logits": list(logits.shape),
        # torch counts 2 per multiply-add, and two samples went through.
        "multiply_adds": counter.get_total_flops() // 4,
    }
