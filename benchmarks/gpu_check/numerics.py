"""Logits and gradients on the GPU against those on the CPU in fp32, for every precision and memory format.

Each network starts from the same weights and takes the same batch; compared are the logits before the first step, and
the gradients of the first step. |GPU - CPU| / |CPU| over all elements, Euclidean.

A bound follows from the precision's unit roundoff u: 2^-24 for fp32, 2^-11 for tf32 and fp16, 2^-8 for bf16.
Logits, and the gradients of a network without kinks, are off by about u (measured on a CPU: up to 1.3 u in bf16 and
fp16): the bound is 8 u. In fp32 what differs is the order of summation, and cuDNN may take Winograd's algorithm: the
bound is 1000 u, still far below one u of tf32, so that TF32 under the name of fp32 is seen. Gradients of networks with
ReLU are off by a multiple of sqrt(u), as the number of inputs whose sign rounding changes grows with u, and each moves
the gradient as a whole (measured: 2.3 to 3.2 sqrt(u) in fp32, fp16 and bf16): the bound is 8 sqrt(u). A gradient that
is wrong, such as one whose memory format is not its weight's, is off by about 1.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.sections import Ask, Report
from harness.core.spec import RunSpec

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
ROUNDED, SUMMED, KINKED = 8, 1000, 8
# The adapter refuses them on GPUs older than Ampere, which have no tensor cores for them.
FROM_AMPERE = ("tf32", "bf16")
# No gradient of a first step overflows fp16 at this scale, whose own first one is 2^16.
LOSS_SCALE = 2.0**8
BATCH = 16


def run(ask: Ask, report: Report) -> None:
    batch = 4 if ask.reduced else BATCH
    networks = (
        ("resnet20", runs.images(8 if ask.reduced else 32, samples=256)),
        ("resnet50", runs.images(32 if ask.reduced else 64, samples=256)),
        ("gpt_tiny", runs.text()),
    )
    for model, dataset in networks:
        reference = computed(runs.spec_of(ask, model, dataset, batch, device="cpu", channels_last=False), ask)
        for channels_last in (True, False) if not dataset.context else (True,):
            for precision in precisions(ask):
                spec = runs.spec_of(ask, model, dataset, batch, precision, channels_last)
                found = computed(spec, ask)
                form = "" if dataset.context else " NHWC" if channels_last else " NCHW"
                for what in ("logits", "gradients"):
                    bound = bound_of(precision, kinked=what == "gradients" and not dataset.context)
                    apart = runs.difference(found[what], reference[what])
                    report(Figure(f"{model} {precision}{form}, {what}", apart, "of norm", bound=f"≤ {bound:.2g}"))


def bound_of(precision: str, kinked: bool) -> float:
    u = UNIT_ROUNDOFF[precision]
    if kinked:
        return KINKED * u**0.5
    return (SUMMED if precision == "fp32" else ROUNDED) * u


def precisions(ask: Ask) -> list[str]:
    if ask.reduced:
        return ["fp32", "bf16"]
    return [name for name in UNIT_ROUNDOFF if runs.bf16() or name not in FROM_AMPERE]


def computed(spec: RunSpec, ask: Ask) -> dict[str, Any]:
    """logits and gradients, as lists of arrays."""
    with runs.adapter_of(spec, ask) as adapter:
        adapter.scaler = torch.amp.GradScaler(  # type: ignore[attr-defined]
            spec.cluster.device, init_scale=LOSS_SCALE, enabled=spec.precision == "fp16"
        )
        logits = [adapter.logits(runs.test_samples(spec, spec.batch_per_gpu))]
        adapter.step()
        return {"logits": logits, "gradients": adapter.gradients()}
