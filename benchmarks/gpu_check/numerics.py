"""Logits and gradients on the GPU compared with those on the CPU in fp32, for every precision and memory format.

Every network starts from the same weights and takes the same batch. Compared are the logits before, and the gradients
of, the first step, as |GPU - CPU| / |CPU| in the Euclidean norm over all elements.

The bounds follow from the precision's unit roundoff u: 2^-24 for fp32, 2^-11 for tf32 and fp16, 2^-8 for bf16. Logits,
and gradients of smooth networks, are off by about u (measured on a CPU: up to 1.3 u in bf16 and fp16), with a bound of
8 u. In fp32 the order of summation differs, and cuDNN may use Winograd's algorithm: the bound is 1000 u, still far
below one u of tf32, so TF32 passed off as fp32 is detected. Gradients of ReLU networks are off by a multiple of
sqrt(u), since the number of inputs whose sign flips grows with u and each changes the gradient as a whole (measured:
2.3 to 3.2 sqrt(u) in fp32, fp16 and bf16), with a bound of 8 sqrt(u). A wrong gradient, such as one with another memory
format than its weight, is off by about 1.
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
# The adapter refuses these on GPUs older than Ampere, which lack tensor cores for them.
FROM_AMPERE = ("tf32", "bf16")
# At this scale no first-step gradient overflows fp16; the scaler's own initial value is 2^16.
LOSS_SCALE = 2.0**8
BATCH = 16


def run(ask: Ask, report: Report) -> None:
    batch = 4 if ask.reduced else BATCH
    networks = (
        ("resnet20", runs.images(8 if ask.reduced else 32, samples=256)),
        # On a CPU, this network would take as long as all other checks.
        *(() if ask.reduced else (("resnet50", runs.images(64, samples=256)),)),
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
    """Return logits and gradients as lists of arrays."""
    with runs.adapter_of(spec, ask) as adapter:
        adapter.scaler = torch.amp.GradScaler(  # type: ignore[attr-defined]
            spec.cluster.device, init_scale=LOSS_SCALE, enabled=spec.precision == "fp16"
        )
        logits = [adapter.logits(runs.test_samples(spec, spec.batch_per_gpu))]
        adapter.step()
        return {"logits": logits, "gradients": adapter.gradients()}
