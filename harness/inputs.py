"""Input pipelines: which a framework offers, and what of the configuration has an effect on each."""

from __future__ import annotations

from harness.errors import UserError
from harness.schema import Config, Data
from harness.spec import DEVICE, FRAMEWORK, HARNESS, InputSpec
from harness.worker.data.locate import SHARDS

PINNING = "pytorch"  # the others decide themselves


def unsupported(config: Config) -> str | None:
    """Why there is no such pipeline; None where there is."""
    data, framework = config.data, config.framework
    asked, default = data.pipeline.value, Data()
    if asked not in framework.pipelines:
        why = f", as '{framework.name}' has no loader of its own" if asked == FRAMEWORK else ""
        return (
            f"data.pipeline={asked} is not offered by framework '{framework.name}'{why}; it offers: "
            f"{', '.join(framework.pipelines)}"
        )
    if asked != HARNESS and config.dataset.reader == SHARDS:
        return (
            f"data.pipeline={asked} is not offered with dataset.reader={SHARDS}, which each rank reads in sequence; "
            f"take data.pipeline={HARNESS}"
        )
    if asked == HARNESS and data.workers > 1:
        return (
            f"data.workers={data.workers}: data.pipeline={HARNESS} has one thread (1), or makes batches in the rank "
            f"itself (0); data.pipeline={FRAMEWORK} has more"
        )
    if asked == DEVICE and data.workers != default.workers:
        return f"data.workers={data.workers} has no effect with data.pipeline={DEVICE}; leave it at {default.workers}"
    if (asked == DEVICE or not data.workers) and data.prefetch != default.prefetch:
        where = f"data.pipeline={DEVICE}" if asked == DEVICE else "data.workers=0"
        return f"data.prefetch={data.prefetch} has no effect with {where}; leave it at {default.prefetch}"
    return None


def spec(config: Config, device: str) -> InputSpec:
    """Without what has no effect. device: what the ranks run on. Raises UserError."""
    data, asked = config.data, config.data.pipeline.value
    if not data.pin and (config.framework.name != PINNING or device != "cuda" or asked == DEVICE):
        raise UserError(
            f"data.pin=false has no effect with framework={config.framework.name}, data.pipeline={asked} on device "
            f"{device}; it is for {PINNING} on a GPU, with batches that come from the host: leave it at true"
        )
    if asked != DEVICE:
        return InputSpec(asked, data.workers, data.prefetch if data.workers else 0, data.pin)
    if config.dataset.train_samples < 1:
        raise UserError(
            f"data.pipeline={DEVICE}: the configuration of data set '{config.dataset.name}' does not say how many "
            "samples a device would hold; set dataset.train_samples"
        )
    return InputSpec(asked, workers=0, prefetch=0, samples=config.dataset.train_samples)
