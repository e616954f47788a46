"""Checks of points with framework=emulated: ranges of its costs, and unsupported requests."""

from __future__ import annotations

from harness.config.schema import Config
from harness.core.errors import UserError
from harness.core.spec import EMULATED

MOST_JITTER = 0.2


def check(config: Config) -> None:
    """Raise UserError for the first mistake in an emulated point."""
    if config.framework.name != EMULATED:
        return
    if config.measure.evaluate_samples != 0:
        raise UserError(
            f"measure.evaluate_samples={config.measure.evaluate_samples} with framework=emulated: it trains nothing, "
            "and has no accuracy; set measure.evaluate_samples=0"
        )
    if config.verify:
        raise UserError("verify=true with framework=emulated: it has no network to show; set verify=false")
    options = config.framework.options
    for name in ("compute_ms", "stall_ms", "straggler_ms", "latency_ms", "late_ms"):
        _within(name, getattr(options, name), 0, float("inf"))
    _within("backward_fraction", options.backward_fraction, 0, 1)
    _within("late_probability", options.late_probability, 0, 1)
    for name in ("jitter", "common_jitter"):
        _within(name, getattr(options, name), 0, MOST_JITTER)
    for name in ("message_mb", "bandwidth_mb", "batch_ref"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"framework.options.{name}={value:g}: give a number above 0, or null")
    if not 0 <= options.straggler_rank < config.gpus:
        raise UserError(
            f"framework.options.straggler_rank={options.straggler_rank}: with gpus={config.gpus} there are ranks 0 to "
            f"{config.gpus - 1}"
        )


def _within(name: str, value: float, lowest: float, most: float) -> None:
    if not lowest <= value <= most or value == float("inf"):
        above = f"a number of at least {lowest:g}" if most == float("inf") else f"a number from {lowest:g} to {most:g}"
        raise UserError(f"framework.options.{name}={value:g}: give {above}")
